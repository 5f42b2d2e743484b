"""Reads the changes between two positions from a file log and its archive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.spark_jobs.maintaining.following.change_ranges import WINDOW_CHANGES
from changelog.spark_jobs.maintaining.progress import REBUILD, Checkpoint
from changelog.spark_jobs.reading.read import read_changelog, refuse_dropped
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.views.transforms import until as until_position

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRanges:
    """Implements `ChangeRanges`. The checkpoints are positions."""

    where: Files
    entities: Sequence[str]

    def read(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, keys: "DataFrame | None" = None
    ) -> "DataFrame":
        """See `ChangeRanges`. Skips files that end at or before `after`."""
        begin = position_of(after)
        if begin is not None:
            refuse_lost(spark, self.where, begin)
        rows = read_changelog(spark, self.where, entities=self.entities, after=begin)
        rows = until_position(rows, position_of(until))
        return rows if keys is None else rows.join(keys, "key", "left_semi").select(rows.columns)

    def window_end(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, is_waiting: "Expression"
    ) -> Checkpoint:
        """Returns the position of waiting change number `WINDOW_CHANGES`, or `until` if fewer changes wait."""
        waiting = self.read(spark, after, until).where(is_waiting).select("position")
        first_positions = waiting.orderBy("position").limit(WINDOW_CHANGES).collect()
        return until if len(first_positions) < WINDOW_CHANGES else {"position": first_positions[-1]["position"]}

    def has_reached(self, checkpoint: Checkpoint, goal: Checkpoint) -> bool:
        """Compares the positions."""
        return str(checkpoint.get("position", "")) >= str(goal.get("position", ""))


def position_of(checkpoint: Checkpoint) -> Position | None:
    """Returns the position of a checkpoint; None if the checkpoint is the changelog's beginning."""
    text = checkpoint.get("position")
    return None if text is None else Position.parse(text)


def refuse_lost(spark: "SparkSession", where: Files, after: Position) -> None:
    """Raises ChangelogError (GAP) if retention may have dropped changes after this position."""
    try:
        refuse_dropped(spark, where, after, "the view goes up to")
    except ChangelogError as error:
        raise ChangelogError(Kind.GAP, error.message, hint=REBUILD) from error
