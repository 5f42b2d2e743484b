"""Follows a file log and its archive by position: each batch has the changes after the position in the view's progress.

Positions stay valid when log files are archived, merged or deleted, so a run can continue after any of these.
"""

import threading
from typing import TYPE_CHECKING, Final

from changelog.envelope.entity import SCHEMAS
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.following.file_ranges import position_of, refuse_lost
from changelog.spark_jobs.maintaining.following.throttle import Throttle
from changelog.spark_jobs.reading.read import end_of, read_changelog
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.views.transforms import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP_S: Final = 1.0
"""How often, in seconds, a run without `every_s` applies changes that wait because their service is throttled."""


def follow(
    spark: "SparkSession",
    where: Files,
    view: MaintainedView,
    *,
    throttle: Throttle | None,
    every_s: float | None,
    stopping: threading.Event,
) -> None:
    """Applies the new changes, and then ends. With `every_s`, looks for new changes every `every_s` seconds until
    `stopping` is set.

    Without `every_s`, ends only when the changes of a throttled service that were there at the beginning are applied,
    too. Raises ChangelogError: GAP if retention dropped changes that the view lacks, USAGE if the log ends before the
    position that the view has reached.
    """
    apply_new(spark, where, view, throttle)
    goal = view.progress.checkpoint
    while True:
        if throttle is not None:
            throttle.step()
        if every_s is None and (throttle is None or throttle.has_applied(goal)):
            return
        if stopping.wait(STEP_S if every_s is None else every_s):
            return
        apply_new(spark, where, view, throttle)


def apply_new(spark: "SparkSession", where: Files, view: MaintainedView, throttle: Throttle | None) -> None:
    """Applies the changes up to the present end, except those that must wait. Raises the same errors as `follow`."""
    end, after = end_of(spark, where), position_of(view.progress.checkpoint)
    if end is None or end == after:
        return
    if after is not None:
        refuse_lost(spark, where, after)
    rows = until(read_changelog(spark, where, entities=[*view.entities, SCHEMAS], after=after), end)
    (throttle or view).apply(rows, {"position": str(end)})
