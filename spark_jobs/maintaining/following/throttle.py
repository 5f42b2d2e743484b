"""Limits how fast the changes of one service are applied. The changes of other services are not slowed.

A batch leaves out the changes of the throttled service: they *wait*. Later, further batches apply these changes, as
many at a time as the rate allows. A state is applied only if it is newer than the row. So a change that waited has no
effect if the row got a newer state in the meantime.

This rule alone would give wrong rows if the database's log did not send all values of a change. The missing values are
then taken from the row in the view, but the view may lack earlier changes of the row, because they wait. So a batch
with such a change also has all other changes of the same key that the view may lack, whichever service made them.

The waiting changes are not stored anywhere else: they are read again from the changelog. For this, the progress of the
view has a second checkpoint, up to which no change waits. Both checkpoints are stored together with the rows.
"""

import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.config import ThrottleConfig
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.following.change_ranges import ChangeRanges
from changelog.spark_jobs.maintaining.following.rate import ChangeRate
from changelog.spark_jobs.maintaining.progress import Checkpoint, WaitingChanges
from changelog.spark_jobs.views.transforms import is_chosen, lacks_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOW_EVERY_S: Final = 60.0
"""How often, in seconds, a run prints how many changes wait."""


@dataclass(slots=True)
class _Window:
    """The next part of the waiting changes. `rows` has these changes, and is cached. `positions` are their positions,
    sorted. `end` is the checkpoint at which this part ends.
    """

    rows: "DataFrame"
    positions: list[str]
    end: Checkpoint


def apply_earlier(
    spark: "SparkSession",
    view: MaintainedView,
    ranges: ChangeRanges,
    config: ThrottleConfig | None,
    stopping: threading.Event,
) -> None:
    """Applies all waiting changes, if the configuration no longer throttles their service.

    Ends early if `stopping` is set. Then some of the changes still wait, so newer changes must not be applied.
    """
    waiting = view.progress.waiting
    if waiting is None or (config is not None and config.service == waiting.service):
        return
    with closing(Throttle(spark, view, ranges, waiting.service, None)) as earlier_throttle:
        while view.progress.waiting is not None and not stopping.is_set():
            earlier_throttle.step()


@contextmanager
def opened_throttle(
    spark: "SparkSession", view: MaintainedView, ranges: ChangeRanges, config: ThrottleConfig | None
) -> Iterator["Throttle | None"]:
    """Yields the throttle that the configuration asks for; None if it asks for none."""
    if config is None:
        yield None
        return
    with closing(Throttle(spark, view, ranges, config.service, ChangeRate(config.rate))) as throttle:
        yield throttle


class Throttle:
    """Applies batches without the changes of `service` (`apply`), and applies the changes of `service` later (`step`).

    If `rate` is None, `step` applies all changes that `prepare` has read. `ranges` reads changes again from the
    changelog. `apply` and `step` must not run at the same time; `prepare` may run while `apply` does.
    """

    def __init__(
        self, spark: "SparkSession", view: MaintainedView, ranges: ChangeRanges, service: str, rate: ChangeRate | None
    ) -> None:
        self._spark, self._view, self._ranges = spark, view, ranges
        self._service, self._rate = service, rate
        self._window: _Window | None = None
        self._shown_s: float | None = None

    def apply(self, rows: "DataFrame", checkpoint: Mapping[str, Any]) -> None:
        """Does the same as `MaintainedView.apply`, but leaves out the changes of the throttled service."""
        progress = self._view.progress
        waiting = progress.waiting
        count = rows.where(self._is_waiting()).count()
        if waiting is not None:
            waiting = replace(waiting, changes=waiting.changes + count)
        elif count:
            waiting = WaitingChanges(service=self._service, changes=count, after=progress.checkpoint)
        changes = rows.where(~self._is_waiting())
        if waiting is None:
            self._view.apply(changes, checkpoint)
        else:
            self._apply_completed(changes, waiting.after, checkpoint, waiting)

    def prepare(self) -> None:
        """Reads the next waiting changes, so that `step` takes less time."""
        progress = self._view.progress
        waiting = progress.waiting
        if waiting is None or self._window is not None:
            return
        end = waiting.window_end
        if end is None:
            end = self._ranges.window_end(self._spark, waiting.after, progress.checkpoint, self._is_waiting())
        rows = self._ranges.read(self._spark, waiting.after, end).where(self._is_waiting())
        rows = rows.where(F.col("position") > waiting.position).persist()
        positions = [row["position"] for row in rows.select("position").orderBy("position").collect()]
        self._window = _Window(rows=rows, positions=positions, end=end)

    def step(self) -> None:
        """Applies as many waiting changes as the rate allows now, in the order of their positions."""
        self.prepare()
        waiting = self._view.progress.waiting
        if self._window is None or waiting is None:
            if self._rate is not None:
                self._rate.rest()
            return
        self._show(waiting.changes)
        count = len(self._window.positions)
        if self._rate is not None:
            count = min(count, self._rate.allowed())
        if count:
            self._apply_waiting(self._window, waiting, self._window.positions[count - 1])
        elif not self._window.positions:
            remaining = self._remaining(waiting, self._window, 0, waiting.position)
            self._view.progress = replace(self._view.progress, waiting=remaining)
        if not self._window.positions:
            self.close()

    def close(self) -> None:
        """Forgets the changes that `prepare` has read."""
        if self._window is not None:
            self._window.rows.unpersist()
            self._window = None

    def has_applied(self, goal: Checkpoint) -> bool:
        """Returns whether all changes up to this checkpoint are applied, so that none of them waits."""
        waiting = self._view.progress.waiting
        return waiting is None or self._ranges.has_reached(waiting.after, goal)

    def _is_waiting(self) -> Expression:
        return self._counts() & (F.col("service_name") == self._service)

    def _counts(self) -> Expression:
        return F.col("entity").isin(*self._view.entities) & is_chosen(self._view.choice)

    def _apply_waiting(self, window: _Window, waiting: WaitingChanges, last: str) -> None:
        """Applies the changes of the window up to the position `last`."""
        count = bisect_right(window.positions, last)
        remaining = self._remaining(waiting, window, count, last)
        position = F.col("position")
        changes = window.rows.where((position > waiting.position) & (position <= last))
        checkpoint = self._view.progress.checkpoint
        self._apply_completed(changes, waiting.after, checkpoint, remaining, (window.end, last))
        if self._rate is not None:
            self._rate.spend(count)
        del window.positions[:count]

    def _remaining(self, waiting: WaitingChanges, window: _Window, count: int, last: str) -> WaitingChanges | None:
        """Returns what still waits after the first `count` changes of the window were applied. The last of these
        changes is at the position `last`.
        """
        changes = waiting.changes - count
        if count < len(window.positions):
            return replace(waiting, changes=changes, window_end=window.end, position=last)
        if changes <= 0 or self._ranges.has_reached(window.end, self._view.progress.checkpoint):
            return None
        return replace(waiting, changes=changes, after=window.end, window_end=None, position="")

    def _show(self, count: int) -> None:
        if self._shown_s is None or time.monotonic() - self._shown_s >= SHOW_EVERY_S:
            sys.stderr.write(f"maintain_view: {count} changes of {self._service} wait\n")
            self._shown_s = time.monotonic()

    def _apply_completed(
        self,
        changes: "DataFrame",
        after: Checkpoint,
        checkpoint: Checkpoint,
        waiting: WaitingChanges | None,
        bound: tuple[Checkpoint, str] | None = None,
    ) -> None:
        """Applies changes. If one of them lacks values, also applies all other changes of its key that come after the
        checkpoint `after`, up to `checkpoint`. `bound` is a checkpoint and a position. If it is given, the other
        changes end at its checkpoint instead, and those after its position are left out.
        """
        lacking_keys = changes.where(self._counts() & lacks_values()).select("key").distinct().persist()
        try:
            if not lacking_keys.isEmpty():
                end, position = bound or (checkpoint, None)
                others = self._ranges.read(changes.sparkSession, after, end, lacking_keys)
                if position is not None:
                    others = others.where(F.col("position") <= position)
                changes = changes.unionByName(others.select(changes.columns))
            self._view.apply(changes, checkpoint, waiting)
        finally:
            lacking_keys.unpersist()
