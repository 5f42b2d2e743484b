"""Sinks: each stores changelogs in one kind of store. Sinks know nothing about sources."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position


class Sink(Protocol):
    """Stores rows, together with the checkpoint that belongs to them.

    Every method raises ChangelogError. After an error of a kind that is retried (`changelog.envelope.errors.RETRIED`),
    rows that were added and not committed are gone, and it is unknown whether a commit succeeded: only a new `recover`
    can tell.
    """

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Prepares the store for rows of these entities, without claiming it yet."""

    def recover(self) -> Checkpoint | None:
        """Claims the store exclusively and returns its last checkpoint, None if the store is new.

        From now on, an earlier holder can store nothing more.
        """

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Adds rows (`changelog.envelope.columnar.batch.SCHEMA`) to the open commit, which no reader sees yet.

        Raises STOP, at the row's position, for a row that must not be stored: then none of `rows` is added.
        """

    def commit(self, checkpoint: Checkpoint) -> None:
        """Stores all added rows and the checkpoint atomically; returns only when both are durable."""

    def lost(self, entities: Collection[str], /) -> Collection[str]:
        """Returns the entities that have lost stored rows. Called if the sink was opened over a gap."""

    def abandon(self) -> None:
        """Drops the rows that were added since the last commit."""

    def close(self) -> None:
        """Releases the store."""


MESSAGES = "messages"
"""The key in `Log.counts` for a store that cannot count rows by op without reading them all."""


class Log(Protocol):
    """Reads a store. Readers see only what is committed, never block the service, and claim nothing.

    Rows come in batches of `changelog.envelope.columnar.batch.SCHEMA` that are never empty: those of `entity` and of
    the canonical text `key`, if given. Without `entity`, they are the rows of every entity but
    `changelog.envelope.entity.SCHEMAS`, which has to be named. Rows of one partition come in their order, and so do all
    rows of one key, even if it moved between partitions.
    Every method raises ChangelogError: USAGE if there is no such entity, PRECONDITION if there is no changelog.
    """

    @property
    def where(self) -> str:
        """The changelog, as errors name it."""

    def read(
        self, *, entity: str | None = None, key: str | None = None, after: Position | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are stored now, after the position `after`."""

    def read_together(self, entities: Collection[str], /) -> Iterator[pa.RecordBatch]:
        """The rows of all these entities that there are now, in one reading and in any order."""

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the `last` rows, by default all, and then new rows as they are stored.

        `wait()` is called whenever no more rows are found; the iteration ends if it returns False.
        """

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """For each entity, the number of rows by op, or an upper bound of its `MESSAGES`."""

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint, None if there is none."""

    def epoch(self) -> int:
        """The highest epoch of any row, 0 without rows. It does not depend on the checkpoint."""

    def stored_at(self) -> float | None:
        """When something was last stored, in seconds since 1970; None if nothing was."""


def unknown_entity(log: Log, entity: str, known: Iterable[str]) -> ChangelogError:
    """The error for an entity that the changelog does not have."""
    return ChangelogError(
        Kind.USAGE, f"{log.where} has no entity {entity}", hint=f"it has: {', '.join(sorted(known)) or 'none yet'}"
    )
