"""Sinks: each keeps changelogs in one kind of store. They know nothing of sources."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from envelope.checkpoint import Checkpoint
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.position import Position


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
        """Takes rows (`envelope.columnar.batch.SCHEMA`) into the open commit, which no reader sees yet.

        A row that it may not store is a STOP at the row's position: then none of `rows` is taken.
        """

    def commit(self, checkpoint: Checkpoint) -> None:
        """Stores all that was added, and the checkpoint, atomically; returns only when both are durable."""

    def lost(self, entities: Collection[str], /) -> Collection[str]:
        """Those of the entities of which rows that were stored are gone. Asked where it was opened over a gap."""

    def abandon(self) -> None:
        """Drops what was added since the last commit."""

    def close(self) -> None:
        """Lets go of the store."""


MESSAGES = "messages"
"""What `Log.counts` counts where a store does not know its rows by op without reading them all."""


class Log(Protocol):
    """What a store holds, for its readers: they see what is committed, hold nothing up and take hold of nothing.

    Rows come in batches of `envelope.columnar.batch.SCHEMA` that are never empty: those of `entity` and of the
    canonical text `key`, if given. Without `entity`, they are the rows of every entity but `envelope.entity.SCHEMAS`,
    which has to be named. Rows of one partition come in their order, and so do all rows of one key, even if it moved
    between partitions.
    Every method raises ChangelogError: USAGE when there is no such entity, PRECONDITION when there is no changelog.
    """

    @property
    def where(self) -> str:
        """Which changelog this is, as errors name it."""

    def read(
        self, *, entity: str | None = None, key: str | None = None, after: Position | None = None
    ) -> Iterator[pa.RecordBatch]:
        """What there is now, behind the position `after`."""

    def read_together(self, entities: Collection[str], /) -> Iterator[pa.RecordBatch]:
        """The rows of all these entities that there are now, in one reading."""

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """The `last` rows, by default all, and then what is added.

        `wait()` is called between looks, and ends it by giving False.
        """

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """By entity, rows by op, or how many `MESSAGES` there are at most."""

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, None when there is none."""

    def epoch(self) -> int:
        """The highest epoch of any row, whatever the checkpoint says, and where there is none; 0 without rows."""

    def stored_at(self) -> float | None:
        """When something was last stored, in seconds since 1970; None when nothing was."""


def unknown_entity(log: Log, entity: str, known: Iterable[str]) -> ChangelogError:
    """What a reader says who is asked for an entity that is not there."""
    return ChangelogError(
        Kind.USAGE, f"{log.where} has no entity {entity}", hint=f"it has: {', '.join(sorted(known)) or 'none yet'}"
    )
