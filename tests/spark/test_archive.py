"""Tests that the job `archive` copies a changelog into files, which are divided by entity and day. Afterwards, readers
must get the same rows as before.

Some tests archive file logs. The others archive rows as if they came from Kafka, and need no broker.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from changelog.connectors.sinks.files.layout import sequences
from changelog.connectors.sinks.files.log import counts
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.spark_jobs.archive import JOB, MicroBatches
from changelog.spark_jobs.archiving.clear import clear
from changelog.spark_jobs.archiving.complete import Goal
from changelog.spark_jobs.archiving.files import FAIL_POINTS, Merged, archive_log, compact, land
from changelog.spark_jobs.archiving.levels import drop_days
from changelog.spark_jobs.archiving.retention import closed_sequences, open_day
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.reading.kafka_offsets import OffsetSpan, slices
from changelog.spark_jobs.reading.read_files import ROWS as STRUCT
from changelog.spark_jobs.runner.job import main
from changelog.spark_jobs.storage.local_store import local
from tests.unit.sinks.material import batch, read, row, store

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
sink = { path = "changelog" }
tables = { include = ["*"] }
"""

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
GRACE = timedelta(hours=24)
LATER = timedelta(days=400)
"""The files that a test writes have the real time, not `NOON`, as their time of modification. At `NOON + LATER`, all
these files are older than `GRACE`.
"""


def change(n: int, at: datetime, **columns: Any) -> dict[str, Any]:
    """Returns the n-th change. The changes use two entities, eleven keys and three operations in turn. A transaction
    has three changes.
    """
    return row(
        Position(1, 1 + n // 3, 2 * (n % 3)),
        **{
            "entity": ("guest", "order")[n % 2],
            "key": str(n * 7 % 11),
            "op": ("create", "update", "delete")[n % 3],
            "current": None if n % 3 == 2 else '{"n":1e+20,"é":"\\u0000"}',
            "original": None if n % 3 == 0 else f'{{"n":{n}.10}}',
            "moved": '{"movedTo":{"key":"x","partition":1}}' if n == 14 else None,
            "committed_at": at,
            **columns,
        },
    )


ROWS = [change(n, NOON - 3 * DAY + n * timedelta(hours=1)) for n in range(72)]
"""Changes from noon on 18 November, one in each hour."""


def publish(path: Path, rows: Sequence[dict[str, Any]], commit_rows: int = 5) -> None:
    sink = FileSink(path)
    sink.recover()
    for start in range(0, len(rows), commit_rows):
        part = rows[start : start + commit_rows]
        last = Position.parse(part[-1]["position"])
        at = Checkpoint(position=last, through=commit_text(last.commit), epoch=1)
        store(sink, [batch(part)], at)
    sink.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file log of `ROWS`."""
    publish(tmp_path / "changelog", ROWS)
    return tmp_path / "changelog"


@pytest.fixture
def run(spark: SparkSession, log: Path) -> ArchiveRun:
    return ArchiveRun(spark=spark, store=local(log), at=NOON)


# Which days are archived


def test_a_day_is_closed_an_hour_after_its_end() -> None:
    assert open_day(datetime(2026, 11, 21, 0, 59, 59, tzinfo=UTC)) == date(2026, 11, 20)
    assert open_day(datetime(2026, 11, 21, 1, tzinfo=UTC)) == date(2026, 11, 21)


def test_only_files_of_closed_days_are_archived(log: Path) -> None:
    """A file has the changes of five hours. File 8 ends at 03:00 of the 20th, and file 12 at 23:00 of the 20th."""
    published = sequences(log)
    assert closed_sequences(log, 0) == list(range(1, 13))
    assert closed_sequences(log, 12) == []
    publish(log, [change(72 + n, NOON + 13 * timedelta(hours=1)) for n in range(2)], commit_rows=1)
    assert closed_sequences(log, 12) == [13, 14, 15], "the newest two files stay in the log, whatever they contain"
    assert published[-1] == 15


def test_a_short_log_has_nothing_to_archive(tmp_path: Path) -> None:
    assert closed_sequences(tmp_path, 0) == []
    publish(tmp_path, ROWS[:2], commit_rows=1)
    assert closed_sequences(tmp_path, 0) == []


# The file log


def test_readers_get_the_same_rows_from_a_file_log_and_its_archive(run: ArchiveRun, log: Path) -> None:
    """Archives closed days and then a late row, compacts the archive, deletes files, and drops old days.

    Readers get the same rows after each step, until a day is dropped.
    """
    before = counts(log)
    merged = archive_log(run, log)
    manifest = run.manifest()
    assert merged == Merged(files=12, into=len(manifest.files), rows=60)
    assert manifest.log.last == 12
    assert [(file.entity, file.day) for file in manifest.files] == [
        (entity, f"2026-11-{day}") for entity in ("guest", "order") for day in (18, 19, 20)
    ]
    _check_files(log, run)
    assert read(log) == ROWS
    assert counts(log) == before
    assert archive_log(run, log) == Merged()

    late = [change(72, NOON - DAY), *(change(73 + n, NOON + DAY + n * timedelta(hours=1)) for n in range(3))]
    publish(log, late, commit_rows=1)
    assert archive_log(run, log).rows == 13, "the rows of the day that was open, and the late row"
    rows = [*ROWS, *late]
    assert read(log) == rows
    assert compact(run, before=date(2026, 11, 22)) == Merged(files=2, into=1, rows=13)
    assert read(log) == rows
    _check_files(log, run)

    assert clear(run, grace=GRACE, log=log) == 0, "somebody may still read the replaced files"
    deleted = clear(replace(run, at=NOON + LATER), grace=GRACE, log=log)
    assert deleted == 2 + 2 + 16, "archive files, manifests and log files"
    assert sequences(log) == [17, 18, 19]
    assert {file.relative_to(log).as_posix() for file in (log / "archive").rglob("*.parquet")} == {
        file.path for file in run.manifest().files
    }
    assert read(log) == rows
    for start in rows[::9]:
        later = [row for row in rows if row["position"] > start["position"]]
        assert read(log, after=Position.parse(start["position"])) == later
        assert read(log, entity=start["entity"], key=start["key"]) == [
            row for row in rows if (row["entity"], row["key"]) == (start["entity"], start["key"])
        ]

    assert drop_days(run, keep_days=2) == ["2026-11-18"]
    assert read(log) == [row for row in rows if row["committed_at"].date() >= date(2026, 11, 19)]
    assert drop_days(run, keep_days=2) == []
    publish(log, [change(90, NOON + 2 * DAY)])
    assert read(log)[-1] == change(90, NOON + 2 * DAY), "the service can still publish"


def test_the_command_archives_and_compacts_a_file_log(
    spark: SparkSession, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "changelog.toml"
    config.write_text(CONFIG, "utf-8")

    def run_job(*options: str, code: int = 0) -> dict[str, Any]:
        assert main(JOB, ["--config", str(config), *options]) == code
        printed: dict[str, Any] = json.loads(capsys.readouterr().out.rstrip().rpartition("\n")[2])
        return printed

    assert run_job("--dry-run", "--compact")["log_files"] == 12
    for options in (["--archive", "x"], ["--continuous"], ["--skip", "order"], ["--accept-lost"]):
        message = f"{options[0]} is for a changelog on Kafka; a file log keeps its archive"
        assert run_job(*options, code=2)["error"].startswith(message)
    summary = run_job("--compact")
    assert [summary[name] for name in ("archived_files", "archived_into", "archived_rows")] == [12, 6, 60]
    assert [summary[name] for name in ("compacted_files", "deleted_files")] == [0, 0]
    assert read(log) == ROWS
    assert run_job("--dry-run")["log_files"] == 0
    assert run_job("--dry-run", "--compact", "all")["log_files"] == 1, (
        "the files of the open day, except the newest two"
    )
    summary = run_job("--compact", "all")
    assert [summary[name] for name in ("archived_files", "archived_rows", "compacted_files")] == [1, 5, 0]
    assert read(log) == ROWS
    assert run_job("--dry-run", "--compact", "minor")["compacts_files"] == 0, "there is one file of each day"
    for choice in ("minor", "levels"):
        planned = run_job("--dry-run", "--compact", choice)["compacts_files"]
        assert run_job("--compact", choice)["compacted_files"] == planned
        assert read(log) == ROWS


def bounded(column: Any) -> bool:
    return bool(column.statistics and column.statistics.has_min_max)


def _check_files(path: Path, run: ArchiveRun) -> None:
    """Checks that each file has the log's columns, is sorted by key and position, and has statistics of four columns
    only.
    """
    for file in run.manifest().files:
        with pq.ParquetFile(path / file.path) as parquet:
            assert parquet.schema_arrow.equals(SCHEMA)
            group = parquet.metadata.row_group(0)
            assert {SCHEMA.names[n] for n in range(group.num_columns) if bounded(group.column(n))} == {
                "entity",
                "key",
                "position",
                "committed_at",
            }
            assert {group.column(n).compression for n in range(group.num_columns)} == {"ZSTD"}
            rows = parquet.read().to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["key"], row["position"]))
        assert (len(rows), min(r["position"] for r in rows), max(r["position"] for r in rows)) == (
            file.rows,
            file.first,
            file.last,
        )
        assert {(row["entity"], str(row["committed_at"].date())) for row in rows} == {(file.entity, file.day)}


class Stopped(Exception):  # noqa: N818  # this is not an error
    pass


@pytest.mark.parametrize("point", ["archive:written", "archive:moved", "archive:committed"])
def test_readers_never_see_half_of_a_run_that_stops(spark: SparkSession, tmp_path: Path, point: str) -> None:
    log, rows = tmp_path, ROWS[:36]
    publish(log, rows)
    run = ArchiveRun(spark=spark, store=local(log), at=NOON)

    def stop(name: str) -> None:
        if name == point:
            raise Stopped

    assert point in FAIL_POINTS
    with pytest.raises(Stopped):
        archive_log(replace(run, reach=stop), log)
    assert read(log) == rows
    archive_log(run, log)
    assert read(log) == rows
    clear(replace(run, at=NOON + LATER), grace=GRACE)
    paths = {file.path for file in run.manifest().files}
    assert {stored.path for stored in run.store.files("archive")} == paths
    assert read(log) == rows


# A changelog on Kafka. These tests need no broker, because they pass the rows and the spans of offsets to the job.


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> ArchiveRun:
    return ArchiveRun(spark=spark, store=local(tmp_path / "archive of booking"), at=NOON)


def frame(run: ArchiveRun, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    return run.spark.createDataFrame([tuple(row[name] for name in SCHEMA.names) for row in rows], STRUCT)


def spans(first: int, end: int, after: int | None) -> dict[tuple[str, int], OffsetSpan]:
    return {
        (f"booking.{entity}", partition): OffsetSpan(first=first, end=end, after=after)
        for entity in ("guest", "order")
        for partition in range(3)
    }


def land_twice(run: ArchiveRun) -> None:
    """Archives twelve rows of one day in two runs, so that there are two files for each entity."""
    land(run, frame(run, ROWS[:6]), spans(0, 6, None), prefix="booking")
    land(run, frame(run, ROWS[6:12]), spans(6, 12, 6), prefix="booking")


def archived(run: ArchiveRun) -> list[dict[str, Any]]:
    """Returns the rows of all files that the manifest lists, sorted by position."""
    root = Path(run.store.root.removeprefix("file:"))
    rows = [row for file in run.manifest().files for row in pq.read_table(root / file.path).to_pylist()]
    return sorted(rows, key=lambda row: (row["position"], row["partition"]))


def test_an_entity_is_complete_once_all_of_its_partitions_have_reached_the_goal(archive: ArchiveRun) -> None:
    """The goal of a run is the position up to which it archives. The third run began before the other two, so its goal
    is earlier. It must not lower the position up to which an entity is already complete.
    """
    earlier, later = str(Position(1, 5, 0)), str(Position(1, 9, 0))
    goal = Goal(position=later, ends={"order": order_ends(10, 20), "guest": {("booking.guest", 0): 0}})
    parts = {0: 10, 1: 19}
    land(archive, frame(archive, []), order_spans({}, parts), prefix="booking", goal=goal)
    assert archive.manifest().complete == {"guest": later}
    land(archive, frame(archive, []), order_spans(parts, {0: 10, 1: 20}), prefix="booking", goal=goal)
    assert archive.manifest().complete == {"guest": later, "order": later}
    old = Goal(position=earlier, ends={"order": order_ends(1, 2)})
    land(archive, frame(archive, []), order_spans({0: 10, 1: 20}, {0: 11, 1: 20}), prefix="booking", goal=old)
    assert archive.manifest().complete == {"guest": later, "order": later}


def order_ends(*ends: int) -> dict[tuple[str, int], int]:
    """Returns the ends of the partitions of the topic of orders."""
    return {("booking.order", number): end for number, end in enumerate(ends)}


def order_spans(after: Mapping[int, int], ends: Mapping[int, int]) -> dict[tuple[str, int], OffsetSpan]:
    """Returns the span of offsets of each partition of the topic of orders, from `after` to `ends`."""
    return {
        ("booking.order", partition): OffsetSpan(first=after.get(partition, 0), end=end, after=after.get(partition))
        for partition, end in ends.items()
    }


def test_a_stream_can_begin_while_an_open_transaction_hides_rows(archive: ArchiveRun, tmp_path: Path) -> None:
    def goals(kind: Kind) -> Callable[[], Goal | None]:
        def ask() -> Goal | None:
            raise ChangelogError(kind, "a transaction has been open for 60 s")

        return ask

    MicroBatches(archive, tmp_path, {}, "booking", goals(Kind.CONNECTION))
    with pytest.raises(ChangelogError, match="has been open"):
        MicroBatches(archive, tmp_path, {}, "booking", goals(Kind.MALFORMED))


def test_rows_are_archived_once(archive: ArchiveRun) -> None:
    assert land(archive, frame(archive, ROWS[:12]), spans(0, 40, None), prefix="booking") == 12
    manifest = archive.manifest()
    assert manifest.offsets == {f"booking.{entity}": {"0": 40, "1": 40, "2": 40} for entity in ("guest", "order")}
    assert all(file.offsets == {str(n): (0, 40) for n in range(3)} for file in manifest.files)
    assert archived(archive) == ROWS[:12]

    with pytest.raises(ChangelogError, match=r"booking\.guest, partition 0, was archived by another run") as error:
        land(archive, frame(archive, ROWS[:12]), spans(0, 40, None), prefix="booking")
    assert error.value.kind is Kind.IN_USE
    assert archive.manifest() == manifest, "the refused run committed something"
    assert land(archive, frame(archive, []), spans(40, 44, 40), prefix="booking") == 0, (
        "these offsets have only the markers with which Kafka ends transactions"
    )

    truncate = {"entity": "guest", "key": TRUNCATE_KEY, "op": "truncate", "current": None, "original": None}
    truncated = [change(12, ROWS[0]["committed_at"], **truncate, partition=n) for n in range(3)]
    repeated = [*ROWS[8:12], *truncated]
    assert land(archive, frame(archive, repeated), spans(44, 90, 44), prefix="booking") == 7
    with pytest.raises(ChangelogError, match="by another run"):
        land(archive, frame(archive, repeated), spans(44, 90, 40), prefix="booking")
    assert compact(archive, before=date.max).repeats == 4, "rows that have the same entity, partition and position"
    assert archived(archive) == [*ROWS[:12], *truncated], "a truncate has one position on several partitions"
    assert archive.manifest().files[-1].offsets == {str(n): (0, 90) for n in range(3)}
    assert archive.manifest().offsets["booking.order"] == {"0": 90, "1": 90, "2": 90}


def test_compaction_fails_if_another_run_dropped_its_files(archive: ArchiveRun) -> None:
    land_twice(archive)

    def drop(name: str) -> None:
        if name == "archive:moved":
            drop_days(replace(archive, at=NOON + 9 * DAY), keep_days=1)

    with pytest.raises(ChangelogError, match="by another run in file:"):
        compact(replace(archive, reach=drop), before=date.max)
    assert archived(archive) == []


def test_compaction_keeps_rows_that_another_run_archives_meanwhile(archive: ArchiveRun) -> None:
    land_twice(archive)
    reads: list[list[dict[str, Any]]] = []

    def land_more(name: str) -> None:
        if name == "archive:moved":
            land(replace(archive), frame(archive, ROWS[12:20]), spans(12, 20, 12), prefix="booking")
            reads.append(archived(archive))

    merged = compact(replace(archive, reach=land_more), before=date.max)
    assert merged.repeats == 0
    assert reads == [ROWS[:20]]
    assert archived(archive) == ROWS[:20]


def test_large_spans_are_read_in_slices() -> None:
    full = {("t", 0): OffsetSpan(first=5, end=50, after=5), ("t", 1): OffsetSpan(first=0, end=8, after=None)}
    empty = {("t", 2): OffsetSpan(first=3, end=3, after=3)}
    parts = list(slices(full | empty, 20))
    assert [sum(span.end - span.first for span in part.values()) for part in parts] == [18, 20, 15]
    assert [span for part in parts for topic_partition, span in part.items() if topic_partition == ("t", 0)] == [
        OffsetSpan(first=5, end=15, after=5),
        OffsetSpan(first=15, end=35, after=15),
        OffsetSpan(first=35, end=50, after=35),
    ]
    assert list(slices(empty, 20)) == []
    new = {("t", 3): OffsetSpan(first=0, end=0, after=None)}
    assert list(slices(new, 20)) == [new], (
        "a new partition is included although it is empty, so that the archive knows it"
    )
