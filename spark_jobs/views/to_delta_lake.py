"""Writes a view as a table of Delta Lake, in one commit for each run.

The metadata of the commit has the view's definition and position. A commit replaces all rows at once, so readers always
see a complete view; earlier versions stay until VACUUM. A table is never replaced if another program wrote its newest
rows. The table's history is read through Delta's Java classes, because Delta's SQL needs settings that a session may
lack.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.runner.spark_errors import PACKAGES
from changelog.spark_jobs.views.to_parquet import FORMAT, View, counted

_KEEPING: Final = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "FSCK"}
)
"""Operations in a table's history that do not change rows."""

_REFUSED_IN_NAMES: Final = re.compile(r"[ ,;{}()\n\t=]")
_CONFIGURED: Final = "spark.databricks.delta.requiredSparkConfsCheck.enabled"


def newest(spark: SparkSession, path: str) -> View | None:
    """Returns the view in the table; None if there is no table.

    Raises ChangelogError: USAGE if this job did not write the table, or if Spark has no Delta Lake; PRECONDITION if a
    newer program wrote the table.
    """
    metadata = newest_metadata(spark, path)
    return None if metadata is None else _view(metadata, path)


def newest_metadata(spark: SparkSession, path: str, *, commits_max: int | None = None) -> str | None:
    """Returns the metadata of the newest commit that wrote rows; None if there is no table.

    The result is empty if that commit has no metadata, or if the history no longer has the commit. With `commits_max`,
    at most this many commits are read, the newest ones. Raises ChangelogError (USAGE) if Spark has no Delta Lake.
    """
    table = table_at(spark, path)
    if table is None:
        return None
    history = table.history() if commits_max is None else table.history(commits_max)
    for row in DataFrame(history, spark).select("operation", "userMetadata").collect():
        if row["operation"] not in _KEEPING:
            return row["userMetadata"] or ""
    return ""


def table_at(spark: SparkSession, path: str) -> Any:
    """Returns the table as an object of Delta's Java class; None if there is no table.

    Raises ChangelogError (USAGE) if Spark has no Delta Lake.
    """
    spark.conf.set(_CONFIGURED, "false")  # we use paths only: no catalogue, and no SQL of Delta's
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession  # pyspark's own access to its Java session
    try:
        tables = jvm.io.delta.tables.DeltaTable
        return tables.forPath(session, path) if tables.isDeltaTable(session, path) else None
    except TypeError:  # if the class is missing, py4j returns a package, which cannot be called
        hint = f"add to spark-submit: --packages {PACKAGES['delta']}"
        raise ChangelogError(Kind.USAGE, "Spark has no delta", hint=hint) from None


def read(spark: SparkSession, path: str) -> DataFrame:
    """Returns the view's present rows."""
    return spark.read.format("delta").load(path)


def write(rows: DataFrame, view: View, path: str) -> View:
    """Replaces all rows of the table in one commit. `view` becomes the commit's metadata. Returns the view with its
    counts.

    Raises ChangelogError (USAGE) for a column name that Delta Lake does not support by default.
    """
    refuse_names(rows.columns)
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.option("userMetadata", msgspec.json.encode(view).decode()).save(path)
    return counts(rows.sparkSession, view, path)


def refuse_names(names: Iterable[str]) -> None:
    """Raises ChangelogError (USAGE) for a column name that Delta Lake does not support by default."""
    for name in names:
        if _REFUSED_IN_NAMES.search(name):
            hint = "set `columns` of [views.NAME] without this column, or use another --output"
            raise ChangelogError(Kind.USAGE, f"Delta Lake takes no column named {name!r}", hint=hint)


def same(present: View, view: View) -> bool:
    """Returns whether `present` is the same view as `view`. Then a repeated run need not write it again."""
    return (present.definition, present.position) == (view.definition, view.position)


def counts(spark: SparkSession, view: View, path: str) -> View:
    """Returns `view` with its counts: of rows in the table, and of values that are out of range or unavailable."""
    return counted(read(spark, path), view)


def _view(metadata: str, path: str) -> View:
    try:
        view = msgspec.json.decode(metadata, type=View)
    except msgspec.DecodeError:
        message = f"the rows of {path} are not a view that this job wrote"
        hint = "name another path: this job replaces only tables that it wrote"
        raise ChangelogError(Kind.USAGE, message, hint=hint) from None
    if view.format > FORMAT:
        raise ChangelogError(Kind.PRECONDITION, f"{path} was written by a newer program", hint="upgrade this program")
    return view
