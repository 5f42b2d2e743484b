"""Defines the interface of engines. An engine knows the last state of every key of an entity.

As in the job `rebuild_view`, this is the state after the change that has the highest position. If the database's log
did not send a value in this change, the engine over files takes the value from an earlier change of the key. The engine
over Kafka has only the last message of each key. A value that the engine does not have is *unavailable*.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice
from changelog.schemas.types import Struct

INSTANCES: Final = "/.instance/1"
"""The address at which an instance answers other instances: processes that serve the same views. The number in it is
the version of the questions' format. No view has this name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """A row of an entity as it is now.

    `current` is a JSON object with the values in the changelog. `unavailable` has the sorted names of the columns that
    `current` lacks. `position` and `committed_at` are those of the row's last change.
    """

    key: str
    current: bytes
    unavailable: tuple[str, ...]
    position: Position
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """How far states are complete: they have every change up to `position`.

    `at_s` is the last time at which these states were known to be complete, in seconds since 1970. Changes that were
    published later may be missing. `position` and `at_s` are None if they are unknown.
    """

    position: Position | None
    at_s: float | None


class ForgottenError(ChangelogError):
    """Raised (PRECONDITION) by a view that keeps only the keys used last, if this key is not among them. The row may
    exist.
    """


class NoRangesError(ChangelogError):
    """Raised (PRECONDITION) when rows are to be listed, by a view that keeps only the keys used last."""


class ViewMoment(Protocol):
    """The rows of an entity at one moment.

    An engine that cannot keep the rows of a moment may return rows of a later moment. But it never returns rows that
    lack a change up to `reached`.
    """

    @property
    def reached(self) -> Completeness:
        """How far the rows are complete. If stale rows are allowed, an earlier position can replace this one while rows
        are read.
        """

    def get(self, key: str, /) -> StateRow | None:
        """Returns the row of a key, which is a canonical text; None if there is no row.

        Raises ForgottenError if it is unknown whether there is a row, because only the keys used last are kept.
        """

    def rows(self, begin: str, /) -> Iterator[tuple[str, StateRow | None]]:
        """Yields keys from `begin` on, in the order of their texts' code points, each with its row.

        The row is None if the key has no row now. Reads only as much as the caller takes. Raises NoRangesError if only
        the keys used last are kept.
        """


class ServedView(Protocol):
    """The rows of one entity. Any thread may call the methods. Every method may raise ChangelogError."""

    def now(self, key: str | None = None, /, *, allows_stale: bool = False) -> ViewMoment:
        """Returns the rows as they are now.

        With a `key`, the caller must read only the row of this key. Then `reached` need not hold for other rows, so its
        position may be higher. With `allows_stale`, rows may come from an older copy if the instance that has the rows
        does not answer. Raises ChangelogError (PRECONDITION) if there is no changelog yet.
        """

    def at_hand(self, key: str, /) -> ViewMoment | None:
        """Returns the rows as they are now, if the row of a key is in this process. The caller reads only this row.

        Reading it opens no file of the changelog, asks no other process, and waits at most for a thread that writes to
        the same store. So the event loop may read it. Returns None if this process does not have the row, or may have
        only an older state of it.
        """

    def columns(self) -> Struct | None:
        """Returns the entity's columns with their types, None if the changelog does not have them."""


class StateEngine(Protocol):
    """Knows the states of all entities of a changelog. Any thread may call the methods."""

    @property
    def where(self) -> str:
        """The words by which errors name the changelog, as in "the changelog in FOLDER"."""

    def entities(self) -> Mapping[str, Sequence[str]]:
        """Returns the entities of the changelog, and the columns of each entity's key; no columns if these are unknown.

        The result is empty if there is no changelog yet.
        """

    def view(self, entity: str, services: ServiceChoice = ALL_SERVICES, /) -> ServedView:
        """Returns the rows of an entity. Only changes that `services` includes count. The changelog need not have the
        entity yet.
        """

    def close(self) -> None:
        """Ends what the engine runs. Afterwards, the engine cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How far an engine has restored its rows.

    `restored` says how many messages were restored since the start, and `restoring` how many offsets are still to be
    restored in this process. `lags` says, for each entity, how many offsets its rows lack up to the newest checkpoint.
    `standby_lags` says the same of this process's standbys: copies of rows that other instances serve. `store_bytes` is
    the size of the stores on disk. `is_ready` is true from the moment when all rows could be read for the first time.
    """

    restored: int
    restoring: int
    lags: Mapping[str, int]
    standby_lags: Mapping[str, int]
    store_bytes: int
    is_ready: bool

    @property
    def left(self) -> int:
        """How many offsets are still to be restored or processed."""
        return self.restoring + sum(self.lags.values())


@runtime_checkable
class SharedEngine(StateEngine, Protocol):
    """An engine that restores its rows when it starts. The rows can be spread over several instances."""

    def figures(self) -> Figures:
        """Returns how far the engine has restored its rows."""

    def answer(self, question: bytes, /) -> bytes:
        """Returns the answer to a question of another instance. Raises ChangelogError."""
