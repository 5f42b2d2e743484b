"""Defines fences. A fence is a cut through a database; a comparison reads the tables and the changelog at this cut.

The cut is a set of transactions: the fence *shows* these transactions. The tables are read as these transactions left
them, and the comparison uses only those rows of the changelog that these transactions wrote. So both sides contain the
same transactions, although applications continue to write. One process holds the fence during the comparison. It hands
the fence's `scan` to other processes, which read the tables.

An implementation must guarantee three things. If one of them fails, a comparison reports differences (drift) that do
not exist:

1. In every process and until the fence ends, a `Scan` reads the effects of exactly the transactions in `Fence.shown`.
2. If `Fence.missing` returns None, the changelog holds every transaction in `Fence.shown`.
3. A `Scan` encodes rows as they are encoded for messages: with the same masks, row filters, types and text forms, and
   without the columns that messages leave out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol

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
"""What a `Scan` yields for each row of a table. `key` and `current` are what a message for this row would have: the
canonical key, and the row's state as JSON. `json_null` is a JSON array with the names of the columns that hold JSON's
null; null if there are none. `leaf` is the number of the leaf that the row is in (see `FencedTable`), and never null.
With `locator`, the source can find the row in that leaf again."""


class NoFenceError(ChangelogError):
    """No fence can be taken. `later` says that only another session prevents it, so a later attempt can succeed."""

    def __init__(self, message: str, *, hint: str, later: bool) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedTable:
    """A table at the fence: how its rows are encoded, and the sizes of its leaves.

    `binding` has the columns and types that the table has at the fence. The comparison compares these columns.
    `leaf_pages` holds the size of each leaf, in pages.

    A leaf is a unit that stores rows: the table itself, or one of its partitions. Pages are numbered parts of a leaf,
    about 8 KiB each. Tasks divide the reading of a leaf by pages, which can be the server's own pages or ranges of keys
    that the scan knows. Every row that the fence shows is in exactly one page. A page's number may exceed the size in
    `leaf_pages`, so a reader gets all rows only if it reads to the end of the leaf (`Pages.end` is None).
    """

    binding: Binding
    leaf_pages: tuple[int, ...]

    @property
    def entity(self) -> Entity:
        """The entity that the table belongs to."""
        return self.binding.entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The pages from `first` up to, but not including, `end`, in one leaf of an entity's table.

    If `end` is None, the pages go to the end of the leaf.
    """

    entity: str
    leaf: int
    first: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBounds:
    """A range of keys: those in which `column` has a value of at least `first` and less than `end`.

    A bound that is None does not limit the range.

    The bounds are integers, or strings that the database reads as values of the column's type. `by_bytes` says that the
    column holds strings, and that they are compared by their bytes in UTF-8, whatever the column's collation is.
    """

    column: str
    by_bytes: bool
    first: int | str | None
    end: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The transactions that a fence shows: those whose id is below `end`, except for the few in `hidden`.

    `ids` says what the ids are. With "transactions", they are numbers that the source gives its transactions
    (`Transaction.xid` of the capture core, the column `transaction` of the changelog). With "commits", they are the
    commit numbers in the positions of the rows. A source uses "commits" if it has no increasing numbers for its
    transactions.

    A source may number transactions in the order in which they begin, as PostgreSQL does. Then `hidden` holds the
    transactions that were open at the fence. Or a source may number them in the order of the database's log. Then `end`
    is where the log ended at the fence, and `hidden` holds the commits before `end` that readers of the tables did not
    see yet. Ids are compared only within an epoch (a history of the log, as in positions). `hidden` must be short,
    because a Spark query lists all of it.
    """

    end: int
    hidden: Sequence[int]
    ids: Literal["transactions", "commits"] = "transactions"


class Scan(Protocol):
    """Reads the tables of a fence, in any process, while the fence is held.

    A scan can be pickled. It contains secrets, so it is sent only to workers. Each call opens its own session or file.
    Several calls may read the same rows.

    Spark's executors import the module of the scan's class. So that module may import only the envelope, the schemas,
    the capture core, `changelog.connectors.sources.fences`, and the modules that read its database. An import rule in
    `pyproject.toml` checks this.
    """

    def rows(self, parts: Sequence[Pages], keys: KeyBounds | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows in these parts, each once and in any order, with the columns of `ROWS`.

        If `keys` is given, yields only the rows whose keys are in that range. Raises ChangelogError: CONNECTION if the
        fence no longer exists, ALTERED if a migration waits to change a table. Never yields rows of another cut.
        """

    def rows_at(self, locators: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[pa.RecordBatch]:
        """Yields the rows with these locators again, exactly as `rows` yielded them, with the columns of `ROWS`.

        `locators` maps the name of an entity and the number of a leaf to the locators of rows in that leaf. Raises
        ChangelogError, as `rows` does.
        """


class Fence(Protocol):
    """A fence that a process holds now."""

    @property
    def text(self) -> str:
        """The transactions that the fence shows, in the database's own notation, for people to read."""

    @property
    def place(self) -> str:
        """A log position, as the database's tools print it. All commits that the fence shows end here or earlier."""

    @property
    def database(self) -> str:
        """The server's name for the database."""

    @property
    def server(self) -> str:
        """The version of the server."""

    @property
    def taken_at(self) -> datetime:
        """When the fence was taken."""

    @property
    def tables(self) -> Mapping[str, FencedTable]:
        """The tables of the entities that the fence was taken for, by the name of the entity."""

    @property
    def shown(self) -> Shown:
        """Which transactions of the present epoch the fence shows. It shows all transactions of older epochs.

        The result must be exact. If a source cannot tell whether its tables show some transaction, it raises
        NoFenceError or takes the fence again.
        """

    @property
    def scan(self) -> Scan:
        """The scan that reads the tables under the fence."""

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """Returns whether the changelog that ends at `checkpoint` was made from the cluster of the fence.

        A cluster is a server together with its physical copies (standbys): their logs have one origin.
        """

    def missing(self, checkpoint: Checkpoint) -> str | None:
        """Returns why a changelog that ends at `checkpoint` may lack commits that the fence shows.

        The changelog must be of the fence's cluster (`is_of`). The reason is half a sentence that follows the name of
        the changelog. Returns None if the changelog holds all these commits. A comparison calls this several times a
        second until it returns None.
        """
