"""Defines the interface with which the throttle reads a part of a changelog again."""

from typing import TYPE_CHECKING, Final, Protocol

from changelog.spark_jobs.maintaining.progress import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

WINDOW_CHANGES: Final = 100_000
"""A *window* is the part of the changelog whose waiting changes are read at once. It has at most about this many
waiting changes. On Kafka, offsets are counted instead.
"""


class ChangeRanges(Protocol):
    """Reads the changes of a view's entities between two checkpoints. An empty checkpoint is the changelog's beginning.

    The methods `read` and `window_end` raise ChangelogError (GAP) if retention dropped some of these changes.
    """

    def read(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, keys: "DataFrame | None" = None
    ) -> "DataFrame":
        """Returns the rows after the checkpoint `after`, up to `until`. With `keys`, returns only rows of the keys in
        the column `key` of `keys`.

        The rows have at least the columns of `changelog.envelope.columnar.batch.SCHEMA`.
        """

    def window_end(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, is_waiting: "Expression"
    ) -> Checkpoint:
        """Returns the checkpoint at which a window ends that begins at `after`. The window does not go beyond `until`.
        At most about `WINDOW_CHANGES` of its rows fulfil `is_waiting`.
        """

    def has_reached(self, checkpoint: Checkpoint, goal: Checkpoint) -> bool:
        """Returns whether the checkpoint is `goal` or after it."""
