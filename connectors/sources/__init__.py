"""Defines the contract of a source: what the service needs from each kind of database. Sources know nothing of sinks.

Each kind of database implements `Database`, and the service uses databases only through this protocol. No argument or
result depends on the kind of database. `changelog.connectors.wiring.sources` chooses the implementation from the
configuration, and the rest of the service does not know which one it is. Spark's executors also use the `Scan` of a
fence (`changelog.connectors.sources.fences`). They receive the scan pickled. To unpickle it, they import only the
scan's module and what that module imports.

The *log* is the database's log of commits. A *checkpoint* says how far the changelog reaches: its `through` is a
position in the log, as a text that only the source understands. An *entity* is a published table. The log can begin a
new history, for example when a standby is promoted; an *epoch* is the number of such a history. A *gap* is a part of
the log that the changelog lacks and that can no longer be read.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.findings import Finding
from changelog.connectors.sources.fences import Fence
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.model import Record
from changelog.envelope.signal import Signal
from changelog.envelope.versions import Version
from changelog.schemas.types import Struct

Recover = Callable[[], Checkpoint | None]
"""Shuts the previous writer out of the changelog, and returns the last checkpoint; None for a new changelog.

A source calls it exactly once, after it has made sure that no other process reads the log under our name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive committed transactions, or a part of one large transaction, in the order of the log.

    `rows` have the columns of `changelog.envelope.columnar.batch.SCHEMA`. `checkpoint` is valid once these rows and the
    rows of all earlier pieces are durable. `nbytes` is how much memory the rows take. `log_bytes` is how much of the
    database's log lies between the checkpoints of the previous piece and of this piece. `urgent` says that the database
    waits for the confirmation of this piece, that a comparison waits until the piece's checkpoint is stored, or that
    the checkpoint was made when the source was opened. The service stores an urgent piece at once, unless it is
    gathering rows: then it stores the piece together with them.
    """

    rows: Sequence[pa.RecordBatch]
    checkpoint: Checkpoint
    nbytes: int
    log_bytes: int = 0
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Figures about a source, for metrics.

    A window is the reading of one chunk of a table; `windows_open` counts the chunks that were requested and are not
    published yet. `waiting` holds the ids of the transactions that must end before the reading of tables can continue.
    `invalid_stamps` (provenance stamps) and `ignored_signals` are counted since the previous call of `activity`.
    """

    windows_open: int = 0
    waiting: tuple[int, ...] = ()
    invalid_stamps: int = 0
    ignored_signals: int = 0


class ChangeSource(Protocol):
    """An open database. The service reads committed transactions from it, and tells it which of them are stored.

    Only the thread of the publish loop calls its methods.
    """

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """Returns the next piece, or None if the timeout passes without one.

        To put many small transactions into one piece, a source may continue to receive data until `gather_s` seconds
        after the piece's first data arrived. Such a piece costs little more than a piece with a single transaction.
        Raises ChangelogError. If the log causes an error at some position, and would cause it again after every
        restart, the error is raised only after all rows before that position were returned.
        """

    def end(self) -> str:
        """Returns where the database's log ends now, as a `Checkpoint.through`. Raises ChangelogError.

        After this call, `read` no longer waits to gather more data, so it reaches this end soon.
        """

    def confirm(self, checkpoint: Checkpoint) -> None:
        """Lets the source and its server forget the log before `checkpoint`, which must already be durable."""

    def close(self) -> None:
        """Closes the source's connections. Rows that were not stored are returned again after the next `open`."""

    def activity(self) -> Activity:
        """Returns figures for metrics."""


class Changelog(Protocol):
    """Lets a source read the stored changelog. The source calls these methods only after it has called `Recover`."""

    def versions(self) -> Iterable[Version]:
        """Returns the stored versions of all entities' columns, oldest first."""

    def rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        """Yields all stored rows of these entities, in any order; with `key`, only the rows with this key."""


class ColumnInfo(Protocol):
    """A column as the catalogue describes it now."""

    @property
    def name(self) -> str:
        """The column's name."""

    @property
    def not_null(self) -> bool:
        """Whether the column never holds null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """The property of a table that decides how much of its changes the log contains.

    `name` is what the database calls the property, such as `replica identity`, and `value` is its value for this table.
    `suffices` says that with this value, the log contains the whole row before and after each change.
    """

    name: str
    value: str
    suffices: bool


class TableInfo(Protocol):
    """A table that can be published as an entity, as the catalogue describes it now."""

    @property
    def schema(self) -> str:
        """The table's schema, or whatever this database has in place of schemas."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def columns(self) -> Sequence[ColumnInfo]:
        """All columns of the table, in order."""

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty if the table has none."""

    @property
    def rows_estimate(self) -> int:
        """About how many rows the table has."""

    @property
    def nbytes(self) -> int:
        """The table's size in bytes without indexes; 0 if the caller did not ask for sizes."""

    @property
    def trait(self) -> Trait:
        """The property that decides how much of the table's changes the log contains."""

    def key_problem(self, key: Sequence[str]) -> str | None:
        """Returns why these columns cannot identify the table's rows, and what would help; None if they can."""

    def usable_key(self) -> tuple[str, ...] | None:
        """Returns the columns of the primary key, or else of a unique index, if they can be the key; otherwise None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The log that the server keeps for us: how much, and why.

    `nbytes` is the size of that log. `holder` names what makes the server keep it, as fields for our own log events.
    `note` says until when the server keeps the log, and how a person can make the server discard it.
    """

    nbytes: int
    holder: Mapping[str, str]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The object because of which the server keeps its log for us, such as a replication slot of PostgreSQL.

    `kind` says in one word what it is, such as `slot`, or `log` if the server keeps its log for a fixed time. `reader`
    is the server process that reads the log through this hold now; None if no process does. `condition` is the server's
    own word for the state of the hold; None if unknown. `is_lost` means that the server has removed log that we have
    not read yet. `confirmed` is the log position, as the database prints it, up to which we told the server that it may
    forget the log. `nbytes` is how much log the server keeps because of the hold. The server also keeps old states of
    its catalogue because of the hold; `xids` is the age of the oldest one, in transaction ids. `nbytes` and `xids` are
    None if they are unknown.
    """

    kind: str = "slot"
    name: str
    reader: int | None
    condition: str | None
    is_lost: bool
    confirmed: str
    nbytes: int | None
    xids: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """One thing that the service creates in its database and leaves there, such as a slot or a publication.

    `kind` is the word by which `changelog drop` names it. `nbytes` is how much log the server keeps for it, or None.
    """

    kind: str
    name: str
    exists: bool
    nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogEnd:
    """Where a changelog ends, as `Database.cross_gap` needs it.

    `checkpoint` is None if no checkpoint can be read. `epoch` is the highest epoch of any stored row. `committed_at` is
    when the database committed the last row; None if unknown. `lost` names the entities of which the sink lost rows.
    """

    checkpoint: Checkpoint | None
    epoch: int
    committed_at: datetime | None
    lost: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedGap:
    """The checkpoint from which the changelog continues after a gap, and the rows that describe the gap."""

    checkpoint: Checkpoint
    records: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The state of a database while the service runs.

    `end` is where the log ends, as a `Checkpoint.through`. `lag_bytes` is how much log is left to read until that end.
    `waits_for` says in words why the server sends nothing to this process; None if it sends something, or if the reason
    is unknown. `hold` is None if nothing holds the log for us. `retained` is None if it is unknown.
    """

    end: str
    lag_bytes: int
    waits_for: str | None
    hold: Hold | None
    retained: Retained | None


TableName = tuple[str, str]
"""The schema and the name of a table."""


def no_table(_: TableName) -> bool:
    """The default of `sized` in `Database.tables`: chooses no table."""
    return False


class Database(Protocol):
    """A configured database. It holds no connection: each call opens its own."""

    @property
    def reads_tables(self) -> bool:
        """Whether the service can read tables, besides the log. If not, it cannot repair or compare tables."""

    def tables(self, *, sized: Callable[[TableName], bool] = no_table) -> Sequence[TableInfo]:
        """Returns the tables that exist now and can be published, sorted by schema and name.

        `sized` chooses the tables whose sizes are also read. Reading a size may wait until another session unlocks the
        table, or until the service stops. May be called while a source is open. Raises ChangelogError.
        """

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """Returns for each entity, in the same order, the columns and types that the service would publish now.

        The columns come from the present catalogue, not from the log; schema files are generated from them. May be
        called at any time. Raises ChangelogError: PRECONDITION if a table is gone, or lacks a key column of its entity.
        """

    def open(
        self,
        entities: Sequence[Entity],
        recover: Recover,
        changelog: Changelog,
        *,
        accept_settings: bool = False,
        accept_cluster: bool = False,
        reach: Reach = nowhere,
    ) -> ChangeSource:
        """Opens the log at the end of the changelog, and begins to read tables that are not yet published.

        First, it makes sure that no other process reads the log under our name; it raises IN_USE if one does. Second,
        it calls `recover`, after which the previous writer of the changelog can no longer write to it. Third, it
        streams from the checkpoint that `recover` returned.

        It raises ChangelogError if the changelog cannot be continued correctly. GAP: the log no longer reaches back to
        the checkpoint. DIVERGED: the log lacks commits that were published. SETTINGS: a setting has changed that
        decides the order or the content of the changelog. `accept_settings` says that an operator has accepted such a
        change, and `accept_cluster` that an operator has accepted the move to another database cluster. At most one
        source is open at a time.

        `reach` is called with a name at each step where tests can crash the process.
        """

    def status(self, through: str, checkpoint: Checkpoint | None = None) -> SourceStatus:
        """Returns the state of the database, for metrics. It is called every few seconds, from a thread of its own.

        `through` is the `Checkpoint.through` that the service has reached; it is empty before the first checkpoint.
        `checkpoint` is the stored checkpoint, if the caller has it. Some databases need the checkpoint to know whether
        log is lost (`Hold.is_lost`); without the checkpoint, they say that no log is lost.

        Raises ChangelogError if the database cannot be reached.
        """

    def retained(self) -> Retained | None:
        """Returns how much log the server keeps for us, and why.

        Returns None if the server keeps none, or does not answer soon. Must not wait long. Raises nothing.
        """

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """Raises ChangelogError (IN_USE), naming the reader, if another process reads the log under our name.

        If the database cannot be reached or does not answer soon, returns without an error. With `must_answer`, waits
        for the answer as long as the other methods do, and raises ChangelogError if the database cannot be reached.
        """

    def check(self, entities: Sequence[Entity], checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """Returns a finding for each precondition that must hold before these entities can be read.

        The preconditions concern the server, the things that the service keeps in it, each table, table changes that
        the log does not show, and the roles that may send signals. `checkpoint` is the changelog's checkpoint, None
        before the changelog begins; if there is one, the log must reach back to it.

        `open` raises an error if there is a finding with the status `fail`. A finding's `fix` holds statements that
        remove the cause without losing anything; the method `fix` runs them. `check` itself changes nothing, and may be
        called while a service runs. Raises ChangelogError if the database cannot be reached.
        """

    def fix(self, statements: Iterable[str]) -> None:
        """Runs statements from the `fix` of findings, one after the other, each in a transaction of its own.

        A statement may wait without limit for a table that is in use: a person watches and can interrupt it. Raises
        ChangelogError for the first statement that the server refuses; the statements before it keep their effect.
        """

    def clock_ahead_s(self) -> float | None:
        """Returns by how many seconds the database's clock is ahead of this machine's clock; None if it is unknown.

        Commit times come from the database's clock. Raises ChangelogError if the database cannot be reached.
        """

    def hold(self) -> Hold | None:
        """Returns the hold that the server has for us; None if there is none (before the first start or after `drop`).

        May be called at any time, also while a service runs. Raises ChangelogError if the database cannot be reached.
        """

    def send_signals(self, signals: Iterable[Signal]) -> str:
        """Writes signals into the database's log, in their order, each in a transaction of its own.

        The signals are signed if the configuration has a secret. Returns where the log ends after the last signal, as a
        `Checkpoint.through`; an empty string if there are no signals. When the service's checkpoint is past that
        position, the service has read the signals.

        Any role that may write to the log may send signals, whether or not a service runs: a signal stays in the log
        until a service reads it. Raises ChangelogError; the signals before the one that failed are then in the log.
        """

    def spell(self, through: str) -> str:
        """Returns the log position `through` (a `Checkpoint.through`) as the database's own tools print it."""

    def log_facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """Returns what a person should know about the log before `cross_gap`, as pairs of a heading and a text.

        A heading is one word. If `checkpoint` is not None, the first pair has an empty heading and says where that
        checkpoint is in the log; the other pairs describe the database now. Raises ChangelogError.
        """

    def cross_gap(
        self,
        entities: Sequence[Entity],
        checkpoint: Checkpoint | None,
        take_over: Callable[[], ChangelogEnd],
        *,
        reason: str,
        keep_hold: bool,
        accept_settings: bool,
        reach: Reach = nowhere,
    ) -> AbstractContextManager[CrossedGap]:
        """Crosses a gap: continues a changelog at a later log position, because the log in between is lost.

        The changelog continues in a new epoch: one above the highest that it contains. The service then reads every
        table again and publishes a delete for each key that the table lacks. `checkpoint` is the last one that readers
        see; None if none can be read. `reason` is the message of the error with which a normal start fails.

        `take_over` is called once, before the block begins, when no other process can read the log under our name. It
        shuts the previous writer out of the sink and returns where the changelog ends. Inside the block, the caller
        stores the yielded checkpoint and rows in one commit. Until that commit, every start finds the gap again.

        With `keep_hold`, the present hold (`Hold`) stays if three things are true: the log is the same as before, it
        can be read through this hold, and the hold begins after the changelog's end. Else a new hold replaces it.

        Raises ChangelogError: IN_USE while another process reads the log; SETTINGS and PRECONDITION, like `open`.
        """

    def fence(self, entities: Sequence[Entity], *, deadline: float) -> AbstractContextManager[Fence]:
        """Takes a fence for these entities and holds it until the block ends.

        A fence is one cut through the database and the changelog: a comparison of the two uses the same transactions on
        both sides. If the fence is lost inside the block, an error is raised at the end of the block.
        `changelog.connectors.sources.fences` says what an implementation must guarantee. `deadline`, in the seconds of
        `time.monotonic`, limits the wait for locked tables. May be called while a service runs and while other fences
        are held.

        A running service must soon store a checkpoint after the cut, even if nobody writes to the database. If such a
        checkpoint needs a new entry in the log, the fence writes an empty message. The capture core receives it with
        the prefix `changelog.envelope.signal.FENCE_PREFIX` and tells the source, which then returns an `urgent` piece.
        While the fence is held, a change of a table's definition waits, or makes the scan raise ALTERED, or does not
        matter to the scan, because the scan reads a copy.

        Raises NoFenceError if no fence can be taken, ALTERED if a table is gone.
        """

    def remnants(self) -> Sequence[Remnant]:
        """Returns the things that the service creates in the database, including those that do not exist now.

        Commands list them in this order. Raises ChangelogError if the database cannot be reached.
        """

    def drop(self, kind: str) -> None:
        """Drops the remnant of this kind, which must exist. Refuses to do so while a service reads the log.

        Once the hold is dropped, the service can no longer continue where it stopped, so the changelog has a gap.
        Raises ChangelogError: ACCESS if the thing belongs to another role.
        """
