"""Writes a view as Parquet files. Each run writes a new folder, and then a record that names this folder.

The record, `<output>/manifest/<n>.json`, has the folder, the view's definition, and the position up to which the view
goes. Readers use the newest complete record. If the output is a folder of this machine, the link `<output>/current`
also leads to the newest folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from changelog.envelope.errors import ChangelogError
from changelog.spark_jobs.storage.manifest import numbers
from changelog.spark_jobs.storage.outputs import clear, lead
from changelog.spark_jobs.storage.records import add_record, newest_record, run_name
from changelog.spark_jobs.storage.store import FolderStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = 1
_VIEWS: Final = "views"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view: its definition, the position up to which it goes, and its folder (`path`), relative to the output.

    A later run with the same definition can extend the view. `before` is the folder of the previous view.
    `out_of_range` says how many values are null because the column's type cannot hold them; `unavailable` says how many
    values are null because no change has them.
    """

    format: int = FORMAT
    definition: Mapping[str, object]
    position: str
    path: str = ""
    before: str = ""
    rows: int = 0
    out_of_range: int = 0
    unavailable: int = 0


def newest(store: FolderStore) -> View | None:
    """Returns the view that the newest complete record describes; None if there is no such record.

    Raises ChangelogError (PRECONDITION) if a newer program wrote it.
    """
    return newest_record(store, View, FORMAT)


def read(spark: "SparkSession", store: FolderStore, view: View) -> "DataFrame":
    """Returns the rows of a view."""
    return spark.read.parquet(f"{store.root}/{view.path}")


def write(store: FolderStore, rows: "DataFrame", view: View, *, at: datetime) -> View:
    """Writes `rows` as the new view, and returns `view` with its folder and its counts.

    1. The files are written into a new folder, which nobody reads yet.
    2. The record with the next number is created. From now on, readers use this folder.
    3. The link `current` is changed to lead to the new folder. The previous view stays, because it may still have
       readers; older views are deleted.

    Raises ChangelogError (IN_USE) if another run added a record at the same time.
    """
    old_view, record_number = newest(store), max(numbers(store), default=0) + 1
    path = f"{_VIEWS}/{run_name(at)}"
    rows.write.option("compression", "zstd").parquet(f"{store.root}/{path}")  # 1
    unlisted = replace(view, path=path)
    new_view = replace(
        counted(read(rows.sparkSession, store, unlisted), unlisted), before=old_view.path if old_view else ""
    )
    try:
        add_record(store, record_number, new_view)  # 2
    except ChangelogError:
        store.delete(path)
        raise
    lead(store, path)  # 3
    clear(store, _VIEWS, [new_view.path, new_view.before])
    return new_view


def counted(rows: "DataFrame", view: View) -> View:
    """Returns the view with its counts. To compute them, only two small columns of `rows` are read."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812 - a job's --help and its dry run need no Spark

    sums = [F.coalesce(F.sum(F.size(name)), F.lit(0)) for name in ("_out_of_range", "_unavailable")]
    count, out_of_range, unavailable = rows.agg(F.count("*"), *sums).collect()[0]
    return replace(view, rows=count, out_of_range=out_of_range, unavailable=unavailable)
