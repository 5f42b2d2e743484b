"""Takes and holds a fence: an exported snapshot, together with locks that keep the tables' definitions as they are.

A job that compares the changelog with the tables reads the tables under the snapshot. From the changelog, it uses only
the transactions that the snapshot shows. A fence needs a primary server: the snapshots of a standby do not list the
transactions in progress.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from psycopg import sql

from changelog.connectors.sources.fences import FencedTable, NoFenceError, Shown
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.admin.lineage import cluster_of, timeline_of
from changelog.connectors.sources.postgres.scan import PostgresScan, ScannedTable, session
from changelog.connectors.sources.postgres.session.connection import Connection, explain, translated
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.snapshot.table_reads import bind_table
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.connectors.sources.postgres.values.lsn import lsn_text, through_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import FENCE_PREFIX

_RETRY_S = 0.2
"""The pause between two attempts to lock the tables, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFence:
    """Implements `changelog.connectors.sources.fences.Fence`.

    Every commit that the fence shows ends in the database's log at or before `lsn`, on the timeline `timeline`.
    """

    text: str
    lsn: int
    timeline: int
    system_identifier: str
    database: str
    server: str
    taken_at: datetime
    tables: Mapping[str, FencedTable]
    scan: PostgresScan

    @property
    def place(self) -> str:
        """See `Fence.place`."""
        return lsn_text(self.lsn)

    @property
    def shown(self) -> Shown:
        """See `Fence.shown`. A transaction gets its id before it commits, so an id below `end` may belong to a
        transaction that was still open when the snapshot was taken. `hidden` lists these transactions.
        """
        snapshot = Snapshot.parse(self.text)
        return Shown(end=snapshot.xmax, hidden=snapshot.running.tolist())

    def is_of(self, checkpoint: Checkpoint) -> bool:
        """See `Fence.is_of`."""
        return cluster_of(checkpoint) == self.system_identifier

    def missing(self, checkpoint: Checkpoint) -> str | None:
        """See `Fence.missing`.

        Positions on different timelines cannot be compared, because after a promotion the log has another history. If
        the changelog reaches `lsn`, it may still end in the middle of a transaction. But that transaction commits after
        `lsn`, so the snapshot does not show it.
        """
        if timeline_of(checkpoint) != self.timeline:
            return f"it is on timeline {timeline_of(checkpoint)}, but the server is on {self.timeline}"
        if through_lsn(checkpoint) < self.lsn:
            return f"it reaches {lsn_text(through_lsn(checkpoint))}, but the snapshot is at {self.place}"
        return None


@contextlib.contextmanager
def hold_fence(dsn: str, hmac_key: bytes, entities: Sequence[Entity], *, deadline: float) -> Iterator[PostgresFence]:
    """Yields a fence and holds it until the block ends. After the block, a query checks that the session still holds
    the fence.

    `deadline` (in seconds of `time.monotonic`) limits the wait for locked tables. Raises NoFenceError on a standby or
    if a table stays locked, and ChangelogError (ALTERED) if a table is gone.
    """
    with contextlib.closing(session(dsn)) as connection:
        _refuse_standby(connection)
        tables = {(table.schema, table.name): table for table in read_tables(connection)}
        for entity in entities:
            _refuse_missing(entity, tables)
        _lock(connection, entities, deadline)
        with translated("taking a snapshot"):
            fence = _take(connection, dsn, hmac_key, entities)
        _move_log_on(dsn)
        yield fence
        with translated("holding the snapshot"):
            connection.execute("SELECT 1")


def _refuse_standby(connection: Connection) -> None:
    with translated("asking the server"):
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row == (True,):
        raise NoFenceError(
            "the server is a standby, and a standby's snapshots do not list the transactions in progress",
            hint="put the primary into [source] dsn (if it lists several hosts, add target_session_attrs=read-write)",
            later=False,
        )


def _refuse_missing(entity: Entity, tables: Mapping[tuple[str, str], Table]) -> None:
    if entity.table not in tables:
        message = f"the table {'.'.join(entity.table)} of the entity {entity.name} is gone"
        raise ChangelogError(Kind.ALTERED, message, hint="run the job again")


def _lock(connection: Connection, locked: Sequence[Entity], deadline: float) -> None:
    """Begins the transaction and locks all tables, with their partitions, before the snapshot is taken.

    Otherwise, a table could be rewritten or truncated after the snapshot was taken, and would then seem empty to the
    snapshot. The function never waits for one table while it holds a lock on another. If it did, it could cause a
    deadlock with a migration that needs both tables, and the server might cancel the migration.
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
                message = "a table is locked by a migration, or a migration waits for the lock"
                hint = "run the job again after the migration, or wait longer (--wait)"
                raise NoFenceError(message, hint=hint, later=True) from error
            time.sleep(_RETRY_S)
        except psycopg.Error as error:
            raise explain(error.sqlstate, error.diag.message_primary or str(error), "locking the tables") from error


def _take(connection: Connection, dsn: str, hmac_key: bytes, entities: Sequence[Entity]) -> PostgresFence:
    """Takes the fence in the open transaction. The tables are already locked.

    The first query takes the snapshot, and only then the second query reads the end of the log. So all commits that the
    snapshot shows are before that end.
    """
    [(name, text)] = connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchall()
    [(lsn, timeline, cluster, database, server)] = connection.execute(
        "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8, "
        "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int, "
        "(SELECT system_identifier::text FROM pg_control_system()), current_database(), "
        "current_setting('server_version')"
    ).fetchall()
    names = {entity.table for entity in entities}
    sized = {(table.schema, table.name): table for table in read_tables(connection, sized=names.__contains__)}
    catalogued = [(entity, sized[entity.table]) for entity in entities]
    bound = [(table, bind_table(connection, entity, table, hmac_key)) for entity, table in catalogued]
    tables = {
        binding.entity.name: FencedTable(binding=binding, leaf_pages=tuple(leaf.pages for leaf in table.leaves))
        for table, binding in bound
    }
    scanned = {
        binding.entity.name: ScannedTable(
            binding=binding,
            columns=tuple(column.name for column in table.columns if column.published),
            leaves=tuple(identifier(leaf.schema, leaf.name) for leaf in table.leaves),
        )
        for table, binding in bound
    }
    return PostgresFence(
        text=text,
        lsn=lsn,
        timeline=timeline,
        system_identifier=cluster,
        database=database,
        server=server,
        taken_at=datetime.now(UTC),
        tables=tables,
        scan=PostgresScan(dsn=dsn, snapshot=name, text=text, tables=scanned),
    )


def _move_log_on(dsn: str) -> None:
    """Writes a message in a transaction of its own.

    So the changelog soon reaches a position after all commits that the fence shows, even if nobody else writes.
    """
    with session(dsn) as connection, translated("writing a message"):
        connection.execute("SET synchronous_commit = local")  # a paused standby must not delay the fence
        connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [FENCE_PREFIX])
