"""The fence: one snapshot of the source that both sides of a comparison are cut by.

A row of the changelog counts iff its transaction is visible in the snapshot, by its 64-bit id: so both sides show the
same transactions, however much is written meanwhile. It is exact only once the changelog holds every transaction that
the snapshot shows, for which `until_behind` waits; and only on a server that writes: a standby does not list the
transactions in progress.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import psycopg
from psycopg import sql

from connectors import entities
from connectors.config import Config
from connectors.sinks import Log
from connectors.sources.postgres.binding import Binding
from connectors.sources.postgres.catalog import Table, read_tables
from connectors.sources.postgres.connection import connect, explain, translated
from connectors.sources.postgres.patience import Patience
from connectors.sources.postgres.progress import is_complete
from connectors.sources.postgres.reading import bind_table
from connectors.sources.postgres.repairs import Repairs
from connectors.sources.postgres.snapshot import quoted
from connectors.sources.postgres.source import CATALOG_SETTINGS
from connectors.sources.postgres.values import SETTINGS
from connectors.sources.postgres.windows import Snapshot
from envelope.checkpoint import Checkpoint, lsn_text
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.signal import FENCE_PREFIX

NOT_CAUGHT_UP: Final = "not caught up"
REFUSED: Final = "refused"

_LOOK_S = 0.2
_SILENCE_S = 3600.0  # a task may look through many pages for the few rows that it wants
_NO_TRANSACTION_LIMIT = 170000  # from here on servers have transaction_timeout

Connection = psycopg.Connection[tuple[Any, ...]]


class NotComparedError(ChangelogError):
    """Nothing can be compared now; `verdict` says in a word why."""

    def __init__(self, verdict: Literal["not caught up", "refused"], message: str, *, hint: str | None = None) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """What holds rows: its name as SQL has it, and its pages."""

    name: str
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A table as it is at the fence: how its rows are encoded, the columns to ask for in order, and its leaves."""

    binding: Binding
    columns: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    @property
    def entity(self) -> Entity:
        """Whose table it is."""
        return self.binding.entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A snapshot that others can import by its `name` as long as it is held; `text` is how the server prints it.

    Every commit that it shows ends in the log at or before `lsn`.
    """

    name: str
    text: str
    lsn: int
    timeline: int
    system_identifier: str
    database: str
    server: str
    taken_at: datetime
    tables: Mapping[str, Fenced]

    @property
    def snapshot(self) -> Snapshot:
        """What it shows."""
        return Snapshot.parse(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The changelog is behind the fence, as its `checkpoint` says; that took `waited_s`."""

    checkpoint: Checkpoint
    at: datetime
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The database, and what of the configuration shapes the rows that are read from it."""

    dsn: str = field(repr=False)
    hmac_key: bytes = field(repr=False)
    entities: Sequence[Entity]

    def connect(self) -> Connection:
        """A session in which values are printed as they are published, and which no timeout of the server's ends."""
        patience = Patience(silence_s=_SILENCE_S)
        connection = connect(self.dsn, settings={**SETTINGS, "lock_timeout": "0"}, patience=patience)
        if connection.info.server_version >= _NO_TRANSACTION_LIMIT:
            with translated("setting up the session"):
                connection.execute("SET transaction_timeout = 0")
        return connection

    def move_log_on(self) -> None:
        """Writes a message, alone in its transaction: the changelog gets behind what was committed before it."""
        with self.connect() as connection, translated("writing a message"):
            connection.execute("SET synchronous_commit = local")  # a paused standby must not hold the fence up
            connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [FENCE_PREFIX])


def entities_of(config: Config, names: Sequence[str]) -> list[Entity]:
    """The entities to be compared, by name. Raises ChangelogError (USAGE) for a name that is none."""
    with connect(config.source.dsn, settings=CATALOG_SETTINGS) as connection:
        found = {entity.name: entity for entity in entities.resolve(config, read_tables(connection))}
    unknown = sorted(set(names) - found.keys())
    if unknown:
        raise ChangelogError(
            Kind.USAGE, f"the configuration has no entity {unknown[0]}", hint=f"it has: {', '.join(found)}"
        )
    return [found[name] for name in sorted(names or found)]


@contextlib.contextmanager
def held(source: Source, *, deadline: float) -> Iterator[Fence]:
    """A fence, held until the end. `deadline`, of `time.monotonic`, is for tables that are being altered.

    Raises NotComparedError: REFUSED on a standby, NOT_CAUGHT_UP where a table stays locked.
    """
    with contextlib.closing(source.connect()) as connection:
        _refuse_standby(connection)
        tables = {(table.schema, table.name): table for table in read_tables(connection)}
        for entity in source.entities:
            _refuse_missing(entity, tables)
        _lock(connection, source.entities, deadline)
        with translated("taking a snapshot"):
            fence = _taken(connection, source)
        yield fence
        with translated("holding the snapshot"):
            connection.execute("SELECT 1")


def _refuse_standby(connection: Connection) -> None:
    with translated("asking the server"):
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row == (True,):
        raise NotComparedError(
            REFUSED,
            "the server is a standby, whose snapshots do not list the transactions in progress",
            hint="have [source] dsn name the primary (several hosts: target_session_attrs=read-write)",
        )


def _refuse_missing(entity: Entity, tables: Mapping[tuple[str, str], Table]) -> None:
    if entity.table not in tables:
        message = f"the table {'.'.join(entity.table)} of {entity.name} is gone"
        raise ChangelogError(Kind.ALTERED, message, hint="run the job again")


def _lock(connection: Connection, locked: Sequence[Entity], deadline: float) -> None:
    """Begins the transaction: all tables, partitions too, are locked before there is a snapshot.

    A table rewritten or truncated behind a snapshot reads as empty under it. It never waits for one table while it
    holds another: a migration that wants both would be ended as the victim of a deadlock.
    """
    names = sql.SQL(", ").join(sql.Identifier(*entity.table) for entity in locked)
    while True:
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE NOWAIT").format(names))
            return
        except psycopg.errors.LockNotAvailable as error:
            connection.execute("ROLLBACK")
            if time.monotonic() > deadline:
                message = "a table is locked for altering, or somebody waits for that"
                hint = "repeat it when the migration is over, or wait longer (--wait)"
                raise NotComparedError(NOT_CAUGHT_UP, message, hint=hint) from error
            time.sleep(_LOOK_S)
        except psycopg.Error as error:
            raise explain(error.sqlstate, error.diag.message_primary or str(error), "locking the tables") from error


def _taken(connection: Connection, source: Source) -> Fence:
    """The snapshot is that of the first query; the log's end is read behind it, and so is behind all that it shows."""
    row = connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
    assert row is not None
    about = connection.execute(
        "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8, current_database(), "
        "current_setting('server_version'), (SELECT system_identifier::text FROM pg_control_system()), "
        "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"
    ).fetchone()
    assert about is not None
    wanted = {entity.table for entity in source.entities}
    tables = {(each.schema, each.name): each for each in read_tables(connection, sized=wanted.__contains__)}
    return Fence(
        name=row[0],
        text=row[1],
        lsn=about[0],
        timeline=about[4],
        system_identifier=about[3],
        database=about[1],
        server=about[2],
        taken_at=datetime.now(UTC),
        tables={each.name: _fenced(connection, each, tables[each.table], source) for each in source.entities},
    )


def _fenced(connection: Connection, entity: Entity, table: Table, source: Source) -> Fenced:
    return Fenced(
        binding=bind_table(connection, entity, table, source.hmac_key),
        columns=tuple(column.name for column in table.columns if column.published),
        leaves=tuple(Leaf(name=quoted((leaf.schema, leaf.name)), pages=leaf.pages) for leaf in table.leaves),
    )


def until_read(log: Log, names: Sequence[str], *, deadline: float, wait: Callable[[float], object]) -> Checkpoint:
    """The checkpoint of a changelog that has read these entities' tables to their ends, and repairs none of them.

    What was read before the fence is visible in it: of a key without a visible row it is known then that the changelog
    did not have it. Raises NotComparedError (NOT_CAUGHT_UP).
    """
    while True:
        checkpoint = log.checkpoint()
        missing = unread(checkpoint, names)
        if checkpoint is not None and missing is None:
            return checkpoint
        if time.monotonic() > deadline:
            hint = "`changelog status` shows how far it is; is the service running?"
            raise NotComparedError(NOT_CAUGHT_UP, f"{log.where}: {missing}", hint=hint)
        wait(_LOOK_S)


def unread(checkpoint: Checkpoint | None, names: Sequence[str]) -> str | None:
    """Why these entities cannot be compared yet; None when their tables are read, and not repaired."""
    if checkpoint is None:
        return "it has not begun"
    for name in names:
        if not is_complete(checkpoint.windows.get(name)):
            return f"the table of {name} is not read to its end"
    repairs = Repairs.parse(checkpoint.repairs)
    repaired = sorted(repairs.open.keys() & set(names) - repairs.paused)
    return f"a repair of {repaired[0]} is under way" if repaired else None


def until_behind(log: Log, fence: Fence, *, deadline: float, wait: Callable[[float], object]) -> CaughtUp:
    """Waits until the changelog holds every transaction that the fence shows.

    A transaction that is half published is behind those. Raises NotComparedError: NOT_CAUGHT_UP, or REFUSED where the
    changelog is of another cluster.
    """
    began = time.monotonic()
    while True:
        checkpoint = log.checkpoint()
        if checkpoint is not None and checkpoint.system_identifier != fence.system_identifier:
            hint = "is [source] dsn the database that the service reads? see `changelog check`"
            raise NotComparedError(REFUSED, f"{log.where} is of another database cluster", hint=hint)
        if checkpoint is not None and _is_behind(checkpoint, fence):
            return CaughtUp(checkpoint=checkpoint, at=datetime.now(UTC), waited_s=time.monotonic() - began)
        if time.monotonic() > deadline:
            raise _late(log, checkpoint, fence)
        wait(_LOOK_S)


def _is_behind(checkpoint: Checkpoint, fence: Fence) -> bool:
    """After a promotion, positions of the former primary say nothing of those of the new one."""
    return checkpoint.timeline == fence.timeline and checkpoint.through_lsn >= fence.lsn


def _late(log: Log, checkpoint: Checkpoint | None, fence: Fence) -> NotComparedError:
    hint = "is the service running (`changelog status`)? or wait longer (--wait)"
    if checkpoint is None:
        return NotComparedError(NOT_CAUGHT_UP, f"{log.where}: it has not begun", hint=hint)
    reached = f"it goes up to {lsn_text(checkpoint.through_lsn)}, the snapshot to {lsn_text(fence.lsn)}"
    if checkpoint.timeline != fence.timeline:
        reached = f"it is on timeline {checkpoint.timeline}, the server on {fence.timeline}"
    return NotComparedError(NOT_CAUGHT_UP, f"{log.where}: {reached}", hint=hint)
