"""Sources: each reads one kind of database log. They know nothing of sinks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from envelope.checkpoint import Checkpoint

Recover = Callable[[], Checkpoint | None]
"""Gives the last checkpoint of the changelog, or None for a new one. A source calls it once it is alone with its log:
it takes the changelog away from whoever held it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of committed transactions, or one part of a large one, in the order of the log.

    `rows` follow `envelope.batch.SCHEMA`; `checkpoint` is true once they are durable; `nbytes` is
    what the rows hold in memory. `urgent` says that the database waits for the confirmation.
    """

    rows: Sequence[pa.RecordBatch]
    checkpoint: Checkpoint
    nbytes: int
    urgent: bool = False


class Source(Protocol):
    """An iterator of committed transactions, and the way to say that they are safe."""

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """The next piece; None when the timeout passes without one. A source may wait until what it was the first to
        hear is `gather_s` old: a piece of many small transactions costs little more than a piece of one.

        Raises ChangelogError; a deterministic stop only after everything before it was given.
        """

    def end(self) -> int:
        """Where the database's log ends now, as `Checkpoint.through_lsn` counts; `read` then hurries to get there.

        Raises ChangelogError.
        """

    def confirm(self, checkpoint: Checkpoint) -> None:
        """Lets the source forget what is before the checkpoint; only after it is durable."""

    def close(self) -> None:
        """Releases the source's connections; what was not confirmed comes again."""
