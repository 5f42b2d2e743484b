"""Tests Spark's reader of a changelog in files. It must return the same rows as the reader that works without Spark,
and report errors in one line.
"""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from changelog.connectors.sinks.files.layout import log_file
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import GAPS, SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.reading.read import end_of, read_changelog
from changelog.spark_jobs.reading.read_files import ROWS
from changelog.spark_jobs.reading.where import Archive, Files, Where
from changelog.spark_jobs.runner.spark_errors import explain
from tests.unit.sinks.material import batch, checkpoint, read, row, store

COMMITS = 6


def commit(number: int) -> list[dict[str, Any]]:
    """Returns three rows: one for each of two entities, and one that announces the columns of an entity."""
    return [
        row(Position(1, number, 0), entity=SCHEMAS),
        row(Position(1, number, 2), current='{"a": 1e+20, "b":-0}', moved='{"movedTo":{"key":"x","partition":1}}'),
        row(Position(1, number, 4), entity="guest", current=None, original="{}"),
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log whose first two commits are only in the archive."""
    path = tmp_path / "a log"
    sink = FileSink(path)
    sink.recover()
    for number in range(1, COMMITS + 1):
        store(sink, [batch(commit(number))], checkpoint(number, settings={"order": {}, "guest": {}}))
    sink.close()
    archive(path, 2)
    return path


def archive(path: Path, last: int) -> None:
    files = []
    for entity in ("guest", "order", SCHEMAS):
        rows = [row for n in range(1, last + 1) for row in commit(n) if row["entity"] == entity]
        file = f"archive/entity={entity}/day=2026-11-21/0.parquet"
        (path / file).parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([batch(rows)]), path / file)
        entry = {"path": file, "entity": entity, "rows": len(rows)}
        files.append({**entry, "first": rows[0]["position"], "last": rows[-1]["position"]})
    (path / "manifest").mkdir()
    manifest = {"format": 1, "log": {"first": 1, "last": last}, "files": files}
    (path / "manifest" / "1.json").write_text(json.dumps(manifest))
    for number in range(1, last + 1):
        log_file(path, number).unlink()


def rows_of(changes: DataFrame) -> list[dict[str, Any]]:
    """Returns the rows sorted by position and with times in UTC, as the log's own reader returns them."""
    rows = sorted((row.asDict() for row in changes.collect()), key=lambda row: str(row["position"]))
    return [{**row, "committed_at": row["committed_at"].astimezone(UTC)} for row in rows]


def changelogs(log: Path) -> Iterator[tuple[Where, list[dict[str, Any]]]]:
    yield Files(path=log), read(log)
    yield Archive(path=str(log)), [row for row in read(log) if row["position"] < str(Position(1, 3, 0))]


def test_the_rows_are_those_of_the_log(spark: SparkSession, log: Path) -> None:
    for where, expected in changelogs(log):
        assert len(expected) in (4, 2 * COMMITS)
        changes = read_changelog(spark, where)
        assert changes.schema == ROWS
        assert changes.columns == SCHEMA.names
        assert rows_of(changes) == expected


def test_gaps_are_read_only_if_they_are_selected(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.recover()
    rows = [row(Position(2, 1, 0), entity=GAPS), row(Position(2, 1, 2))]
    store(sink, [batch(rows)], checkpoint(1, settings={"order": {}}))
    sink.close()
    where = Files(path=tmp_path)
    assert {found_row["entity"] for found_row in rows_of(read_changelog(spark, where))} == {"order"}
    assert {found_row["entity"] for found_row in rows_of(read_changelog(spark, where, entities=[GAPS]))} == {GAPS}


def test_rows_are_selected_by_entity_and_position(spark: SparkSession, log: Path) -> None:
    for where, expected in changelogs(log):
        assert rows_of(read_changelog(spark, where, entities=["guest"])) == [
            row for row in expected if row["entity"] == "guest"
        ]
        for after in (Position(1, 1, 2), Position(1, 2, 2)):
            assert rows_of(read_changelog(spark, where, after=after)) == [
                row for row in expected if row["position"] > str(after)
            ]
        versions = rows_of(read_changelog(spark, where, entities=[SCHEMAS, "guest"]))
        assert {row["entity"] for row in versions} == {SCHEMAS, "guest"}
    for number in (3, COMMITS):
        after = Position(1, number, 2)
        assert rows_of(read_changelog(spark, Files(path=log), after=after)) == read(log, after=after)


def test_files_that_no_manifest_lists_are_not_read(spark: SparkSession, log: Path) -> None:
    shutil.copy(log_file(log, 5), log / "archive" / "entity=order" / "day=2026-11-21" / "1.parquet")
    for where, expected in changelogs(log):
        assert rows_of(read_changelog(spark, where)) == expected


def test_the_end_is_known_without_reading_rows(spark: SparkSession, log: Path) -> None:
    assert end_of(spark, Files(path=log)) == Position(1, 10 * COMMITS, 0)
    assert end_of(spark, Archive(path=str(log))) == Position(1, 2, 4)
    assert rows_of(read_changelog(spark, Files(path=log), after=Position(1, 10 * COMMITS, 0))) == []


@pytest.mark.parametrize(
    ("where", "arguments", "kind", "message"),
    [
        (Files, {"entities": ["ordre"]}, Kind.USAGE, "has no entity ordre; it has: guest, order"),
        (Archive, {"entities": ["guest", "x"]}, Kind.USAGE, "has no entity x; it has: guest, order"),
        (Files, {"after": Position(1, 61, 0)}, Kind.USAGE, "00000001/000000000000003D/00000000 is beyond the end"),
        (Archive, {"after": Position(1, 2, 6)}, Kind.USAGE, "ends at 00000001/0000000000000002/00000004"),
    ],
)
def test_an_unknown_entity_or_position_is_reported_in_one_line(
    spark: SparkSession, log: Path, where: Any, arguments: dict[str, Any], kind: Kind, message: str
) -> None:
    changelog = where(path=log if where is Files else str(log))
    with pytest.raises(ChangelogError) as caught:
        read_changelog(spark, changelog, **arguments)
    assert (caught.value.kind, message in str(caught.value), "\n" in str(caught.value)) == (kind, True, False)


def test_an_empty_folder_has_no_changelog(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match=r"there is no changelog in .*changelog run"):
        read_changelog(spark, Files(path=tmp_path))
    with pytest.raises(ChangelogError, match="has no manifest"):
        read_changelog(spark, Archive(path=str(tmp_path)))
    with pytest.raises(ChangelogError, match=r"beyond the end: .* is empty"):
        read_changelog(spark, Files(path=tmp_path), after=Position(1, 1, 0))


def test_a_log_with_a_hole_is_refused(spark: SparkSession, log: Path) -> None:
    log_file(log, 4).unlink()
    with pytest.raises(ChangelogError, match="lacks sequence 4"):
        read_changelog(spark, Files(path=log))


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("at", [60, -6], ids=["page", "footer"])
def test_a_damaged_file_is_named_and_no_row_of_it_is_read(spark: SparkSession, log: Path, at: int) -> None:
    flip(log_file(log, 4), at)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # an exception of Spark's own
        read_changelog(spark, Files(path=log)).collect()
    error = explain(caught.value)
    assert str(error) == f"{log_file(log, 4)} is damaged; restore it from a copy"


def test_an_incomplete_newest_file_is_ignored(spark: SparkSession, log: Path) -> None:
    flip(log_file(log, COMMITS), -6)
    assert len(rows_of(read_changelog(spark, Files(path=log)))) == 2 * (COMMITS - 1)


def test_times_keep_their_microseconds(spark: SparkSession, log: Path) -> None:
    first = read_changelog(spark, Files(path=log)).orderBy("position").first()
    assert first is not None
    assert first["committed_at"].astimezone(UTC) == datetime(2026, 11, 21, 3, 10, 3, 886044, tzinfo=UTC)
