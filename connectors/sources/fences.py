"""A fence: one cut through a database by which both sides of a comparison are taken, held while it lasts.

A row of the changelog counts if its transaction is one that the fence shows, and a table's rows are read as they were
at the fence. So both sides show the same transactions, however much is written meanwhile. The process that holds the
fence hands its `scan` to others, which read the tables under it.

An implementation owes three things, and a comparison finds false drift where one of them fails:

1. What `Scan` reads is the work of exactly the transactions that `shown` names, in every process and to the end.
2. A changelog in which nothing is `missing` holds every transaction that `shown` names.
3. `Scan` encodes rows as messages are encoded: masks, row filters, columns left out, types and their texts.
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
        pa.field("locator", pa.utf8()),
    ]
)
"""One row of a table. `key` and `current` are the texts that a message of the row has: the canonical key, and the state
as JSON. `json_null` is a JSON array of the columns that hold JSON's null; null if none does. `leaf`, never null, and
`locator` say where the row is: the number of the leaf, and a text by which the source finds the row in it again."""


class NoFenceError(ChangelogError):
    """No fence can be had; `later` says that it may be had later, when whoever is in the way has finished."""

    def __init__(self, message: str, *, hint: str, later: bool) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedTable:
    """A table at the fence: how its rows are encoded, and the size of each of its leaves, in pages.

    The binding has the columns and types of the table as the fence shows it, which are those that are compared.

    A leaf is what holds rows: the table, or one of its partitions. Pages are how the reading of a leaf is divided among
    tasks: numbered parts of some 8 KiB each, such as the server's own pages, or ranges of keys that the scan knows.
    Every row that the fence shows is in exactly one page, which may be past the size that is told here: whoever reads
    to the leaf's end gets it.
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

    The bounds are integers, or texts of the column's type. `by_bytes` says that the column holds texts, which are
    compared by their bytes in UTF-8, whatever collation the column has.
    """

    column: str
    by_bytes: bool
    first: int | str | None
    end: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The transactions that a fence shows: those whose id is below `end`, but for the few in `hidden`.

    The id is what the source gives each transaction (`Transaction.xid` of the capture core; in the changelog the column
    `transaction`). A source may count transactions as they begin, as PostgreSQL does: then `hidden` are those that were
    open. It may count them as they stand in its log: then `end` is where the log ended, and `hidden` are the commits
    that the log had already and readers of the tables had not. Ids are compared only within an epoch. `hidden` is
    short: a query of Spark's names them all.
    """

    end: int
    hidden: Sequence[int]


class Scan(Protocol):
    """Reads the tables of a fence, in any process, while the fence is held. It can be pickled; it holds secrets, so it
    goes to workers only. Each call makes a session of its own, and may be made several times for the same rows.

    The module of its class is imported by Spark's executors: it imports nothing but the envelope, the schemas, the
    capture core, this module, and what reads its database. A contract of the import rules names it.
    """

    def rows(self, parts: Sequence[Pages], keys: KeyBounds | None) -> Iterator[pa.RecordBatch]:
        """The rows (`ROWS`) in these parts, each once, in any order; with `keys` only those in the range.

        Raises ChangelogError: CONNECTION if the fence is gone, ALTERED if a migration waits for a table. It never gives
        rows of another cut.
        """

    def rows_at(self, locators: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[pa.RecordBatch]:
        """The rows (`ROWS`) that these locators find, by entity and leaf: all of them, as `rows` gave them before.

        Raises ChangelogError, as `rows` does.
        """


class Fence(Protocol):
    """A cut that is held. Every commit that it shows ends in the log at or before one place."""

    @property
    def text(self) -> str:
        """What it shows, in the database's own words: on the report's page, the words before the place."""

    @property
    def place(self) -> str:
        """That place in the log, as the database's own tools spell it."""

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
        """The tables of all entities that the fence was taken for, by entity."""

    @property
    def shown(self) -> Shown:
        """The transactions that it shows, in the epoch in which the source writes now; of earlier epochs it shows all.

        Exactly those: a source that does not know of some transaction whether its tables show it raises NoFenceError,
        or takes its cut again.
        """

    @property
    def scan(self) -> Scan:
        """What reads the tables."""

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """Whether the changelog that ends at `checkpoint` is of this cluster: of the server, or copies of it, whose log
        the fence was taken in.
        """

    def missing(self, checkpoint: Checkpoint) -> str | None:
        """Why a changelog of this cluster that ends at `checkpoint` may lack commits that the fence shows, as half a
        sentence after the changelog's name; None if it holds them all. Asked several times a second until it is None.
        """
