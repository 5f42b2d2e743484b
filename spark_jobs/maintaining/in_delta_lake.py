"""Keeps a view in a table of Delta Lake. A batch is applied by one MERGE. The metadata of its commit has the progress.

The markers of deleted keys are in a second table, `<path>__deleted`. A batch writes this table first. If a run is
killed after that, the next run applies the same changes again, and ignores the states that are older than the markers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from changelog.connectors.failpoints import Reach
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.states import fold
from changelog.schemas.avro import Column
from changelog.spark_jobs.maintaining.progress import REBUILD
from changelog.spark_jobs.maintaining.target import StateBatch, TargetSettings
from changelog.spark_jobs.reading.spark_types import quoted
from changelog.spark_jobs.storage.open_store import store_of
from changelog.spark_jobs.views import to_delta_lake
from changelog.spark_jobs.views.transforms import schema_of

MARK: Final = "changelog maintained view, deleted keys"
"""The metadata of all commits to the table of markers. By it, the job recognises the table as its own."""

_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"

_SKIPS_EMPTY: Final = "spark.databricks.delta.skipRecordingEmptyCommits"
"""An option that must be false: otherwise, a MERGE that changes no row makes no commit, and so stores no progress."""

_COMMITS_SEARCHED: Final = 20
"""How many of the newest commits are read before each batch, to find the newest one that wrote rows. The batch is
refused if another run made it.
"""

_MARKERS: Final = "key string, position string, at timestamp"

_NEWER: Final = "now._position > was._position"


@contextmanager
def opened(settings: TargetSettings) -> Iterator["DeltaTarget"]:
    """Opens the table at a path or URI. If two runs write to the table at the same time, one of them fails.

    Raises ChangelogError (USAGE) for wrong settings.
    """
    if settings.dsn is not None:
        raise ChangelogError(Kind.USAGE, "--output delta needs no --dsn", hint="leave it out")
    spark = SparkSession.active()
    root = store_of(settings.to.rstrip("/"), spark).root
    yield DeltaTarget(spark, root, settings.reach)


class DeltaTarget:
    """The table of a view, and the table with the markers of deleted keys."""

    def __init__(self, spark: SparkSession, path: str, reach: Reach) -> None:
        self._spark, self._path, self._reach = spark, path, reach
        self._markers = f"{path}__deleted"
        self._last_progress = ""

    def progress(self) -> str | None:
        """Returns the progress in the newest commit; None if there is no table.

        Raises ChangelogError: PRECONDITION if the table of markers is missing, USAGE if this job did not make it.
        """
        if to_delta_lake.newest_metadata(self._spark, self._markers) not in (None, MARK):
            raise ChangelogError(
                Kind.USAGE,
                f"the table {self._markers} was not made by this job",
                hint="use another --to: this job keeps its markers of deleted keys there",
            )
        progress = to_delta_lake.newest_metadata(self._spark, self._path)
        if progress is not None and to_delta_lake.table_at(self._spark, self._markers) is None:
            raise ChangelogError(Kind.PRECONDITION, f"the table {self._markers} of the view is missing", hint=REBUILD)
        self._last_progress = progress or ""
        return progress

    def create(self, columns: Sequence[Column], progress: str) -> None:
        """Writes the two tables without rows, first the table of markers."""
        to_delta_lake.refuse_names(column.name for column in columns)
        schema = from_arrow_schema(schema_of(columns))
        empty = self._spark.createDataFrame([], schema).drop(fold.BEGUN)
        _overwrite(self._spark.createDataFrame([], _MARKERS), self._markers, MARK)
        _overwrite(empty, self._path, progress)
        self._last_progress = progress

    def apply(self, batch: StateBatch) -> None:
        """Applies a batch.

        1. The markers of deleted keys are written.
        2. The rows are merged. The same commit stores the progress.

        Raises ChangelogError (IN_USE) if another run has written to the table since this run last read or wrote it.
        """
        spark = batch.states.sparkSession  # a micro-batch has a session of its own
        self._refuse_written(spark)
        if batch.has_deletes:
            self._mark(spark, batch.states)  # 1
        self._reach("view:staged")
        markers = to_delta_lake.read(spark, self._markers)
        is_older = (F.col("now._key") == F.col("marker.key")) & (F.col("now._position") < F.col("marker.position"))
        states = batch.states.alias("now").join(markers.alias("marker"), is_older, "left_anti").alias("now")
        names = [*(column.name for column in batch.columns), *fold.ABOUT.names]
        merge = _merge(spark, self._path, states)
        merge = merge.whenMatched(f"now._op = '{Op.DELETE.value}' AND {_NEWER}").delete()
        merge = merge.whenMatched(_NEWER).updateExpr(_merged(names, batch.truncated))
        inserted = {quoted(name): f"now.{quoted(name)}" for name in names}
        merge = merge.whenNotMatched(f"now._op <> '{Op.DELETE.value}'").insertExpr(inserted)
        if batch.truncated is not None:
            merge = merge.whenNotMatchedBySource(f"was._position < '{batch.truncated}'").delete()
        _commit(spark, merge, batch.progress)  # 2
        self._last_progress = batch.progress

    def _refuse_written(self, spark: SparkSession) -> None:
        newest = to_delta_lake.newest_metadata(spark, self._path, commits_max=_COMMITS_SEARCHED)
        if newest and newest != self._last_progress:
            raise ChangelogError(
                Kind.IN_USE, f"another run has written {self._path}", hint="let only one run at a time write a table"
            )

    def forget(self, before: datetime) -> None:
        """Removes the markers of deletes that were applied before this time."""
        is_old = f"at < timestamp'{before.isoformat()}'"
        if not to_delta_lake.read(self._spark, self._markers).where(is_old).isEmpty():
            self._spark.conf.set(_METADATA, MARK)
            try:
                _table(self._spark, self._markers).delete(is_old)
            finally:
                self._spark.conf.unset(_METADATA)

    def _mark(self, spark: SparkSession, states: DataFrame) -> None:
        deleted = states.where(F.col("_op") == Op.DELETE.value).select(
            F.col("_key"), F.col("_position"), F.current_timestamp().alias("at")
        )
        values = {"key": "now._key", "position": "now._position", "at": "now.at"}
        merge = _merge(spark, self._markers, deleted.alias("now"), on="was.key = now._key")
        merge = merge.whenMatched("now._position > was.position").updateExpr(values)
        _commit(spark, merge.whenNotMatched().insertExpr(values), MARK)


def _table(spark: SparkSession, path: str) -> Any:
    table = to_delta_lake.table_at(spark, path)
    if table is None:
        raise ChangelogError(Kind.STORAGE, f"the table {path} is gone", hint=REBUILD)
    return table


def _merge(spark: SparkSession, path: str, states: DataFrame, on: str = "was._key = now._key") -> Any:
    return _table(spark, path).alias("was").merge(states._jdf, on)


def _commit(spark: SparkSession, merge: Any, metadata: str) -> None:
    spark.conf.set(_METADATA, metadata)
    spark.conf.set(_SKIPS_EMPTY, "false")
    try:
        merge.execute()
    finally:
        spark.conf.unset(_METADATA)
        spark.conf.unset(_SKIPS_EMPTY)


def _overwrite(rows: DataFrame, path: str, metadata: str) -> None:
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.option("userMetadata", metadata).save(path)


def _merged(names: Sequence[str], truncated: str | None) -> Mapping[str, str]:
    """Returns the SQL for the new value of each column, for a row that a state replaces.

    Values that the state lacks are taken from the row, but not if `_begun` is true, or if a truncate came after the
    row.
    """
    continues = "NOT now._begun" if truncated is None else f"NOT now._begun AND was._position > '{truncated}'"
    values = {}
    for name in names:
        column = quoted(name)
        match name:
            case "_unavailable":
                new_value = f"array_sort(array_intersect(now.{column}, was.{column}))"
            case "_out_of_range":
                new_value = f"array_sort(array_union(now.{column}, array_intersect(was.{column}, now._unavailable)))"
            case _ if name in fold.ABOUT.names:
                new_value = f"now.{column}"
            case _:
                literal = name.replace("\\", "\\\\").replace("'", "\\'")
                new_value = f"if(array_contains(now._unavailable, '{literal}'), was.{column}, now.{column})"
        values[column] = f"if({continues}, {new_value}, now.{column})"
    return values
