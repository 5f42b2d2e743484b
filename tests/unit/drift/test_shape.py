"""Tests the format of drift reports: its schema in docs/, malformed reports, and reports of earlier versions."""

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


def test_the_schema_in_docs_describes_the_shape() -> None:
    expected = json.dumps(shape.json_schema(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_SCHEMA") == "1":
        SCHEMA.write_text(expected, "utf-8")
    assert SCHEMA.read_text("utf-8") == expected, "write the schema again with UPDATE_SCHEMA=1"


def test_reports_meet_the_schema(tmp_path: Path) -> None:
    files = [write(tmp_path / name, make()).with_name("report.json") for name, make in NIGHTS.items()]
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), *map(str, [*files, GOLDEN])]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_a_report_of_the_first_format_is_read() -> None:
    decoded = shape.decode(GOLDEN.read_bytes(), str(GOLDEN))
    assert (decoded.format, decoded.verdict, decoded.entities["order"].changed) == (1, "drift", 4)


def test_a_written_report_is_read_with_the_same_spelling(tmp_path: Path) -> None:
    write(tmp_path, NIGHTS["drift"]())
    content = (tmp_path / "latest" / "report.json").read_text("utf-8")
    assert '"source": -0' in content
    (earlier,) = read_earlier(tmp_path)
    assert earlier["entities"]["order"]["samples"][0]["columns"]["note"] == {"source": None, "changelog": ""}


def malformed(**changed: Any) -> bytes:
    return json.dumps({**finish(report(), {}, []), **changed}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"format": 1',
        b"\xff",
        malformed(format=2),
        malformed(kind="something else"),
        malformed(verdict="fine"),
        malformed(more=1),
        malformed(keys="../20261101T031000Z-3f2a/keys.jsonl"),
        malformed(entities={"order": {}}),
        json.dumps(report()).encode(),  # a report that `finish` did not complete
    ],
)
def test_a_malformed_report_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, finish(report(1), {}, []))
    run = tmp_path / "20261102T031000Z-3f2a"
    run.mkdir()
    (run / "report.json").write_bytes(content)
    with pytest.raises(ChangelogError) as caught:
        read_earlier(tmp_path)
    assert caught.value.kind is Kind.MALFORMED
    assert str(run / "report.json") in caught.value.message


def test_a_report_with_an_unknown_member_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ChangelogError):
        write(tmp_path, {**finish(report(), {}, []), "more": 1})
    assert list(tmp_path.iterdir()) == []


def test_the_newest_report_is_linked_and_no_other_files_are_left(tmp_path: Path) -> None:
    for run in (1, 2):
        finished = night(tmp_path, report(run))
    page = write(tmp_path, finished)
    assert page == tmp_path / "20261102T031000Z-3f2a" / "report.html"
    assert (tmp_path / "latest" / "report.html").samefile(page)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("20261101T031000Z-3f2a", "20261102T031000Z-3f2a", "latest")
    ]
    assert sorted(path.name for path in page.parent.iterdir()) == ["keys.jsonl", "report.html", "report.json"]
    assert [earlier["run"]["id"] for earlier in read_earlier(tmp_path)] == [
        *("20261101T031000Z-3f2a", "20261102T031000Z-3f2a")
    ]


def test_before_the_first_run_there_are_no_reports(tmp_path: Path) -> None:
    assert read_earlier(tmp_path / "drift") == []
