"""Sources: each reads one kind of database log. They know nothing of sinks.

A kind of database implements `Database`, the one door to it for the service: `changelog.connectors.wiring.sources` maps
the configuration to one, and nothing in the service knows which. What goes in and comes out is neutral.
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
"""Gives the last checkpoint of the changelog, or None for a new one. A source calls it once it is alone with its log:
it takes the changelog away from whoever held it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of committed transactions, or one part of a large one, in the order of the log.

    `rows` follow `changelog.envelope.columnar.batch.SCHEMA`; `checkpoint` is true once they are durable; `nbytes` is
    what the rows hold in memory, and `log_bytes` how much of the database's log lies between the checkpoint and the one
    before it. `urgent` says that the database waits for the confirmation.
    """

    rows: Sequence[pa.RecordBatch]
    checkpoint: Checkpoint
    nbytes: int
    log_bytes: int = 0
    urgent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a source does beside the pieces that it gives, for metrics.

    `windows_open` counts the chunks of tables that were asked for and are not published yet; `waiting` are the
    transactions whose end the reading of tables waits for. `invalid_stamps` and `ignored_signals` count what came
    since they were asked for last: provenance stamps that were not valid, and signals that were not obeyed.
    """

    windows_open: int = 0
    waiting: tuple[int, ...] = ()
    invalid_stamps: int = 0
    ignored_signals: int = 0


class Source(Protocol):
    """One opening of a database: an iterator of committed transactions, and the way to say that they are safe.

    It belongs to the thread of the publish loop.
    """

    def read(self, timeout_s: float, gather_s: float = 0.0) -> Piece | None:
        """The next piece; None when the timeout passes without one. A source may wait until what it was the first to
        hear is `gather_s` old: a piece of many small transactions costs little more than a piece of one.

        Raises ChangelogError; a deterministic stop only after everything before it was given.
        """

    def end(self) -> str:
        """Where the database's log ends now, as a `Checkpoint.through`; `read` then hurries to get there.

        Raises ChangelogError.
        """

    def confirm(self, checkpoint: Checkpoint) -> None:
        """Lets the source forget what is before the checkpoint; only after it is durable."""

    def close(self) -> None:
        """Releases the source's connections; what was not confirmed comes again."""

    def activity(self) -> Activity:
        """What it does beside giving pieces; each call gives the counts since the one before."""


class Changelog(Protocol):
    """What is stored of the changelog, as a source may ask for it; called after `Recover` only."""

    def versions(self) -> Iterable[Version]:
        """The versions of columns that it holds, oldest first."""

    def rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        """All rows of these entities that it holds now; of a single one, with `key`, those of that key."""


class ColumnInfo(Protocol):
    """A column as the catalogue has it now."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def not_null(self) -> bool:
        """Whether it never holds null."""


class TableInfo(Protocol):
    """A table that can be an entity, as the catalogue has it now."""

    @property
    def schema(self) -> str:
        """Where it is: the schema, or what the database calls it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def columns(self) -> Sequence[ColumnInfo]:
        """All of them, in order."""

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key; empty where there is none."""

    @property
    def rows_estimate(self) -> int:
        """About how many rows it has."""

    @property
    def nbytes(self) -> int:
        """Its size without indexes; 0 where it was not asked for."""

    @property
    def before_image(self) -> str:
        """What the log tells of a row before a change, in a few words of the database: `full`, `primary key`."""

    def key_problem(self, key: Sequence[str]) -> str | None:
        """Why these columns cannot identify its rows in a changelog, and what would help; None when they can."""

    def usable_key(self) -> tuple[str, ...] | None:
        """The columns that identify its rows: the primary key, else the first unique index that may; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What the server keeps for us: so many bytes of log, held by what `holder` names (as fields of a log event).

    `note` says how long it does, and how that is ended.
    """

    nbytes: int
    holder: Mapping[str, str]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What holds the server's log for us under our name: a replication slot, or what another kind of database has.

    `reader` is the server's process that reads the log through it now. `condition` is the server's own word for how
    well it holds; `is_lost` says that log which nobody has read yet is gone. `confirmed` is how far we confirmed, as
    the database spells it. `nbytes` is the log that the server keeps because of it, and `xids` how many transaction ids
    it holds the catalogue back by; both are None while unknown, or where the server does not count so.
    """

    name: str
    reader: int | None
    condition: str | None
    is_lost: bool
    confirmed: str
    nbytes: int | None
    xids: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """One thing that a service leaves in its database; `kind` is the word that `changelog drop` names it by.

    `nbytes` is the log that the server keeps because of it; None for what keeps none.
    """

    kind: str
    name: str
    exists: bool
    nbytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogEnd:
    """Where a changelog ends, for whoever goes over a gap: its last checkpoint, None where there is none that can be
    read; the highest epoch of any row; when the last row was committed, where that is known; and the entities whose
    stored rows are gone in part.
    """

    checkpoint: Checkpoint | None
    epoch: int
    committed_at: datetime | None
    lost: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedGap:
    """The checkpoint to go on from after a gap, and the rows that tell of the gap: to be stored in one commit."""

    checkpoint: Checkpoint
    records: Sequence[Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """A database as the service sees it while it runs.

    `end` is where its log ends, as a `Checkpoint.through`, and `lag_bytes` how much log is left to read until there, 0
    where there is none. `waits_for` says in words why the server sends nothing to this process, None when it does or
    when nobody knows. `hold` is None where nothing holds the log for us, `retained` is None while unknown.
    """

    end: str
    lag_bytes: int
    waits_for: str | None
    hold: Hold | None
    retained: Retained | None


TableName = tuple[str, str]
"""The schema and the name of a table."""


def no_table(_: TableName) -> bool:
    """Chooses none."""
    return False


class Candidate(Protocol):
    """A database that no configuration names yet, as `changelog init` asks it."""

    def name(self) -> str:
        """What the server calls the database. Raises ChangelogError where it cannot be asked."""

    def tables(self, includes: Callable[[TableName], bool]) -> Sequence[TableInfo]:
        """Those of the tables that can be published which `includes` chooses, by schema and name, with their sizes.

        Raises ChangelogError.
        """

    def grants(self, tables: Collection[TableName]) -> str:
        """A script for whoever administers the database: the roles that set the service up and run it, with the rights
        that publishing these tables takes. It sets no passwords. Raises ChangelogError.
        """


class Database(Protocol):
    """A configured database: the façade of a kind of source. It holds no connection; each call makes its own."""

    def tables(self, *, sized: Callable[[TableName], bool] = no_table) -> Sequence[TableInfo]:
        """The tables that the database has now and that can be published, by schema and name.

        `sized` says which ones to ask for their size, too, which may wait while a table is locked. May be called at any
        time, beside an open source too; a wait for a lock ends with the service's stop. Raises ChangelogError.
        """

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """For each entity, in their order, the columns and types that the service would publish, if the log's were
        those that the catalogue has now: what schema files are made of.

        May be called at any time. Raises ChangelogError, PRECONDITION where a table is gone or its key is lost.
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
    ) -> Source:
        """Opens the log where the changelog ends, and begins to read what is missing from tables.

        In this order: it makes sure that it alone reads the log under its name (IN_USE otherwise), calls `recover`,
        which fences whoever wrote before, and streams from the checkpoint that this gives. It refuses where going on
        would not be exact: GAP where the log does not reach back to the checkpoint, DIVERGED where it is another
        log, SETTINGS where what shapes the changelog has changed. The two flags let those pass that an operator has
        accepted. At most one source is open at a time; after `close`, the next may be opened.

        `reach` is called with the name of each step that a crash is tried at. Raises ChangelogError.
        """

    def status(self, through: str) -> SourceStatus:
        """How the database is now, for metrics; called every few seconds from another thread than the source's.

        `through` is the `Checkpoint.through` that was reached, empty before the first one.
        Raises ChangelogError where the database cannot be asked.
        """

    def retained(self) -> Retained | None:
        """What the server keeps for us; None where it keeps nothing, cannot be asked or does not answer soon.

        For the end of a process, when nobody waits long any more. Raises nothing.
        """

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """Raises ChangelogError (IN_USE), naming who, where another process reads the log under our name.

        Passes where nobody does, and where the database cannot be asked or does not answer soon; with `must_answer` it
        waits for the answer as every other call does, and raises the error of a database that cannot be asked.
        """

    def check(self, entities: Sequence[Entity], stored: Checkpoint | None) -> Sequence[Finding]:
        """Every precondition of reading these entities: of the server, of what the service keeps in it, of each table,
        of what is known to have changed without a row event, and of who else may send signals.

        `stored` is the changelog's checkpoint, None before it is begun: with it, the log must reach back to that. A
        finding that fails is one that `open` refuses for; its `fix` is what `fix` may run, the way to mend it without
        loss. Changes nothing, and may be called beside a running service. Raises ChangelogError where the database
        cannot be asked.
        """

    def fix(self, statements: Iterable[str]) -> None:
        """Runs statements out of the `fix` of findings, one after the other, each for itself.

        They may wait for a table that is in use, for as long as it takes: a person looks on, and may interrupt them.
        Raises ChangelogError for the first that the server refuses; those before it are done.
        """

    def clock_ahead_s(self) -> float:
        """How many seconds the database's clock, which tells the times of commits, is ahead of this machine's.

        Raises ChangelogError where the database cannot be asked.
        """

    def hold(self) -> Hold | None:
        """What holds the log for us now; None where nothing does, before the first start or after a drop.

        May be called at any time, beside a running service too. Raises ChangelogError where the database cannot be
        asked.
        """

    def send_signals(self, signals: Iterable[Signal]) -> str:
        """Writes signals into the database's log, each alone in a transaction and signed where the configuration has a
        secret, in their order; gives where the log ends after the last one, as a `Checkpoint.through`; empty if there
        was none.

        The service has taken note of them once its checkpoint is past that place. Any role that may write to the log
        may send them, beside a running service or without one: they wait in the log until a service reads it. Raises
        ChangelogError; the signals before the one that failed are sent then.
        """

    def spell(self, through: str) -> str:
        """A place in the log, as a `Checkpoint.through`, the way the database's own tools spell it."""

    def log_facts(self, stored: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """What a person should know of the log before going over a gap: lines of a heading of one word and a text.

        Where there is a checkpoint `stored`, the first line has an empty heading and says where that is in the log. The
        others tell of the database now. Raises ChangelogError where it cannot be asked.
        """

    def cross_gap(
        self,
        entities: Sequence[Entity],
        stored: Checkpoint | None,
        take_over: Callable[[], ChangelogEnd],
        *,
        reason: str,
        keep_hold: bool,
        accept_settings: bool,
        reach: Reach = nowhere,
    ) -> AbstractContextManager[CrossedGap]:
        """Goes over a gap: finds where the changelog goes on that the log no longer joins on to.

        The changelog goes on in an epoch of its own, after the highest one that it holds; every table is read again,
        and keys that it lacks are deleted. `stored` is the checkpoint as readers see it, `reason` the message of the
        error that a start stops with. `take_over` is called once, before the block and once the log is ours alone: it
        takes hold of the sink and says where the changelog ends. What the block is given is to be stored in it, in one
        commit; until that is done, every start finds the gap as before. Where the log still joins on and has only moved
        past the changelog's end, what holds it stays if `keep_hold`; in every other case there is a new hold.

        Raises ChangelogError: SETTINGS and PRECONDITION as `open` does, IN_USE while another process reads the log.
        """

    def fence(self, entities: Sequence[Entity], *, deadline: float) -> AbstractContextManager[Fence]:
        """Cuts the database and the changelog of these entities alike, for a comparison; holds the cut until the block
        ends. The log then moves past the cut even where nobody writes. May be called beside a running service.

        `deadline` (of `time.monotonic`) limits the wait for tables that are locked. Raises NoFenceError where there is
        no such cut, ALTERED where a table is gone.
        """

    def remnants(self) -> Sequence[Remnant]:
        """What the service leaves in the database, whether it exists or not, in the order in which people are told.

        Raises ChangelogError where the database cannot be asked.
        """

    def drop(self, kind: str) -> None:
        """Drops one of the `remnants`, which exists; only while no service reads the log, or it is refused.

        Without what holds its log, the service cannot go on where it was: that is a gap. Raises ChangelogError, ACCESS
        where the thing belongs to another role.
        """
