"""Defines the interface by which the throttle reads a range of a changelog again."""

from typing import TYPE_CHECKING, Final, Protocol

from changelog.spark_jobs.maintaining.progress import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

WINDOW_CHANGES: Final = 100_000
"""About how many changes a window has at most: positions in a file log, offsets on Kafka."""


class ChangeRanges(Protocol):
    """Reads the changes of a view's entities between two checkpoints. An empty checkpoint is the changelog's beginning.

    Its methods raise ChangelogError (GAP) if retention dropped some of these changes.
    """

    def read(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, keys: "DataFrame | None" = None
    ) -> "DataFrame":
        """Returns the rows after the checkpoint `after`, up to `until`; with `keys`, only rows of the keys in its
        column `key`.

        The rows have at least the columns of `changelog.envelope.columnar.batch.SCHEMA`.
        """

    def window_end(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, is_waiting: "Expression"
    ) -> Checkpoint:
        """Returns a checkpoint after `after`, but not after `until`. From `after` to the result, `is_waiting` holds for
        at most about `WINDOW_CHANGES` rows.
        """

    def has_reached(self, checkpoint: Checkpoint, goal: Checkpoint) -> bool:
        """Returns whether the checkpoint is `goal` or after it."""
