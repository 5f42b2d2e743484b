"""Files of an archive: written, made fewer, dropped and cleared away (docs/how-to/archive.md).

Whatever is written becomes visible by a manifest alone, and all at once. A run that ends before leaves files that
nobody lists; `clear` deletes them later, with those that were replaced.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from connectors.failpoints import Reach, nowhere
from connectors.sinks.files.layout import log_file, sequences
from connectors.sinks.kafka.names import topic as topic_of
from envelope.batch import SCHEMA
from envelope.entity import OF_CHANGELOG
from envelope.errors import ChangelogError, Kind
from spark_jobs.archiving.retention import KEPT, closed_sequences, to_drop, to_merge
from spark_jobs.changelog.kafka_offsets import Spans
from spark_jobs.changelog.read import ROWS
from spark_jobs.storage.manifest import (
    ARCHIVE,
    FOLDER,
    NOTHING,
    ArchiveFile,
    Manifest,
    Replaced,
    Store,
    commit,
    newest,
    number_of,
    path_of,
    read,
    run_name,
)

FAIL_POINTS = ("archive:written", "archive:moved", "archive:committed", "archive:dropped", "archive:cleared")
"""The boundaries between two steps at which a crash is tried."""

FILE_ROWS = 5_000_000
"""The most rows of a file."""

DAYS_AT_ONCE = 64
"""How many entities' days are compacted in one commit."""

_STAGING = f"{ARCHIVE}/.staging"
_PLACES = ("entity_", "day_")

_BOUNDED = frozenset({"entity", "key", "position", "committed_at"})

WRITING = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "9",
    "parquet.block.size": str(32 << 20),
    "maxRecordsPerFile": str(FILE_ROWS),
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in SCHEMA.names if name not in _BOUNDED},
}
"""How files are written: small row groups let readers skip, and no part of a state stands in a footer's statistics.

What is read for years is worth the effort of level 9: a ninth less than at Spark's own level.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """One run of the job: its session, the archive's store, its clock, and where tests make it crash."""

    spark: SparkSession
    store: Store
    at: datetime
    reach: Reach = nowhere

    def manifest(self) -> Manifest:
        """What is committed, nothing at first."""
        return newest(self.store) or NOTHING


# From Kafka


def land(run: ArchiveRun, rows: DataFrame, spans: Spans, *, prefix: str) -> int:
    """Commits what was read of the spans, and that they were read; gives the number of rows.

    `rows` are of `envelope.batch.SCHEMA`, their `partition` Kafka's. Raises ChangelogError, IN_USE, when another run
    read the same meanwhile.
    """
    with _written(run, rows) as written:
        files = [_landed(file, spans, prefix) for file in written]

        def add(before: Manifest) -> Manifest:
            offsets = {topic: dict(parts) for topic, parts in before.offsets.items()}
            for (topic, partition), span in spans.items():
                if offsets.setdefault(topic, {}).get(str(partition)) != span.after:
                    raise _meanwhile(run.store, f"{topic}, partition {partition}, was archived")
                offsets[topic][str(partition)] = span.end
            return replace(before, files=(*before.files, *files), offsets=offsets)

        commit(run.store, add, at=run.at)
    run.reach("archive:committed")
    return sum(file.rows for file in files)


def _landed(file: "_Written", spans: Spans, prefix: str) -> ArchiveFile:
    topic = topic_of(prefix, file.entity)
    return file.listed(
        {str(partition): (span.first, span.end) for (name, partition), span in spans.items() if name == topic}
    )


# Fewer files


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What became of files: how many went in and came out, and how many rows were repeats and so were dropped."""

    files: int = 0
    into: int = 0
    rows: int = 0
    repeats: int = 0

    def __add__(self, other: "Merged") -> "Merged":
        return Merged(
            files=self.files + other.files,
            into=self.into + other.into,
            rows=self.rows + other.rows,
            repeats=self.repeats + other.repeats,
        )


def compact(run: ArchiveRun, *, before: date) -> Merged:
    """Makes one sorted file of those of an entity's day before a date, where they are several; drops repeats.

    A repeat is of the same entity, partition and position. Raises ChangelogError, IN_USE, when another run replaced or
    dropped the same files meanwhile.
    """
    merged = Merged()
    due = to_merge(run.manifest(), before)
    for begin in range(0, len(due), DAYS_AT_ONCE):
        merged += _merge(run, [file for files in due[begin : begin + DAYS_AT_ONCE] for file in files])
    return merged


def _merge(run: ArchiveRun, old: Sequence[ArchiveFile]) -> Merged:
    rows = _read(run, [f"{run.store.root}/{file.path}" for file in old])
    with _written(run, rows) as written:
        new = [file.listed(_offsets(old, file)) for file in written]
        merged = Merged(files=len(old), into=len(new), rows=_rows(old), repeats=_rows(old) - _rows(new))
        if merged.repeats < 0:
            raise ChangelogError(
                Kind.MALFORMED,
                f"files of {run.store.root} hold more rows than their manifest says",
                hint="restore what it lists from a copy",
            )

        def swap(before: Manifest) -> Manifest:
            gone = frozenset(file.path for file in old)
            others = tuple(file for file in before.files if file.path not in gone)
            if len(others) + len(old) != len(before.files):
                raise _meanwhile(run.store, "files that this run made fewer were replaced")
            return replace(before, files=(*others, *new))

        commit(run.store, swap, at=run.at)
    run.reach("archive:committed")
    return merged


def _rows(files: Iterable[ArchiveFile]) -> int:
    return sum(file.rows for file in files)


def _offsets(old: Iterable[ArchiveFile], new: "_Written") -> dict[str, tuple[int, int]]:
    """By partition, from the lowest to the highest offset that the old files of the new one's day were read from."""
    spans: dict[str, tuple[int, int]] = {}
    for file in old:
        if (file.entity, file.day) == (new.entity, new.day):
            for partition, (first, end) in file.offsets.items():
                low, high = spans.get(partition, (first, end))
                spans[partition] = min(low, first), max(high, end)
    return spans


# From the file log


def archive_log(run: ArchiveRun, path: Path, before: date | None = None) -> Merged:
    """Writes the days of the file log at `path` before a date, by default the closed ones, into its own archive.

    They are sorted; the log files stay for now.
    """
    archived = run.manifest().log.last
    due = closed_sequences(path, archived, before)
    if not due:
        return Merged()
    rows = _read(run, [f"file:{log_file(path.absolute(), sequence)}" for sequence in due])
    with _written(run, rows) as written:
        new = [file.listed({}) for file in written]

        def add(before: Manifest) -> Manifest:
            if before.log.last != archived:
                raise _meanwhile(run.store, "the log was archived")
            return replace(before, log=Replaced(first=1, last=due[-1]), files=(*before.files, *new))

        commit(run.store, add, at=run.at)
    run.reach("archive:committed")
    return Merged(files=len(due), into=len(new), rows=_rows(new))


# Fewer days, and what is no longer needed


def drop_days(run: ArchiveRun, *, keep_days: int) -> Sequence[str]:
    """Drops all days but today and the `keep_days` before it from the manifest; gives those dropped.

    The versions of columns stay, which later rows may need however old they are, and so do the gaps.
    """
    gone = to_drop(run.manifest(), run.at.astimezone(UTC).date(), keep_days)
    if gone:

        def without(before: Manifest) -> Manifest:
            files_left = (file for file in before.files if file.entity in OF_CHANGELOG or file.day not in gone)
            return replace(before, files=tuple(files_left))

        commit(run.store, without, at=run.at)
        run.reach("archive:dropped")
    return sorted(gone)


def clear(run: ArchiveRun, *, grace: timedelta, log: Path | None = None) -> int:
    """Deletes what no reader needs any more, and gives the number of files.

    A manifest goes when the next one is older than `grace`, so that whoever began to read by it has had so long. A
    file goes when no manifest that is left lists it and it is older than `grace`: what an unfinished run left, too. Of
    the file log at `log` what every manifest that is left replaces.
    """
    store, until_s = run.store, (run.at - grace).timestamp()
    manifests = list(store.files(FOLDER))
    written_s = {number: file.modified_s for file in manifests if (number := number_of(file.path)) is not None}
    whole = {number: manifest for number in written_s if (manifest := read(store, path_of(number))) is not None}
    if not whole:
        return 0
    left = _in_use({number: written_s[number] for number in whole}, until_s)
    listed = {file.path for number in left for file in whole[number].files} | {path_of(number) for number in left}
    gone = [path_of(number) for number in whole.keys() - left]
    others = [file for file in (*manifests, *store.files(ARCHIVE)) if file.path not in (listed | set(gone))]
    gone += [file.path for file in others if file.modified_s < until_s]
    if log is not None:
        before_archive_expired = written_s[min(left)] < until_s  # else there may be readers from before there was any
        archived = min(whole[number].log.last for number in left) if before_archive_expired else 0
        gone += [f"log/{log_file(log, file).name}" for file in sequences(log)[:-KEPT] if file <= archived]
    for path in gone:
        store.delete(path)
    run.reach("archive:cleared")
    return len(gone)


def _in_use(written_s: Mapping[int, float], until_s: float) -> set[int]:
    """The numbers of the manifests that somebody may still read by: the newest, and each that was so until lately."""
    ordered = sorted(written_s)
    lately = (number for number, following in pairwise(ordered) if written_s[following] >= until_s)
    return {ordered[-1], *lately}


# How files are written


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A file that is in its place, and not yet listed."""

    path: str
    entity: str
    day: str
    rows: int
    first: str
    last: str

    def listed(self, offsets: Mapping[str, tuple[int, int]]) -> ArchiveFile:
        """The same in a manifest."""
        return ArchiveFile(
            path=self.path, entity=self.entity, rows=self.rows, first=self.first, last=self.last, offsets=offsets
        )


def arranged(rows: DataFrame) -> DataFrame:
    """The rows as files are to hold them: together by entity and day, sorted by key and position, each once.

    Two columns more than `envelope.batch.SCHEMA` say the place: `entity_` and `day_` (UTC).
    """
    day = F.expr("date_from_unix_date(cast(floor(unix_micros(committed_at) / 86400000000D) AS int))")
    placed = rows.select(
        *(_never_null(name) if not SCHEMA.field(name).nullable else F.col(name) for name in SCHEMA.names),
        F.col("entity").alias("entity_"),
        day.cast("string").alias("day_"),
    )
    order = Window.partitionBy(*_PLACES, "key").orderBy("position", "partition")
    this = F.struct("position", "partition")
    return (
        placed.repartition(*_PLACES)
        .withColumn("before_", F.lag(this).over(order))
        .where(F.col("before_").isNull() | (F.col("before_") != this))
        .drop("before_")
        .sortWithinPartitions(*_PLACES, "key", "position", "partition")
    )


def _never_null(name: str) -> Column:
    """A column that Parquet is told has no nulls; Spark takes every column that it reads for one that may."""
    return F.coalesce(F.col(name), F.lit(_ZERO[name]).cast(ROWS[name].dataType)).alias(name)


_ZERO: Mapping[str, object] = {
    field.name: "1970-01-01" if field.name == "committed_at" else 0 if field.name == "partition" else ""
    for field in SCHEMA
}


def _read(run: ArchiveRun, files: Sequence[str]) -> DataFrame:
    reader = run.spark.read.schema(ROWS).option("recursiveFileLookup", "true")
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*files)


@contextmanager
def _written(run: ArchiveRun, rows: DataFrame) -> Iterator[list[_Written]]:
    """The rows as files in their places, of names that no other run gives; what is written beside goes at the end."""
    name = run_name(run.at)
    staging = f"{_STAGING}/{name}"
    # Of the rows' own session: a micro-batch has another than the run.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        arranged(rows).write.partitionBy(*_PLACES).options(**WRITING).parquet(f"{run.store.root}/{staging}")
        run.reach("archive:written")
        written = []
        for number, staged in enumerate(_staged(run, staging)):
            place = dict(part.split("=") for part in str(staged["file"]).split("/")[:-1])
            entity, day = place["entity_"], place["day_"]
            path = f"{ARCHIVE}/entity={entity}/day={day}/{name}-{number:05d}.parquet"
            run.store.move(f"{staging}/{staged['file']}", path)
            written.append(
                _Written(
                    path=path,
                    entity=entity,
                    day=day,
                    rows=staged["rows"],
                    first=staged["first"],
                    last=staged["last"],
                )
            )
        run.reach("archive:moved")
        yield written
    finally:
        run.store.delete(staging)


def _staged(run: ArchiveRun, staging: str) -> list[Row]:
    """Each file that was written beside (`file`, below `staging`), with its rows and its first and last position."""
    file = F.element_at(F.split("_metadata.file_path", f"/{staging}/"), -1)
    return (
        run.spark.read.schema(ROWS)
        .option("recursiveFileLookup", "true")
        .parquet(f"{run.store.root}/{staging}")
        .groupBy(file.alias("file"))
        .agg(F.count(F.lit(1)).alias("rows"), F.min("position").alias("first"), F.max("position").alias("last"))
        .orderBy("file")
        .collect()
    )


def _meanwhile(store: Store, what: str) -> ChangelogError:
    return ChangelogError(Kind.IN_USE, f"{what} by another run in {store.root}", hint="let one run at a time")
