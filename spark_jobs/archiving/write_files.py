"""Writes the files of an archive: sorted, and of a bounded size. They are in place before a manifest lists them."""

from collections.abc import Iterator, Mapping
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
from changelog.spark_jobs.storage.store import Store

FILE_ROWS = 5_000_000
"""A file has at most this many rows."""


_STAGING = f"{ARCHIVE}/.staging"


_FOLDERS = ("entity_", "day_")
"""The columns by which Spark chooses a row's folder."""

_WITH_STATISTICS = frozenset({"entity", "key", "position", "committed_at"})


WRITING = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "9",
    "parquet.block.size": str(32 << 20),
    "maxRecordsPerFile": str(FILE_ROWS),
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in SCHEMA.names if name not in _WITH_STATISTICS},
}
"""The options for Parquet.

Small row groups let readers skip rows. Only the columns in `_WITH_STATISTICS`, by which readers skip, have statistics
in a file's footer. Statistics of the other columns would be of no use to readers. They would also copy the least and
the greatest value of a column into the footer, for example whole states of rows. Compression level 9 makes files a
ninth smaller than Spark's default level does. Writing takes longer, but the files are read for years.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """One run of the job: its Spark session, the archive's store, its start time, and the fail points of tests."""

    spark: SparkSession
    store: Store
    at: datetime
    reach: Reach = nowhere

    def manifest(self) -> Manifest:
        """Returns the newest manifest; an empty one if there is none yet."""
        return newest(self.store) or NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that is in place but not yet listed in a manifest."""

    path: str
    entity: str
    day: str
    rows: int
    first: str
    last: str

    def listed(self, offsets: Mapping[str, tuple[int, int]]) -> ArchiveFile:
        """Returns the file's entry for the manifest."""
        return ArchiveFile(
            path=self.path, entity=self.entity, rows=self.rows, first=self.first, last=self.last, offsets=offsets
        )


def arranged(rows: DataFrame) -> DataFrame:
    """Returns the rows in the form in which files store them: by entity and day, sorted by key and position, without
    repeats.

    Besides the columns of `changelog.envelope.columnar.batch.SCHEMA`, the result has two columns that name a row's
    folder: `entity_` and `day_` (in UTC).
    """
    day = F.expr("date_from_unix_date(cast(floor(unix_micros(committed_at) / 86400000000D) AS int))")
    with_folders = rows.select(
        *(_never_null(name) if not SCHEMA.field(name).nullable else F.col(name) for name in SCHEMA.names),
        F.col("entity").alias("entity_"),
        day.cast("string").alias("day_"),
    )
    order = Window.partitionBy(*_FOLDERS, "key").orderBy("position", "partition")
    identity = F.struct("position", "partition")
    return (
        with_folders.repartition(*_FOLDERS)
        .withColumn("before_", F.lag(identity).over(order))
        .where(F.col("before_").isNull() | (F.col("before_") != identity))
        .drop("before_")
        .sortWithinPartitions(*_FOLDERS, "key", "position", "partition")
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
    """Writes the rows to files with unique names in the archive's folders, and yields these files.

    The files are first written to a staging folder, which is deleted at the end.
    """
    name = run_name(run.at)
    staging = f"{_STAGING}/{name}"
    # This must be set in the session of the rows, because a micro-batch has another session than the run.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    try:
        arranged(rows).write.partitionBy(*_FOLDERS).options(**WRITING).parquet(f"{run.store.root}/{staging}")
        run.reach("archive:written")
        written_files = []
        for number, staged in enumerate(_staged(run, staging)):
            folders = dict(part.split("=") for part in str(staged["file"]).split("/")[:-1])
            entity, day = folders["entity_"], folders["day_"]
            path = f"{ARCHIVE}/entity={entity}/day={day}/{name}-{number:05d}.parquet"
            run.store.move(f"{staging}/{staged['file']}", path)
            written_files.append(
                WrittenFile(
                    path=path,
                    entity=entity,
                    day=day,
                    rows=staged["rows"],
                    first=staged["first"],
                    last=staged["last"],
                )
            )
        run.reach("archive:moved")
        yield written_files
    finally:
        run.store.delete(staging)


def _staged(run: ArchiveRun, staging: str) -> list[Row]:
    """Returns each staged file (its path below `staging`), its number of rows, and its first and last position."""
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
