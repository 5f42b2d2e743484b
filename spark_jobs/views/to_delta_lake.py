"""Writes a view as a table of Delta Lake: each run is one commit, whose metadata is the view's record.

A commit replaces all rows at once, so readers see one complete view; earlier versions stay until VACUUM. A table whose
newest rows another program wrote is never replaced. The history is read through Delta's Java classes, because its SQL
needs settings that a session may lack.
"""

import re
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.runner.spark_errors import PACKAGES
from changelog.spark_jobs.views.to_parquet import FORMAT, View, counted

_KEEPING: Final = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "FSCK"}
)
"""Operations that do not change rows."""

_UNNAMED: Final = re.compile(r"[ ,;{}()\n\t=]")
_CONFIGURED: Final = "spark.databricks.delta.requiredSparkConfsCheck.enabled"


def newest(spark: SparkSession, path: str) -> View | None:
    """The view in the table; None if there is no table.

    Raises ChangelogError: USAGE for a table that this job did not write, or if Spark has no Delta Lake; PRECONDITION if
    a newer program wrote it.
    """
    spark.conf.set(_CONFIGURED, "false")  # we use paths only: no catalogue, and no SQL of Delta's
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession  # pyspark's own access to its Java session
    try:
        tables = jvm.io.delta.tables.DeltaTable
        if not tables.isDeltaTable(session, path):
            return None
    except TypeError:  # py4j gives a package, which cannot be called, if the class is missing
        hint = f"add to spark-submit: --packages {PACKAGES['delta']}"
        raise ChangelogError(Kind.USAGE, "Spark has no delta", hint=hint) from None
    history = DataFrame(tables.forPath(session, path).history(), spark)
    for row in history.select("operation", "userMetadata").collect():
        if row["operation"] not in _KEEPING:
            return _view(row["userMetadata"], path)
    return None


def read(spark: SparkSession, path: str) -> DataFrame:
    """The view's rows, as they are now."""
    return spark.read.format("delta").load(path)


def write(rows: DataFrame, view: View, path: str) -> View:
    """Replaces the table's rows in one commit with the view as its metadata; returns the view with its counts.

    Raises ChangelogError (USAGE) for a column name that Delta Lake does not support by default.
    """
    for name in rows.columns:
        if _UNNAMED.search(name):
            hint = "leave it out by `columns` of a view, or write files"
            raise ChangelogError(Kind.USAGE, f"Delta Lake takes no column named {name!r}", hint=hint)
    writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.option("userMetadata", msgspec.json.encode(view).decode()).save(path)
    return counts(rows.sparkSession, view, path)


def same(present: View, view: View) -> bool:
    """Whether the table holds the view already: a repeated run commits nothing."""
    return (present.definition, present.position) == (view.definition, view.position)


def counts(spark: SparkSession, view: View, path: str) -> View:
    """The view in the table, with its counts."""
    return counted(read(spark, path), view)


def _view(metadata: str | None, path: str) -> View:
    try:
        view = msgspec.json.decode(metadata or "", type=View)
    except msgspec.DecodeError:
        message = f"the rows of {path} are not a view that this job wrote"
        hint = "name another path: this job replaces only tables that it wrote"
        raise ChangelogError(Kind.USAGE, message, hint=hint) from None
    if view.format > FORMAT:
        raise ChangelogError(Kind.PRECONDITION, f"{path} was written by a newer program", hint="upgrade this one")
    return view
