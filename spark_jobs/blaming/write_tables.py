"""Writes the tables of the job `blame` as Parquet files. Each run replaces the tables of the run before.

A run writes the tables `attributes` and `coverage` into a new folder, `<output>/tables/<run>/`. Then it writes a
record, `<output>/manifest/<n>.json`, that names this folder. Readers use the folder that the newest complete record
names. On a local file system, the link `<output>/current` also leads to this folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from changelog.envelope.errors import ChangelogError
from changelog.spark_jobs.blaming.attribute_rows import ATTRIBUTES
from changelog.spark_jobs.blaming.stamp_kinds import DefaultStamps
from changelog.spark_jobs.blaming.tables import coverage
from changelog.spark_jobs.storage.manifest import numbers
from changelog.spark_jobs.storage.outputs import clear, lead
from changelog.spark_jobs.storage.records import add_record, newest_record, run_name
from changelog.spark_jobs.storage.store import FolderStore

FORMAT: Final = 1
ATTRIBUTES_TABLE: Final = "attributes"
COVERAGE_TABLE: Final = "coverage"
_TABLES: Final = "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameRun:
    """The result of one run, as its record stores it.

    `position` is the position up to which the run read the changelog. `entities` are the entities that it read; None
    means all. `path` is the folder of its tables, and `before` that of the previous run's tables; both are relative to
    the output. `attributes` and `changes` say how many attributes and changes there are of each kind of stamp.
    """

    format: int = FORMAT
    position: str
    entities: tuple[str, ...] | None
    path: str = ""
    before: str = ""
    attributes: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)


def newest(store: FolderStore) -> BlameRun | None:
    """Returns the run of the newest complete record; None if there is none.

    Raises ChangelogError (PRECONDITION) if a newer version of this program wrote the record.
    """
    return newest_record(store, BlameRun, FORMAT)


def write(
    store: FolderStore, rows: DataFrame, changes: DataFrame, run: BlameRun, defaults: DefaultStamps, *, at: datetime
) -> BlameRun:
    """Writes the attributes in `rows`, and the coverage of `changes`. Returns `run` with its folder and its counts.

    1. The attributes are written into a new folder, which nobody reads yet: a folder for each entity, sorted by key.
    2. The coverage is computed from the changes and the stored attributes, and written beside them.
    3. The record with the next number is created. From now on, readers use these tables.
    4. The link `current` is made to lead to them. The tables of the previous run stay, because they may still have
       readers; older tables are deleted.

    Raises ChangelogError (IN_USE) if another run added a record at the same time.
    """
    old_run, record_number = newest(store), max(numbers(store), default=0) + 1
    path = f"{_TABLES}/{run_name(at)}"
    folder = f"{store.root}/{path}"
    spark = rows.sparkSession
    # By default, Spark writes timestamps as INT96, an old form without a time zone, which few other readers know.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    ordered = rows.sortWithinPartitions("entity", "key", "path")
    ordered.write.option("compression", "zstd").partitionBy("entity").parquet(f"{folder}/{ATTRIBUTES_TABLE}")  # 1
    attribute_rows = spark.read.schema(from_arrow_schema(ATTRIBUTES)).parquet(f"{folder}/{ATTRIBUTES_TABLE}")
    coverage(changes, attribute_rows, defaults).write.parquet(f"{folder}/{COVERAGE_TABLE}")  # 2
    counted = _counted(spark.read.parquet(f"{folder}/{COVERAGE_TABLE}"), run)
    new_run = replace(counted, path=path, before=old_run.path if old_run else "")
    try:
        add_record(store, record_number, new_run)  # 3
    except ChangelogError:
        store.delete(path)
        raise
    lead(store, path)  # 4
    clear(store, _TABLES, [new_run.path, new_run.before])
    return new_run


def _counted(rows: DataFrame, run: BlameRun) -> BlameRun:
    counts = rows.groupBy("stamp").agg(F.sum("changes"), F.sum("attributes")).orderBy("stamp").collect()
    return replace(
        run,
        changes={stamp: count for stamp, count, _ in counts if count},
        attributes={stamp: count for stamp, _, count in counts if count},
    )
