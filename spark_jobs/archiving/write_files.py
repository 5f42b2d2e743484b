"""Writes the files of an archive: sorted, of a bounded size, in their places before a manifest lists them."""

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
"""The most rows in a file."""


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
"""Parquet options: small row groups let readers skip, and no footer statistics contain parts of a row's state.

Level 9 makes files a ninth smaller than Spark's default, which pays for files that are read for years.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRun:
    """One run of the job: its session, the archive's store, its start time, and the fail points of tests."""

    spark: SparkSession
    store: Store
    at: datetime
    reach: Reach = nowhere

    def manifest(self) -> Manifest:
        """The newest manifest; an empty one at first."""
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
        """The file's entry for the manifest."""
        return ArchiveFile(
            path=self.path, entity=self.entity, rows=self.rows, first=self.first, last=self.last, offsets=offsets
        )


def arranged(rows: DataFrame) -> DataFrame:
    """The rows as the files hold them: grouped by entity and day, sorted by key and position, without repeats.

    Two columns beside those of `changelog.envelope.columnar.batch.SCHEMA` name the folder: `entity_` and `day_` (UTC).
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
    """The column as non-nullable in Parquet; Spark treats every column that it reads as nullable."""
    return F.coalesce(F.col(name), F.lit(_ZERO[name]).cast(ROWS[name].dataType)).alias(name)


_ZERO: Mapping[str, object] = {
    field.name: "1970-01-01" if field.name == "committed_at" else 0 if field.name == "partition" else ""
    for field in SCHEMA
}


@contextmanager
def write_files(run: ArchiveRun, rows: DataFrame) -> Iterator[list[WrittenFile]]:
    """Writes the rows as files with unique names, in their places; the staging folder is deleted at the end."""
    name = run_name(run.at)
    staging = f"{_STAGING}/{name}"
    # Set in the rows' own session: a micro-batch's session is not the run's.
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
        yield written
    finally:
        run.store.delete(staging)


def _staged(run: ArchiveRun, staging: str) -> list[Row]:
    """Each staged file (`file`, below `staging`) with its number of rows and its first and last position."""
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
