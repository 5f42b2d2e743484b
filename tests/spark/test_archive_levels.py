"""Tests how the files of an archive are merged. Readers must get the same rows before and after.

Files of many days are merged into *levels*. A level has the rows of one entity, in files with disjoint ranges of keys.
*Minor* compaction merges only the newest files of each day.
"""

from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from changelog.connectors.sinks.files.bloom import bloom_filters
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest, Replaced
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.archiving.clear import clear
from changelog.spark_jobs.archiving.files import Merged, archive_log, compact_newest
from changelog.spark_jobs.archiving.levels import compact_levels, drop_days
from changelog.spark_jobs.archiving.merging import to_level, to_merge, to_merge_newest
from changelog.spark_jobs.archiving.write_files import ArchiveRun
from changelog.spark_jobs.reading import Files, read_changelog
from changelog.spark_jobs.storage.local_store import local
from tests.spark.test_archive import DAY, GRACE, LATER, NOON, ROWS, change, publish
from tests.unit.sinks.material import read

MIDNIGHT = date(2026, 11, 21)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> ArchiveRun:
    """A run on a file log of `ROWS`. The closed days of this log, 18 to 20 November, are archived."""
    publish(tmp_path, ROWS)
    run = ArchiveRun(spark=spark, store=local(tmp_path), at=NOON, level_rows=20)
    archive_log(run, tmp_path)
    return run


def levels(run: ArchiveRun) -> dict[str, list[ArchiveFile]]:
    """Returns the files of each level, in the order of their keys."""
    files: dict[str, list[ArchiveFile]] = {}
    for file in sorted(run.manifest().files, key=lambda file: file.keys or ("", "")):
        if file.level:
            files.setdefault(file.level, []).append(file)
    return files


def check_levels(path: Path, run: ArchiveRun) -> None:
    """Checks that the files of a level have disjoint keys, and that the manifest describes each file correctly."""
    for files in levels(run).values():
        for file, following in pairwise(files):
            assert file.keys is not None
            assert following.keys is not None
            assert file.keys[1] < following.keys[0]
        for file in files:
            rows = pq.read_table(path / file.path).to_pylist()
            assert rows == sorted(rows, key=lambda row: (row["key"], row["position"]))
            assert file.keys == (rows[0]["key"], rows[-1]["key"])
            days = [str(row["committed_at"].date()) for row in rows]
            assert file.first_day <= min(days)
            assert max(days) <= file.day
            positions = [row["position"] for row in rows]
            assert (file.rows, file.first, file.last) == (len(rows), min(positions), max(positions))


def check_reads(path: Path, rows: list[dict[str, Any]]) -> None:
    """Checks that readers get the right rows, whether they ask for all rows, for the rows after a position, for one
    identifier, or for single keys.
    """
    assert read(path) == rows
    assert read(path, after=Position.parse(rows[30]["position"])) == rows[31:]
    assert read(path, identifier="req-9") == [row for row in rows if row["identifier"] == "req-9"]
    for key in ("0", "7", "no such key"):
        assert read(path, entity="order", key=key) == [
            row for row in rows if (row["entity"], row["key"]) == ("order", key)
        ]


def test_days_become_levels(spark: SparkSession, run: ArchiveRun, tmp_path: Path) -> None:
    """The files of all days are merged into one level for each entity. Later, these levels are merged with a late row
    and with a day that has closed meanwhile, because the levels are not much larger. In the end, old days are dropped.
    """
    assert compact_levels(run, before=MIDNIGHT) == Merged(files=6, into=4, rows=60)
    assert len(levels(run)) == 2, "one level of each entity"
    assert {(file.first_day, file.day) for file in run.manifest().files} == {("2026-11-18", "2026-11-20")}
    check_levels(tmp_path, run)
    check_reads(tmp_path, ROWS)
    assert compact_levels(run, before=MIDNIGHT) == Merged(), "there is no new day"

    late = [change(72, NOON - DAY), *(change(73 + n, NOON + n * timedelta(hours=1)) for n in range(16))]
    publish(tmp_path, late, commit_rows=1)
    archive_log(run, tmp_path)
    rows = [*ROWS, *late]
    check_reads(tmp_path, rows)
    assert compact_levels(run, before=MIDNIGHT + DAY).files == 3 + 4, "two files of the 21st, a late row, two levels"
    check_levels(tmp_path, run)
    check_reads(tmp_path, rows)
    assert read_changelog(spark, Files(path=tmp_path)).count() == len(rows)
    clear(replace(run, at=NOON + LATER), grace=GRACE, log=tmp_path)
    check_reads(tmp_path, rows)

    assert drop_days(run, keep_days=2) == ["2026-11-18"]
    assert {file.first_day for file in run.manifest().files} >= {"2026-11-19"}
    check_levels(tmp_path, run)
    assert read(tmp_path) == [row for row in rows if row["committed_at"].date() >= date(2026, 11, 19)]
    assert drop_days(run, keep_days=2) == []


def test_readers_can_search_a_level_by_its_bloom_filters(run: ArchiveRun, tmp_path: Path) -> None:
    compact_levels(run, before=MIDNIGHT)
    [*files] = run.manifest().files
    assert files
    for file in files:
        with pq.ParquetFile(tmp_path / file.path) as parquet, bloom_filters(tmp_path / file.path) as filters:
            rows = parquet.read().to_pylist()
            group = parquet.metadata.row_group(0)
            columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
            for name in ("key", "identifier"):
                assert all(filters.may_hold(columns[name], row[name]) for row in rows)
                assert not all(filters.may_hold(columns[name], f"other {n}") for n in range(10))
            assert columns["position"].bloom_filter_offset is None


class Stopped(Exception):  # noqa: N818  # this is not an error
    pass


@pytest.mark.parametrize("point", ["archive:written", "archive:moved", "archive:committed"])
def test_a_run_that_stops_changes_nothing_for_readers(run: ArchiveRun, tmp_path: Path, point: str) -> None:
    def stop(name: str) -> None:
        if name == point:
            raise Stopped

    with pytest.raises(Stopped):
        compact_levels(replace(run, reach=stop), before=MIDNIGHT)
    check_reads(tmp_path, ROWS)
    compact_levels(run, before=MIDNIGHT)
    check_reads(tmp_path, ROWS)
    clear(replace(run, at=NOON + LATER), grace=GRACE)
    assert {file.path for file in run.store.files("archive")} == {file.path for file in run.manifest().files}


def test_if_two_runs_drop_days_at_the_same_time_the_later_one_fails(run: ArchiveRun, tmp_path: Path) -> None:
    """The run that ends later fails, because the other run has replaced files that the later one had read. No row of
    the days that are kept is lost.
    """
    compact_levels(run, before=MIDNIGHT)

    def drop(name: str) -> None:
        if name == "archive:moved":
            drop_days(run, keep_days=1)

    with pytest.raises(ChangelogError, match="were replaced by another run") as error:
        drop_days(replace(run, reach=drop), keep_days=2)
    assert error.value.kind is Kind.IN_USE
    assert read(tmp_path) == [row for row in ROWS if row["committed_at"].date() >= date(2026, 11, 20)]


def test_the_newest_files_of_a_day_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Each hour, the log's files are archived and merged with those of earlier hours."""
    run = ArchiveRun(spark=spark, store=local(tmp_path), at=NOON)
    rows = [change(n, NOON + n * timedelta(minutes=1)) for n in range(40)]
    for start in (0, 20):
        publish(tmp_path, rows[start : start + 20])
        archive_log(run, tmp_path, date.max)
        compact_newest(run)
        assert read(tmp_path) == rows[: start + 20]
    assert [(file.entity, file.day, file.level) for file in run.manifest().files] == [
        ("guest", "2026-11-21", ""),
        ("order", "2026-11-21", ""),
    ]


# Which files are merged


def entry(number: int, rows: int, *, entity: str = "order", day: str = "day=2026-11-01") -> ArchiveFile:
    """Returns a file whose rows are newer than those of files with a lower number."""
    at = str(Position(1, number, 0))
    return ArchiveFile(
        path=f"archive/entity={entity}/{day}/run{number}-00000.parquet", entity=entity, rows=rows, first=at, last=at
    )


def merged(groups: list[list[ArchiveFile]]) -> list[set[int]]:
    return [{file.rows for file in files} for files in groups]


def test_large_files_are_left_alone() -> None:
    def archive(*files: ArchiveFile) -> Manifest:
        return Manifest(format=1, log=Replaced(first=1, last=0), files=files)

    old, middle, new = entry(1, 100), entry(2, 7), entry(3, 2)
    assert merged(to_merge_newest(archive(old, middle, new))) == [{7, 2}]
    assert merged(to_merge_newest(archive(middle, new, old))) == [{7, 2}], "the order in the manifest means nothing"
    assert to_merge_newest(archive(old, new)) == []
    assert merged(to_merge(archive(old, middle, new), date.max)) == [{100, 7, 2}]

    big, small = (entry(n, rows, day=f"from=2026-10-0{n}/day=2026-10-09") for n, rows in ((1, 90), (2, 8)))
    assert merged(to_level(archive(small, big, new), date.max)) == [{8, 2}]
    assert merged(to_level(archive(small, big, middle), date.max)) == [{7, 8}]
    assert merged(to_level(archive(small, big, middle, entry(4, 9)), date.max)) == [{7, 9, 8, 90}]
    assert to_level(archive(small, big), date.max) == []
    assert to_level(archive(small, big, new), date(2026, 11, 1)) == [], "the day is not closed"
    assert to_merge(archive(small, big), date.max) == []
    guests = entry(5, 3, entity="guest")
    assert merged(to_level(archive(small, big, new, guests), date.max)) == [{3}, {8, 2}]
