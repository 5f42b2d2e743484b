"""Tests views of an archive that has no file log, such as an archive of Kafka topics.

A checkpoint would say up to which position the archive is complete, and which columns a key has. Such an archive has no
checkpoint.
"""

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from changelog.connectors.sinks.files.manifest import read_manifest
from changelog.connectors.views.http import answers
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op
from tests.unit.records import record
from tests.unit.sinks.material import write_archive
from tests.unit.views.running import SEATS, records, running, settings

COMPLETE = "00000001/0000000000000005/00000002"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive without versions of columns. Its manifest says up to which position it is complete, but only for
    `order`.
    """
    path = tmp_path / "archive"
    path.mkdir()
    rows = batch.from_records([*records()[1:], record(Op.CREATE, '{"id":5}', commit=5, key="5")]).to_pylist()
    ordered = sorted(rows, key=lambda row: (row["key"], row["position"]))
    files = {
        f"entity={entity}/day=2026-11-21/a.parquet": [row for row in ordered if row["entity"] == entity]
        for entity in ("order", "seat")
    }
    write_archive(path, 1, files, 0)
    manifest = read_manifest(path)
    assert manifest is not None
    an_hour_ago = datetime.fromtimestamp(time.time() - 3600, UTC).isoformat()
    complete = replace(manifest, complete={"order": COMPLETE}, at=an_hour_ago)
    (path / "manifest" / "1.json").write_bytes(complete.to_json())
    return path


def test_rows_are_complete_up_to_the_position_in_the_manifest(archive: Path, tmp_path: Path) -> None:
    with running(settings(tmp_path), archive=archive) as api:
        answer = api.get("/order/42")
        assert (answer.status, answer.headers[answers.POSITION]) == (200, COMPLETE)
        assert 3600 <= float(answer.headers[answers.STALENESS]) < 7200
        assert answers.POSITION not in api.get("/seat").headers
        assert [row["key"] for row in api.rows("/order?limit=2")] == ["41", "42", "43", "5"]
        assert api.get("/order/44").status == 404
        assert api.get("/order/42?min_position=00000001/0000000000000006/00000000").status == 503
        assert api.get("/seat/A/1/2").json["current"] == {"seat": SEATS[1]}
        assert [row["current"]["seat"] for row in api.rows("/seat?prefix=A&prefix=1")] == SEATS[:3]


def test_a_condition_needs_the_types_of_columns(archive: Path, tmp_path: Path) -> None:
    view = '[views.paid]\nentity = "order"\nserve = {}\nwhere = "id = 1"'
    with running(settings(tmp_path, view), archive=archive) as api:
        answer = api.get("/paid/41")
        assert answer.status == 503
        assert "lacks the columns of the entity order" in answer.json["error"]
        assert answer.json["hint"] == "leave `where` out, and filter in the client"
