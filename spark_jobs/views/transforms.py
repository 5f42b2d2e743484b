"""Transforms changes into views. A view has the last state of each key, with typed values, as of a position.

The functions here only make DataFrames and columns; they read, write and count no rows. DataFrames of changes have the
columns of `changelog.envelope.columnar.batch.SCHEMA`. DataFrames of states have the entity's columns, and then those of
`changelog.envelope.states.fold.ABOUT`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from typing import Final

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ServiceChoice
from changelog.envelope.states import fold
from changelog.envelope.states.newest_changes import COMMITTED_AT, TAIL_BYTES
from changelog.schemas.avro import Column
from changelog.spark_jobs.reading.provenance import source_text
from changelog.spark_jobs.reading.spark_types import of_columns, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Chooses changes by their service (`ServiceChoice`) and their API version. By default, all changes are included.

    A change that is not included is ignored, as if it had never been made. So a truncate by a dropped service removes
    nothing.
    """

    keep_services: tuple[str, ...] = ()
    drop_services: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()

    @property
    def services(self) -> ServiceChoice:
        """The choice by service."""
        return ServiceChoice(keep=self.keep_services, drop=self.drop_services)


EVERYTHING = Chosen()

_UNAVAILABLE: Final = '"unavailable":'
_JSON_NULL: Final = '"jsonNull":'
_UNCHANGED: Final = tuple(name for name in fold.CHANGES if name not in ("gaps", fold.WHOLE))


def until(changes: DataFrame, position: Position | None) -> DataFrame:
    """Returns the changes up to and including `position`; all changes if `position` is None."""
    return changes if position is None else changes.where(F.col("position") <= str(position))


def chosen(changes: DataFrame, choice: Chosen) -> DataFrame:
    """Returns the changes that this choice includes."""
    return changes.where(is_chosen(choice))


def is_chosen(choice: Chosen) -> Expression:
    """Returns the condition that the choice includes a change."""
    service, version = F.col("service_name"), F.col("api_version")
    is_named = service.isin(*choice.services.names)
    conditions = [
        *([is_named if choice.services.is_of_kept else ~is_named] if choice.services.names else []),
        *([version.isin(*choice.api_versions)] if choice.api_versions else []),
    ]
    return reduce(and_, conditions, F.lit(True))


def latest(changes: DataFrame, columns: Sequence[Column], *, raw: bool = False) -> DataFrame:
    """Returns the last state of each key of one entity. Deleted keys are included; `live` removes them.

    Keys whose rows a truncate removed are left out, and repeated changes are ignored. The position decides which change
    of a key is the last, even if its changes are in different partitions. Raises ChangelogError (USAGE) if a column has
    the same name as another one or as a column of `ABOUT`.
    """
    return folded(_without_truncated(changes), columns, raw=raw)


def folded(
    changes: DataFrame, columns: Sequence[Column], *, raw: bool = False, from_one_partition: bool = False
) -> DataFrame:
    """Does the same as `latest`, but needs one Spark job less. `changes` must contain no truncates, and no changes
    before a truncate. With `from_one_partition`, a state has only values from the partition of the key's newest change.
    """
    schema = schema_of(columns, raw=raw)
    fold_states = partial(fold.fold, columns=tuple(columns), schema=schema, raw=raw)
    newest = _newest(changes, from_one_partition=from_one_partition)
    return newest.mapInArrow(fold_states, from_arrow_schema(schema))


def in_other_partitions(changes: DataFrame, keys: DataFrame) -> DataFrame:
    """Returns those changes of the keys that are not in the partition of the key's newest change. `keys` has the
    columns `entity` and `key`.
    """
    by_key = Window.partitionBy("entity", "key").orderBy(F.desc("position"))
    is_other = F.col("partition") != F.first("partition").over(by_key)
    changes_of_keys = changes.join(keys, ["entity", "key"], "left_semi").withColumn("_is_other", is_other)
    return changes_of_keys.where("_is_other").select(*changes.columns)


def live(states: DataFrame) -> DataFrame:
    """Returns the states of those keys that are not deleted, without the column `fold.BEGUN`."""
    return states.where(F.col("_op") != Op.DELETE.value).drop(fold.BEGUN)


def followed(view: DataFrame, changes: DataFrame, columns: Sequence[Column], *, raw: bool = False) -> DataFrame:
    """Returns what `live(latest(…))` would return for all changes, but computes it from an earlier `view` and the
    `changes` after this view.
    """
    if fold.CONTEXT not in view.columns:  # an older version of the job made the view, when changes had no context
        view = view.withColumn(fold.CONTEXT, F.lit(None).cast("string"))
    remaining = _without_truncated(_renamed(view, ("_key", "key"), ("_position", "position")), changes)
    old_states = _renamed(remaining, ("key", "_key"), ("position", "_position")).alias("was")
    new_states = latest(changes, columns, raw=raw).alias("now")
    joined = old_states.join(new_states, F.col("was._key") == F.col("now._key"), "full_outer")
    merged = [_merged(name).alias(name) for name in [*(column.name for column in columns), *fold.ABOUT.names]]
    return joined.select(*merged).where(F.col("_op") != Op.DELETE.value)


def nested(outer: DataFrame, member: str, inner: DataFrame, on: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    """Returns the rows of `outer` with an additional column, the array `member`. It has the rows of `inner` that belong
    to the outer row, sorted by key.

    `on` maps columns of `inner` to columns of `outer`. An inner row belongs to an outer row if the two have equal
    values in all these pairs of columns. The rows in the array have only `columns`.
    """
    row = F.struct("_key", F.struct(*(F.col(quoted(name)) for name in columns)).alias("row"))
    aliases = {f"_on_{number}": name for number, name in enumerate(on)}
    grouped = inner.groupBy(*(F.col(quoted(name)).alias(alias) for alias, name in aliases.items()))
    arrays = grouped.agg(
        F.transform(F.array_sort(F.collect_list(row), _by_key), lambda entry: entry["row"]).alias(member)
    )
    conditions = [F.col(quoted(on[name])) == F.col(alias) for alias, name in aliases.items()]
    joined = outer.join(arrays, reduce(and_, conditions), "left_outer").drop(*aliases)
    empty = F.array().cast(arrays.schema[member].dataType)
    return joined.withColumn(member, F.coalesce(F.col(quoted(member)), empty))


def _by_key(left: Expression, right: Expression) -> Expression:
    return F.when(left["_key"] < right["_key"], -1).when(left["_key"] > right["_key"], 1).otherwise(0)


def schema_of(columns: Sequence[Column], *, raw: bool = False) -> pa.Schema:
    """Returns the schema of a DataFrame of states with these columns. Raises ChangelogError (USAGE) if two columns
    would have the same name.
    """
    reserved_names = {name.lower() for name in fold.ABOUT.names}
    used_names: set[str] = set()
    for column in columns:
        if column.name.lower() in reserved_names | used_names:
            raise ChangelogError(
                Kind.USAGE,
                f"a view cannot have the column {column.name}: another column has this name",
                hint="names must differ in more than case; views add columns that begin with _ (docs/how-to/spark.md)",
            )
        used_names.add(column.name.lower())
    nullable_columns = [Column(name=column.name, type=column.type, nullable=True) for column in columns]
    spark_type = (
        StructType([StructField(column.name, StringType()) for column in nullable_columns])
        if raw
        else of_columns(nullable_columns)
    )
    return pa.schema([*to_arrow_schema(spark_type), *fold.ABOUT, fold.BEGUN_FIELD])


def _without_truncated(rows: DataFrame, changes: DataFrame | None = None) -> DataFrame:
    """Returns the rows that no truncate removed. The truncates are those in `changes`, or in `rows` if `changes` is
    None.

    They are found fast: truncates have a reserved key, and the statistics in files show which files have it.
    """
    truncates = (rows if changes is None else changes).where(F.col("key") == TRUNCATE_KEY)
    last_truncate = truncates.agg(F.coalesce(F.max("position"), F.lit("")).alias("_truncated"))
    joined_rows = rows.where(F.col("key") != TRUNCATE_KEY).crossJoin(F.broadcast(last_truncate))
    return joined_rows.where(F.col("position") > F.col("_truncated")).drop("_truncated")


def _newest(changes: DataFrame, *, from_one_partition: bool) -> DataFrame:
    """Returns the newest change of each key. If it lacks values, also returns the changes before it, back to one that
    has all values. With `from_one_partition`, leaves out the changes in other partitions than that of the newest one.
    """
    gaps = _gaps(F.col("provenance"))
    by_key = Window.partitionBy("key").orderBy(F.desc("position"))
    newer = by_key.rowsBetween(Window.unboundedPreceding, -1)
    partition = ["partition"] if from_one_partition else []
    marked = changes.select(*_UNCHANGED, gaps.alias("gaps"), lacks_values().alias("_lacks"), *partition)
    if from_one_partition:
        is_own = F.col("partition") == F.first("partition").over(by_key)
        marked = marked.withColumn("_is_own", is_own).where("_is_own")
    has_newer_whole = F.max(~F.col("_lacks")).over(newer)
    is_whole = (F.row_number().over(by_key) == 1) & ~F.col("_lacks")
    return (
        marked.withColumns({"_ended": has_newer_whole, fold.WHOLE: is_whole})
        .where("_ended IS NOT TRUE")
        .select(*fold.CHANGES)
    )


def lacks_values() -> Expression:
    """Returns the condition that the state of a change lacks values, because the database's log did not send them."""
    has_gaps = _gaps(F.col("provenance")).isNotNull() & source_text().contains(_UNAVAILABLE)
    return F.coalesce(has_gaps & (F.col("op") != Op.DELETE.value), F.lit(False))


def _gaps(provenance: Expression) -> Expression:
    """Returns the provenance if it names unavailable values or JSON nulls, otherwise null.

    If a provenance ends with the commit time, it names no such values. Nearly all provenances end in this way. So their
    last bytes are compared first, and only the others are searched.
    """
    tail = F.substring(provenance.cast("binary"), -TAIL_BYTES, len(COMMITTED_AT))
    has_gaps = source_text().contains(_UNAVAILABLE) | source_text().contains(_JSON_NULL)
    return F.when(tail == F.lit(COMMITTED_AT), None).when(has_gaps, provenance)


def _merged(name: str) -> Expression:
    """Returns the merged value of a column. This is the old state's value if there is no new state, or if the new state
    lacks the value and its `_begun` is false; otherwise, it is the new state's value. The lists `_unavailable` and
    `_out_of_range` are merged so that they fit the values of the other columns.
    """
    old_value, new_value = _column("was", name), _column("now", name)
    is_new = F.col("now._key").isNotNull()
    continues = is_new & F.col("was._key").isNotNull() & ~F.col(f"now.{fold.BEGUN}")
    unavailable_names = F.col("now._unavailable")
    match name:
        case "_unavailable":
            continued = F.array_intersect(new_value, old_value)
        case "_out_of_range":
            continued = F.array_sort(F.array_union(new_value, F.array_intersect(old_value, unavailable_names)))
        case _ if name in fold.ABOUT.names:
            continued = new_value
        case _:
            continued = F.when(F.array_contains(unavailable_names, name), old_value).otherwise(new_value)
    return F.when(continues, continued).when(is_new, new_value).otherwise(old_value)


def _renamed(frame: DataFrame, *names: tuple[str, str]) -> DataFrame:
    return frame.withColumnsRenamed(dict(names))


def _column(side: str, name: str) -> Expression:
    return F.col(f"{side}.{quoted(name)}")
