"""Writes the files of an archive into their folders. The files are sorted, and their size is bounded. They become
visible only later, when a manifest lists them.

A file of a day has rows of one entity and day. A file of a level has rows of one entity and many days; each of the
level's files has its own range of keys.
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
"""About how many rows a file of a level has. A reader that needs one key reads the footer of one of these files. The
footer has about 200 kB if the file has this many rows.
"""

_STAGING = f"{ARCHIVE}/.staging"

_FOLDERS = ("entity_", "day_")
"""The columns whose values determine the folder of a row."""

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

Readers always decode whole row groups, so row groups are small: 4 MiB. To see whether a row group is full, the writer
adds up the compressed sizes of its finished pages, so a row group has about 12,000 rows of 1.1 kB. (This version of
Parquet's Java writer cannot limit the number of rows.) The footer of a file has statistics only of the columns in
`_WITH_STATISTICS`. With these, readers skip row groups. Statistics of other columns would be of no use, and would make
the footer large: they have the least and the greatest value of a column, and these values can be whole states of rows.
Compression level 9 makes files a ninth smaller than Spark's default level does. Writing takes longer, but the files are
read for years.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """One run of the job: its Spark session, the store of the archive, the time at which the run started (`at`), and
    the function by which tests make it crash (`reach`).

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
    """A file that is in its folder, but not yet in a manifest. `first` and `last` are the positions of its first and
    its last change, and `keys` are its least and its greatest key.
    """

    path: str
    entity: str
    rows: int
    first: str
    last: str
    keys: tuple[str, str]

    def listed(self, offsets: Mapping[str, tuple[int, int]]) -> ArchiveFile:
        """Returns the entry by which a manifest lists the file."""
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
    """Returns the rows as the files of days store them: divided by entity and day, sorted by key and position, without
    repeats.

    In addition to the columns of `changelog.envelope.columnar.batch.SCHEMA`, the result has the columns `entity_` and
    `day_` (in UTC), which determine the folder of a row.
    """
    by_day = _stored(rows).withColumn("day_", day_of_commit().cast("string"))
    return _sorted(by_day.repartition(*_FOLDERS), _FOLDERS)


def arranged_level(rows: DataFrame, parts: int) -> DataFrame:
    """Returns the rows as the files of a level store them: divided into `parts` ranges of entity and key, sorted by key
    and position within each range, without repeats.

    In addition to the columns of `changelog.envelope.columnar.batch.SCHEMA`, the result has the column `entity_`, which
    determines the folder of a row.
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
    """Sorts each partition by folder, key and position, and drops repeats. All rows with the same key and folder must
    be in the same partition.
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
    """Returns the column in a form that Spark does not write as nullable. (Spark treats every column that it reads as
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
    """Writes the rows to files with unique names, as one level for each entity, and yields these files.

    `days` has, for each entity, the first and the last day of its rows. `row_count` is about how many rows there are.
    The files are first written to a staging folder, which is deleted at the end.
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
    """Writes rows that `arranged` or `arranged_level` returned, and moves each file to its folder.

    `folder_of` returns the folder of a file. Its argument has the values of the columns that determine the folder.
    """
    name = run_name(run.at)
    staging = f"{_STAGING}/{name}"
    # This must be set in the session to which the rows belong, because a micro-batch has another session than the run.
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
    """Returns a row for each staged file: its path below `staging`, how many rows it has, its first and last position,
    and its first and last key.
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
