"""Sinks: each keeps changelogs in one kind of store. They know nothing of sources."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from envelope.checkpoint import Checkpoint
from envelope.entity import Entity


class Sink(Protocol):
    """A store of rows and of the checkpoint that belongs to them.

    Every method raises ChangelogError. After one that is retried (`envelope.errors.RETRIED`) what was added and not
    committed is gone, whether a commit took place is unknown, and only a new `recover` tells.
    """

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Makes room for what these entities will bring; takes hold of nothing yet."""

    def recover(self) -> Checkpoint | None:
        """Takes hold of the store, alone, and gives its last checkpoint; None when it is new.

        From here on, whoever held it before can store nothing more.
        """

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Takes rows (`envelope.batch.SCHEMA`) into the open commit, which no reader sees yet.

        A row that it may not store is a STOP at the row's position: then none of `rows` is taken.
        """

    def commit(self, checkpoint: Checkpoint) -> None:
        """Stores all that was added, and the checkpoint, atomically; returns only when both are durable."""

    def abandon(self) -> None:
        """Drops what was added since the last commit."""

    def close(self) -> None:
        """Lets go of the store."""
