"""Writes the files of an archive, sorted and of a bounded size, into their folders. A manifest lists them only later.

The files of a day have the rows of one entity and day. The files of a level have rows of many days, and each of these
files has its own range of keys.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.failpoints import Reach, nowhere
from changelog.envelope.columnar.batch import SCHEMA
from changelog.spark_jobs.reading.read_files import ROWS
from changelog.spark_jobs.storage.manifest import ARCHIVE, NOTHING, ArchiveFile, Manifest, newest
from changelog.spark_jobs.storage.records import run_name
from changelog.spark_jobs.storage.store import FolderStore

FILE_ROWS = 5_000_000
"""A file has at most this many rows."""

LEVEL_ROWS = 1_000_000
"""About how many rows a file of a level has. A reader of one key reads the footer of one such file, of about 200 kB."""

_STAGING = f"{ARCHIVE}/.staging"

_FOLDERS = ("entity_", "day_")
"""The columns by which Spark chooses a row's folder."""

_WITH_STATISTICS = frozenset({"entity", "key", "position", "committed_at"})

_WITH_BLOOM_FILTER = ("key", "identifier")
"""Readers search for values in these columns, so each has a Bloom filter. They have no dictionary, because Parquet's
writer leaves out the Bloom filter of a column that has a dictionary."""

WRITING = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "9",
    "parquet.block.size": str(4 << 20),
    "maxRecordsPerFile": str(FILE_ROWS),
    "parquet.bloom.filter.adaptive.enabled": "true",
    "parquet.bloom.filter.max.bytes": str(64 << 10),
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in SCHEMA.names if name not in _WITH_STATISTICS},
    **{f"parquet.bloom.filter.enabled#{name}": "true" for name in _WITH_BLOOM_FILTER},
    **{f"parquet.enable.dictionary#{name}": "false" for name in _WITH_BLOOM_FILTER},
}
"""The options for Parquet.

A row group is the least that a reader decodes, so it is small: 4 MiB. The writer counts full pages with their
compressed size, so a row group has about 12,000 rows of 1.1 kB. (This version of Parquet's Java writer cannot limit the
number of rows.) Only the columns in `_WITH_STATISTICS`, by which readers skip row groups, have statistics in a file's
footer. Readers have no use for statistics of other columns. Such statistics would also copy the least and the greatest
value of a column into the footer, and these can be whole states of rows. Compression level 9 makes files a ninth
smaller than Spark's default level does. Writing takes longer, but the files are read for years.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """One run of the job: its Spark session, the archive's store, its start time, and the fail points of tests.

    `level_rows` is about how many rows a file of a level has.
    """

    spark: SparkSession
    store: FolderStore
    at: datetime
    reach: Reach = nowhere
    level_rows: int = LEVEL_ROWS

    def manifest(self) -> Manifest:
        """Returns the newest manifest; an empty one if there is none yet."""
        return newest(self.store) or NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that is in place but not yet listed in a manifest."""

    path: str
    entity: str
    rows: int
    first: str
    last: str
    keys: tuple[str, str]

    def listed(self, offsets: Mapping[str, tuple[int, int]]) -> ArchiveFile:
        """Returns the file's entry for the manifest."""
        return ArchiveFile(
            path=self.path,
            entity=self.entity,
            rows=self.rows,
            first=self.first,
            last=self.last,
            offsets=offsets,
            keys=self.keys,
        )


def arranged(rows: DataFrame) -> DataFrame:
    """Returns the rows in the form in which the files of days store them: by entity and day, sorted by key and
    position, without repeats.

    Besides the columns of `changelog.envelope.columnar.batch.SCHEMA`, the result has two columns that name a row's
    folder: `entity_` and `day_` (in UTC).
    """
    by_day = _stored(rows).withColumn("day_", day_of_commit().cast("string"))
    return _sorted(by_day.repartition(*_FOLDERS), _FOLDERS)


def arranged_level(rows: DataFrame, parts: int) -> DataFrame:
    """Returns the rows in the form in which the files of a level store them: in `parts` ranges of entity and key, each
    sorted by key and position, without repeats.

    Besides the columns of `changelog.envelope.columnar.batch.SCHEMA`, the result has the column `entity_`, which names
    a row's folder.
    """
    return _sorted(_stored(rows).repartitionByRange(parts, "entity_", "key"), ("entity_",))


def day_of_commit() -> Column:
    """Returns the day of a row's commit time, in UTC, as a date."""
    return F.expr("date_from_unix_date(cast(floor(unix_micros(committed_at) / 86400000000D) AS int))")


def _stored(rows: DataFrame) -> DataFrame:
    """Returns the columns that files store, and the column `entity_`."""
    return rows.select(
        *(_never_null(name) if not SCHEMA.field(name).nullable else F.col(name) for name in SCHEMA.names),
        F.col("entity").alias("entity_"),
    )


def _sorted(rows: DataFrame, folders: tuple[str, ...]) -> DataFrame:
    """Sorts each partition by folder, key and position, and drops repeats. All rows of a key and folder are in the same
    partition.
    """
    order = Window.partitionBy(*folders, "key").orderBy("position", "partition")
    identity = F.struct("position", "partition")
    return (
        rows.withColumn("before_", F.lag(identity).over(order))
        .where(F.col("before_").isNull() | (F.col("before_") != identity))
        .drop("before_")
        .sortWithinPartitions(*folders, "key", "position", "partition")
    )


def _never_null(name: str) -> Column:
    """Returns the column in a form that is not nullable in Parquet. (Spark treats every column that it reads as
    nullable.)
    """
    return F.coalesce(F.col(name), F.lit(_ZERO[name]).cast(ROWS[name].dataType)).alias(name)


_ZERO: Mapping[str, object] = {
    field.name: "1970-01-01" if field.name == "committed_at" else 0 if field.name == "partition" else ""
    for field in SCHEMA
}


@contextmanager
def write_files(run: ArchiveRun, rows: DataFrame) -> Iterator[list[WrittenFile]]:
    """Writes the rows to files with unique names in the folders of their days, and yields these files.

    The files are first written to a staging folder, which is deleted at the end.
    """
    with _written(run, arranged(rows), lambda part: f"entity={part['entity_']}/day={part['day_']}") as files:
        yield files


@contextmanager
def write_level(
    run: ArchiveRun, rows: DataFrame, days: Mapping[str, tuple[str, str]], *, row_count: int
) -> Iterator[list[WrittenFile]]:
    """Writes the rows to files with unique names, one level for each entity, and yields these files.

    `days` has the first and the last day of each entity's rows. `row_count` is about how many rows there are. The files
    are first written to a staging folder, which is deleted at the end.
    """

    def folder(part: Mapping[str, str]) -> str:
        first, last = days[part["entity_"]]
        return f"entity={part['entity_']}/from={first}/day={last}"

    with _written(run, arranged_level(rows, -(-row_count // run.level_rows)), folder) as files:
        yield files


@contextmanager
def _written(
    run: ArchiveRun, rows: DataFrame, folder_of: Callable[[Mapping[str, str]], str]
) -> Iterator[list[WrittenFile]]:
    """Writes arranged rows, and moves each file to its folder.

    `folder_of` returns the folder for the values of the columns that name it.
    """
    name = run_name(run.at)
    staging = f"{_STAGING}/{name}"
    # This must be set in the session of the rows, because a micro-batch has another session than the run.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    folders = [column for column in _FOLDERS if column in rows.columns]
    try:
        rows.write.partitionBy(*folders).options(**WRITING).parquet(f"{run.store.root}/{staging}")
        run.reach("archive:written")
        written_files = []
        for number, staged in enumerate(_staged(run, staging)):
            part = dict(pair.split("=") for pair in str(staged["file"]).split("/")[:-1])
            path = f"{ARCHIVE}/{folder_of(part)}/{name}-{number:05d}.parquet"
            run.store.move(f"{staging}/{staged['file']}", path)
            written_files.append(
                WrittenFile(
                    path=path,
                    entity=part["entity_"],
                    rows=staged["rows"],
                    first=staged["first"],
                    last=staged["last"],
                    keys=(staged["first_key"], staged["last_key"]),
                )
            )
        run.reach("archive:moved")
        yield written_files
    finally:
        run.store.delete(staging)


def _staged(run: ArchiveRun, staging: str) -> list[Row]:
    """Returns each staged file (its path below `staging`), its number of rows, its first and last position, and its
    first and last key.
    """
    file = F.element_at(F.split("_metadata.file_path", f"/{staging}/"), -1)
    return (
        run.spark.read.schema(ROWS)
        .option("recursiveFileLookup", "true")
        .parquet(f"{run.store.root}/{staging}")
        .groupBy(file.alias("file"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("position").alias("first"),
            F.max("position").alias("last"),
            F.min("key").alias("first_key"),
            F.max("key").alias("last_key"),
        )
        .orderBy("file")
        .collect()
    )
