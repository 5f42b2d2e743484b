"""Sources: each reads one kind of database log. They know nothing of sinks.

A kind of database implements `Database`, the one door to it for the service: `changelog.connectors.wiring.sources`
chooses one from the configuration, and the rest of the service does not know which. Arguments and results do not depend
on the kind of database. Spark's executors use one more door, the `Scan` of a fence: it comes to them pickled, so they
import the module of its class, and of the source only what that imports.
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
"""Returns the last checkpoint of the changelog, or None for a new one. A source calls it as soon as nobody else reads
its log. The call takes the changelog over from its earlier holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of committed transactions, or one part of a large one, in the order of the log.

    `rows` follow `changelog.envelope.columnar.batch.SCHEMA`; `checkpoint` is true once they are durable; `nbytes` is
    what the rows hold in memory, and `log_bytes` how much of the database's log lies between the checkpoint and the one
    before it. `urgent` says that the database waits for the confirmation, or a comparison for the checkpoint: both are
    then stored at once.
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
    transactions whose end the reading of tables waits for. `invalid_stamps` and `ignored_signals` count since the last
    call: provenance stamps that were invalid, and signals that were ignored.
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
        """The next piece; None when the timeout passes without one. A source may wait until the first data it received
        is `gather_s` old, to gather more: a piece of many small transactions costs little more than a piece of one.

        Raises ChangelogError; a deterministic stop is raised only after everything before it was returned.
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
    """Lets a source read what is stored of the changelog; only after it has called `Recover`."""

    def versions(self) -> Iterable[Version]:
        """The versions of columns that it holds, oldest first."""

    def rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        """All rows of these entities that it holds now, in any order. With `key`, which needs a single entity, only
        that key's.
        """


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
        """The schema that it is in, or what this database has in place of schemas."""

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
        """What the log holds of a row before a change, in the database's own terms: `full`, `primary key`."""

    def key_problem(self, key: Sequence[str]) -> str | None:
        """Why these columns cannot identify its rows in a changelog, and what would help; None when they can."""

    def usable_key(self) -> tuple[str, ...] | None:
        """The columns that identify its rows: the primary key, or else a unique index that fits; or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The log that the server keeps for us: `nbytes` of it, because of what `holder` names, as fields of a log event.

    `note` says until when the server keeps the log, and how to end that.
    """

    nbytes: int
    holder: Mapping[str, str]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What holds the server's log for us under our name: a replication slot, or what another kind of database has.

    `reader` is the server's process that reads the log through it now. `condition` is the server's own word for how
    well it holds; `is_lost` means that the server has removed log that nobody has read yet. `confirmed` is the place
    up to which we confirmed the log, as the database spells it. `nbytes` is how much log the server keeps because of
    the hold; `xids` is the age, in transaction ids, of the oldest state of the catalogue that it keeps. Both are None
    if they are unknown, or if the server does not measure them.
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
    """Where a changelog ends, as crossing a gap needs it.

    `checkpoint` is None if none can be read. `epoch` is the highest of any row. `committed_at` is when the last row was
    committed, None if unknown. `lost` are the entities of which some stored rows are gone.
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
        """The tables that can be published and that `includes` accepts, by schema and name, with their sizes.

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

        `sized` chooses the tables whose size is read, too; that may wait while a table is locked. May be called at any
        time, beside an open source too; a wait for a lock ends with the service's stop. Raises ChangelogError.
        """

    def shapes(self, entities: Sequence[Entity]) -> Sequence[Struct]:
        """For each entity, in this order, the columns and types that the service would publish if the log had the same
        ones as the catalogue has now. Schema files are made from these.

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
        which fences whoever wrote before, and streams from the checkpoint that `recover` returned. It refuses where
        going on would not be exact: GAP where the log does not reach back to the checkpoint, DIVERGED where it is
        another log, SETTINGS where what shapes the changelog has changed. With `accept_settings` and `accept_cluster`,
        an operator has accepted changed settings, or another cluster. At most one source is open at a time; after
        `close`, the next may be opened.

        `reach` is called with the name of each step at which tests try a crash. Raises ChangelogError.
        """

    def status(self, through: str) -> SourceStatus:
        """How the database is now, for metrics; called every few seconds from another thread than the source's.

        `through` is the `Checkpoint.through` that was reached, empty before the first one.
        Raises ChangelogError where the database cannot be asked.
        """

    def retained(self) -> Retained | None:
        """What the server keeps for us; None where it keeps nothing, cannot be asked or does not answer soon.

        Used when a process ends and must not wait long. Raises nothing.
        """

    def refuse_if_read(self, *, must_answer: bool = False) -> None:
        """Raises ChangelogError (IN_USE), naming who, where another process reads the log under our name.

        Passes where nobody does, and where the database cannot be asked or does not answer soon; with `must_answer` it
        waits for the answer as every other call does, and raises the error of a database that cannot be asked.
        """

    def check(self, entities: Sequence[Entity], stored: Checkpoint | None) -> Sequence[Finding]:
        """Every precondition of reading these entities: of the server, of what the service keeps in it, of each table,
        of what is known to have changed without a row event, and of who else may send signals.

        `stored` is the changelog's checkpoint, None before the changelog begins; if there is one, the log must reach
        back to it. `open` refuses for every finding with status `fail`. A finding's `fix` holds statements for the
        method `fix`, which repair the cause without loss. Changes nothing, and may be called beside a running service.
        Raises ChangelogError where the database cannot be asked.
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
        secret, in their order. Returns where the log ends after the last one, as a `Checkpoint.through`; empty without
        signals.

        The service has taken note of them once its checkpoint is past that place. Any role that may write to the log
        may send them, beside a running service or without one: they wait in the log until a service reads it. Raises
        ChangelogError; the signals before the one that failed are sent then.
        """

    def spell(self, through: str) -> str:
        """A place in the log, as a `Checkpoint.through`, the way the database's own tools spell it."""

    def log_facts(self, stored: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """What a person should know about the log before crossing a gap, as pairs of a heading (one word) and a text.

        With `stored`, the first pair has an empty heading and says where that checkpoint is in the log. The other pairs
        describe the database as it is now. Raises ChangelogError where it cannot be asked.
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
        """Crosses a gap: the log no longer continues the changelog, so this finds the place where it resumes.

        The changelog goes on in an epoch of its own, after the highest one that it holds; every table is read again,
        and keys that it lacks are deleted. `stored` is the checkpoint as readers see it, `reason` the message of the
        error that a start stops with. `take_over` is called one time, before the block, when nobody else can read the
        log under our name: it takes hold of the sink and returns where the changelog ends. Inside the block, the caller
        stores what it was given, in one commit; until that is done, every start finds the gap as before. If it is still
        the same log and has only moved past the changelog's end, the hold stays with `keep_hold`; in every other case a
        new one replaces it.

        Raises ChangelogError: SETTINGS and PRECONDITION as `open` does, IN_USE while another process reads the log.
        """

    def fence(self, entities: Sequence[Entity], *, deadline: float) -> AbstractContextManager[Fence]:
        """Makes one cut through the database and the changelog of these entities, to compare both; holds it until the
        block ends, and raises there if it was lost meanwhile. What that takes, `changelog.connectors.sources.fences`
        tells.

        A running service stores a checkpoint past the cut soon, even where nobody writes. Where that takes a write to
        the log, the fence makes one after the cut, and an open source gives an `urgent` piece for it: the capture core
        knows a message with the prefix `changelog.envelope.signal.FENCE_PREFIX` and tells the source of it. While the
        cut is held, changes of the tables' definitions wait, or the scan raises ALTERED. May be called beside a running
        service, and while other fences are held.

        `deadline` (of `time.monotonic`) limits the wait for tables that are locked. Raises NoFenceError where there is
        no such cut, ALTERED where a table is gone.
        """

    def remnants(self) -> Sequence[Remnant]:
        """What the service leaves in the database, whether it exists or not, in the order in which people read it.

        Raises ChangelogError where the database cannot be asked.
        """

    def drop(self, kind: str) -> None:
        """Drops one of the `remnants`, which exists; only while no service reads the log, or it is refused.

        Without what holds its log, the service cannot go on where it was: that is a gap. Raises ChangelogError, ACCESS
        where the thing belongs to another role.
        """
