"""A fence: one cut through a database by which both sides of a comparison are taken, held while it lasts.

A row of the changelog counts if its transaction is one that the fence shows, and a table's rows are read as they were
at the fence. So both sides show the same transactions, however much is written meanwhile. The process that holds the
fence hands its `scan` to others, which read the tables under it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import pyarrow as pa

from changelog.connectors.capture.rows.binding import Binding
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

ROWS: Final = pa.schema(
    [
        pa.field("entity", pa.utf8()),
        pa.field("key", pa.utf8()),
        pa.field("current", pa.utf8()),
        pa.field("json_null", pa.utf8()),
        pa.field("leaf", pa.int32()),
        pa.field("ctid", pa.utf8()),
    ]
)
"""One row of a table. `json_null` is a JSON array of the columns that hold JSON's null; null if none does. `leaf` and
`ctid` say where it is: the number of the leaf, and a place in that, which only the source understands."""


class NoFenceError(ChangelogError):
    """No fence can be had; `later` says that it may be had later, when whoever is in the way has finished."""

    def __init__(self, message: str, *, hint: str, later: bool) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedTable:
    """A table at the fence: how its rows are encoded, and the size of each of its leaves, in pages.

    A leaf is what holds rows: the table, or one of its partitions. A page is any unit that the source reads by.
    """

    binding: Binding
    leaf_pages: tuple[int, ...]

    @property
    def entity(self) -> Entity:
        """The entity that the table belongs to."""
        return self.binding.entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Pages `first` up to, not including, `end` of a leaf of an entity's table; None means the leaf's end."""

    entity: str
    leaf: int
    first: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBounds:
    """A range of keys: those whose column `column` is at least `first` and less than `end`; None means no bound.

    `by_bytes` says that the column holds texts, which are compared by their bytes.
    """

    column: str
    by_bytes: bool
    first: int | str | None
    end: int | str | None


class Scan(Protocol):
    """Reads the tables of a fence, in any process, while the fence is held. It can be pickled; it holds secrets, so it
    goes to workers only. Each call makes a session of its own.

    Rows are encoded with the code that encodes messages, so masks, types and formats cannot differ.
    """

    def rows(self, parts: Sequence[Pages], keys: KeyBounds | None) -> Iterator[pa.RecordBatch]:
        """The rows (`ROWS`) in these parts, and with `keys` only those in the range.

        Raises ChangelogError: CONNECTION if the fence is gone, ALTERED if a migration waits for a table.
        """

    def rows_at(self, places: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[pa.RecordBatch]:
        """The rows (`ROWS`) at places that `rows` gave as `ctid`, by entity and leaf. Raises ChangelogError."""


class Fence(Protocol):
    """A cut that is held. Every commit that it shows ends in the log at or before one place."""

    @property
    def text(self) -> str:
        """The cut in the database's own words."""

    @property
    def place(self) -> str:
        """The place in the log, as the database spells it."""

    @property
    def database(self) -> str:
        """What the server calls the database."""

    @property
    def server(self) -> str:
        """The server's version."""

    @property
    def taken_at(self) -> datetime:
        """When the fence was taken."""

    @property
    def tables(self) -> Mapping[str, FencedTable]:
        """The tables, by entity."""

    @property
    def xmax(self) -> int:
        """The first transaction id that the fence does not show, as the rows of the changelog have ids."""

    @property
    def running(self) -> Sequence[int]:
        """The transactions before `xmax` that it does not show either."""

    @property
    def scan(self) -> Scan:
        """What reads the tables."""

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """Whether the changelog that ends at `checkpoint` is of this database cluster."""

    def missing(self, checkpoint: Checkpoint) -> str | None:
        """Why a changelog of this cluster that ends at `checkpoint` may lack commits that the fence shows; None if it
        holds them all.
        """
