"""Defines the interfaces of sinks: `Sink` writes a changelog to one kind of store, and `Log` reads it from there.

A changelog has rows, one for each change, and a checkpoint, which says up to which place of the database's log the rows
are complete. An entity is a table as the changelog publishes it. A position is the place of a row in the order of all
rows. Its first part is the epoch, the number of the database's history: a failover or a new cluster begins a new
history. A gap is a place where changes were lost. Sinks know nothing about sources.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position


class Sink(Protocol):
    """Stores rows, together with the checkpoint that belongs to them.

    Every method may raise ChangelogError. If an error is of a kind that is retried
    (`changelog.envelope.errors.RETRIED`), rows that were added and not committed are gone. If `commit` raised the
    error, the commit may have succeeded; only the next call of `recover` shows whether it has.
    """

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Prepares the store for rows of these entities, without claiming it yet."""

    def recover(self) -> Checkpoint | None:
        """Claims the store for this process alone, and returns its last checkpoint; None if the store is new.

        After `recover` has returned, a process that held the store earlier can store nothing more.
        """

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Adds rows (`changelog.envelope.columnar.batch.SCHEMA`) to the open commit. No reader sees them yet.

        If one of the rows must not be stored, raises STOP with the position of that row, and adds none of `rows`.
        """

    def commit(self, checkpoint: Checkpoint) -> None:
        """Stores all added rows and the checkpoint atomically; returns only when both are durable."""

    def lost(self, entities: Collection[str], /) -> Collection[str]:
        """Returns the entities of which the store has lost rows.

        `entities` names the configured entities. The method is called only on a sink that was opened to continue past a
        gap (`over_gap`).
        """

    def abandon(self) -> None:
        """Drops the rows that were added since the last commit."""

    def close(self) -> None:
        """Releases the store."""


MESSAGES = "messages"
"""`Log.counts` uses this key in place of the ops if the store cannot count rows by op without reading all of them."""


class Log(Protocol):
    """Reads a store. Readers see only what is committed, never block the service, and claim nothing.

    Methods yield rows in batches of `changelog.envelope.columnar.batch.SCHEMA`. No batch is empty. `entity` restricts
    the rows to one entity, and `key` (a canonical text) to one key. Without `entity`, a method yields the rows of every
    entity except `changelog.envelope.entity.SCHEMAS`, whose rows are yielded only if `entity` names it. The rows of one
    partition come in order. With a `key`, `read` yields the rows of this key in order even if the key moved between
    partitions. Every method may raise ChangelogError: USAGE if there is no such entity, PRECONDITION if there is no
    changelog.
    """

    @property
    def where(self) -> str:
        """What error texts call the changelog, such as "the changelog in FOLDER"."""

    def read(
        self,
        *,
        entity: str | None = None,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that are stored now.

        With `after`, yields only rows after that position; with `identifier`, only rows whose stamp has this
        identifier.
        """

    def read_key(self, entity: str, key: str, /) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one key that are stored now, and the truncates of its entity, in any order.

        A truncate has a row in each partition, under the key `changelog.envelope.entity.TRUNCATE_KEY`. If rows are
        stored during the call, the result may lack a truncate. But if it has a truncate, it also has all rows of the
        key that come before this truncate.
        """

    def read_together(
        self,
        entities: Collection[str] | None = None,
        /,
        *,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all these entities that are stored now, in any order. The store is read once.

        With an archive, this is much faster than `read`, which sorts the archive's rows. `after` and `identifier` have
        the same meaning as in `read`. With a `key`, this method also searches archive files that, by the manifest,
        cannot hold the key: a repair must also find rows that are there by mistake.
        """

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """Yields rows that are stored now, and then new rows as they are stored.

        Of the rows that are stored now, yields only the newest `last`, by default all. "Now" is the moment of the call,
        even if the iteration begins later. The method calls `wait()` whenever it finds no more rows; the iteration ends
        if `wait()` returns False.
        """

    def recent(self, count: int, /) -> Iterator[pa.RecordBatch]:
        """Yields about `count` of the newest rows of all entities, in any order, from what can be read fast.

        Rows in an archive are left out, so there may be fewer than `count`. There may also be more, because complete
        parts of the store are read.
        """

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Returns, for each entity, the number of its rows by op.

        A store that would have to read all rows to count them by op returns only the key `MESSAGES` for each entity,
        with an upper bound of the number of the entity's messages.
        """

    def checkpoint(self) -> Checkpoint | None:
        """Returns the last checkpoint, None if there is none."""

    def epoch(self) -> int:
        """Returns the highest epoch of any row, 0 if there are no rows. Works even if the checkpoint is damaged."""

    def stored_at(self) -> float | None:
        """Returns when something was last stored, in seconds since 1970; None if nothing was ever stored."""


def unknown_entity(log: Log, entity: str, entities: Iterable[str]) -> ChangelogError:
    """Returns the error for an entity that the changelog lacks. Its hint lists `entities`, those that the changelog
    has.
    """
    return ChangelogError(
        Kind.USAGE, f"{log.where} has no entity {entity}", hint=f"it has: {', '.join(sorted(entities)) or 'none yet'}"
    )
