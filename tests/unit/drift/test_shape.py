"""The format of reports: its schema in docs/, what is refused, and what earlier versions wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.drift.report import finish, read_earlier, shape, write
from tests.unit.drift.examples import NIGHTS
from tests.unit.drift.reports import night, report

CHECKOUT = Path(__file__).parents[3]
SCHEMA = CHECKOUT / "docs" / "drift-report.schema.json"
GOLDEN = Path(__file__).parent / "format-1.json"


def test_the_schema_in_docs_is_the_shape() -> None:
    made = json.dumps(shape.json_schema(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SCHEMA") == "1":
        SCHEMA.write_text(made, "utf-8")
    assert SCHEMA.read_text("utf-8") == made, "write it anew with UPDATE_SCHEMA=1"


def test_reports_meet_the_schema(tmp_path: Path) -> None:
    files = [write(tmp_path / name, make()).with_name("report.json") for name, make in NIGHTS.items()]
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), *map(str, [*files, GOLDEN])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_report_of_the_first_format_is_read() -> None:
    found = shape.decode(GOLDEN.read_bytes(), str(GOLDEN))
    assert (found.format, found.verdict, found.entities["order"].changed) == (1, "drift", 4)


def test_what_is_written_is_read_again_as_it_was_spelt(tmp_path: Path) -> None:
    write(tmp_path, NIGHTS["drift"]())
    content = (tmp_path / "latest" / "report.json").read_text("utf-8")
    assert '"source": -0' in content
    (found,) = read_earlier(tmp_path)
    assert found["entities"]["order"]["samples"][0]["columns"]["note"] == {"source": None, "changelog": ""}


def broken(**changed: Any) -> bytes:
    return json.dumps({**finish(report(), {}, []), **changed}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format": 1',
        b"\xff",
        broken(format=2),
        broken(kind="something else"),
        broken(verdict="fine"),
        broken(more=1),
        broken(keys="../20261101T031000Z-3f2a/keys.jsonl"),
        broken(entities={"order": {}}),
        json.dumps(report()).encode(),  # not finished
    ],
)
def test_a_report_that_is_none_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, finish(report(1), {}, []))
    run = tmp_path / "20261102T031000Z-3f2a"
    run.mkdir()
    (run / "report.json").write_bytes(content)
    with pytest.raises(ChangelogError) as caught:
        read_earlier(tmp_path)
    assert caught.value.kind is Kind.MALFORMED
    assert str(run / "report.json") in caught.value.message


def test_a_report_with_another_key_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError):
        write(tmp_path, {**finish(report(), {}, []), "more": 1})
    assert list(tmp_path.iterdir()) == []


def test_the_newest_is_linked_and_nothing_else_lies_about(tmp_path: Path) -> None:
    for run in (1, 2):
        done = night(tmp_path, report(run))
    page = write(tmp_path, done)
    assert page == tmp_path / "20261102T031000Z-3f2a" / "report.html"
    assert (tmp_path / "latest" / "report.html").samefile(page)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("20261101T031000Z-3f2a", "20261102T031000Z-3f2a", "latest")
    ]
    assert sorted(path.name for path in page.parent.iterdir()) == ["keys.jsonl", "report.html", "report.json"]
    assert [each["run"]["id"] for each in read_earlier(tmp_path)] == [
        *("20261101T031000Z-3f2a", "20261102T031000Z-3f2a")
    ]


def test_where_nothing_ran_yet_there_is_nothing(tmp_path: Path) -> None:
    assert read_earlier(tmp_path / "drift") == []
