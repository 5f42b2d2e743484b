"""Follows a file log and its archive, by position: each batch has the changes after the position that is stored.

Positions stay valid while log files are archived, merged and deleted, so a run can continue after any of these.
"""

import threading
from typing import TYPE_CHECKING

from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.progress import REBUILD
from changelog.spark_jobs.reading.read import end_of, read_changelog, refuse_dropped
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.views.transforms import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def follow(
    spark: "SparkSession", where: Files, view: MaintainedView, *, every_s: float | None, stopping: threading.Event
) -> None:
    """Applies the new changes, then ends; with `every_s`, looks for changes that often until `stopping` is set.

    Raises ChangelogError: GAP if retention dropped changes that the view lacks, USAGE if the log ends before the
    position that the view has reached.
    """
    _apply_new(spark, where, view)
    while every_s is not None and not stopping.wait(every_s):
        _apply_new(spark, where, view)


def _apply_new(spark: "SparkSession", where: Files, view: MaintainedView) -> None:
    position = view.progress.checkpoint.get("position")
    end, after = end_of(spark, where), None if position is None else Position.parse(position)
    if end is None or end == after:
        return
    if after is not None:
        try:
            refuse_dropped(spark, where, after, "the view goes up to")
        except ChangelogError as error:
            raise ChangelogError(Kind.GAP, error.message, hint=REBUILD) from error
    rows = until(read_changelog(spark, where, entities=[*view.entities, SCHEMAS], after=after), end)
    view.apply(rows, {"position": str(end)})
