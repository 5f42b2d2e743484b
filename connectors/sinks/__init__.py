"""Sinks: each keeps changelogs in one kind of store. They know nothing of sources."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from envelope.checkpoint import Checkpoint


class Sink(Protocol):
    """A store of rows and of the checkpoint that belongs to them."""

    def recover(self) -> Checkpoint | None:
        """Takes hold of the store, alone, and gives its last checkpoint; None when it is new."""

    def publish(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint) -> None:
        """Stores rows (`envelope.batch.SCHEMA`) and checkpoint in one atomic commit.

        Returns only when both are durable. Without rows, the checkpoint alone.
        """

    def close(self) -> None:
        """Lets go of the store."""
