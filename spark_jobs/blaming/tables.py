"""Makes the tables of the job `blame` from changes.

Two kinds of changes are rare: truncates, and moves of rows to another key. The functions here read these changes when
they are called, on the driver. Otherwise, they only make DataFrames from DataFrames, and read no rows.
"""

from collections.abc import Mapping
from functools import partial, reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op
from changelog.spark_jobs.blaming.attribute_rows import ATTRIBUTES, ORIGIN, attribute_rows
from changelog.spark_jobs.blaming.origins import moves_of, spans_of, with_origins
from changelog.spark_jobs.blaming.stamp_kinds import CHANGE_COLUMNS, STAMPED, DefaultStamps, stamped

_GROUP: Final = ("entity", "day", "service_name", "stamp")

_CONTENT: Final = ("provenance", "current", "original", "moved", "context")
"""The columns of a change that are needed only if no truncate followed the change."""

COVERAGE: Final = (*_GROUP, "changes", "attributes")
"""The columns of `coverage`. The table has a row for each entity, day (UTC), service and kind of stamp.

`changes` is the number of changes of this entity, day, service and kind. `attributes` is the number of attributes that
still have the value that one of these changes set.
"""


def truncates_of(changes: DataFrame) -> dict[str, str]:
    """Reads the position of the last truncate of each entity that was truncated.

    This reads almost nothing: truncates have a reserved key, and the statistics in files show which files have it.
    """
    truncates = changes.where(F.col("key") == TRUNCATE_KEY).groupBy("entity").agg(F.max("position").alias("position"))
    return {row["entity"]: row["position"] for row in truncates.collect()}


def attributes(
    spark: SparkSession, changes: DataFrame, truncates: Mapping[str, str], defaults: DefaultStamps
) -> DataFrame:
    """Returns the attributes (`ATTRIBUTES`) of all rows that exist after these changes.

    `truncates` is the result of `truncates_of`. The moves to another key are read during this call; all other changes
    are read only when the result is read. Raises ChangelogError (LIMIT) if there are too many moves.
    """
    spans = spans_of(moves_of(changes))
    by_row = with_origins(_without_truncated(changes, truncates).select(*SCHEMA.names), spans, spark)
    identity = ("entity", *ORIGIN)
    sorted_rows = by_row.repartition(*identity).sortWithinPartitions(*identity, "position")
    return sorted_rows.mapInArrow(partial(attribute_rows, defaults=defaults), from_arrow_schema(ATTRIBUTES))


def coverage(changes: DataFrame, rows: DataFrame, defaults: DefaultStamps) -> DataFrame:
    """Returns a table with the columns `COVERAGE`. `rows` is the result of `attributes` for these changes.

    The result has one partition. The messages of a table read do not count as changes. A move of a row has several
    messages, and so has a truncate, but each move and each truncate counts as one change.
    """
    is_change = (F.col("op") != Op.READ.value) & ~F.coalesce(F.col("moved").contains('"movedFrom"'), F.lit(False))
    made_changes = changes.where(is_change).select(*CHANGE_COLUMNS)
    kinds = made_changes.mapInArrow(partial(stamped, defaults=defaults), from_arrow_schema(STAMPED))
    once = kinds.dropDuplicates(["entity", "position"])
    by_change = once.select(*_GROUP, F.lit(1).alias("changes"), F.lit(0).alias("attributes"))
    day = F.to_date("committed_at").alias("day")
    by_attribute = rows.select("entity", day, "service_name", "stamp", F.lit(0), F.lit(1))
    sums = [F.sum(name).alias(name) for name in COVERAGE[len(_GROUP) :]]
    counts = by_change.unionAll(by_attribute).groupBy(*_GROUP).agg(*sums)
    return counts.coalesce(1).sortWithinPartitions(*_GROUP)


def _without_truncated(changes: DataFrame, truncates: Mapping[str, str]) -> DataFrame:
    """Removes the truncates. If a truncate followed a change, the columns `_CONTENT` of this change become null. The
    change then only says that a row was there, and is gone.
    """
    rows = changes.where(F.col("key") != TRUNCATE_KEY)
    if not truncates:
        return rows
    stands = reduce(
        and_,
        ((F.col("entity") != entity) | (F.col("position") > position) for entity, position in truncates.items()),
    )
    return rows.withColumns({name: F.when(stands, F.col(name)) for name in _CONTENT})
