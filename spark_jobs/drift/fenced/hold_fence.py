"""Takes a fence and holds it while both sides are read.

This needs a primary: snapshots of a standby do not list the transactions in progress.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import psycopg
from psycopg import sql

from connectors.config import Config
from connectors.sources.postgres.admin.catalog import Table, read_tables
from connectors.sources.postgres.session.connection import connect, explain, translated
from connectors.sources.postgres.snapshot.chunk_reader import quoted
from connectors.sources.postgres.snapshot.table_reads import bind_table
from connectors.sources.postgres.source import CATALOG_SETTINGS
from connectors.wiring import entities
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from spark_jobs.drift.fenced.catch_up import LOOK_S, NOT_CAUGHT_UP, REFUSED, NotComparedError
from spark_jobs.drift.fenced.fence import Connection, Fence, Fenced, Leaf, SourceDatabase


def entities_of(config: Config, names: Sequence[str]) -> list[Entity]:
    """The entities to compare, sorted by name. Raises ChangelogError (USAGE) for an unknown name."""
    with connect(config.source.dsn, settings=CATALOG_SETTINGS) as connection:
        by_name = {entity.name: entity for entity in entities.resolve(config, read_tables(connection))}
    unknown = sorted(set(names) - by_name.keys())
    if unknown:
        raise ChangelogError(
            Kind.USAGE, f"the configuration has no entity {unknown[0]}", hint=f"it has: {', '.join(by_name)}"
        )
    return [by_name[name] for name in sorted(names or by_name)]


@contextlib.contextmanager
def held(source: SourceDatabase, *, deadline: float) -> Iterator[Fence]:
    """Yields a fence and holds it until the end. `deadline` (of `time.monotonic`) limits the wait for locked tables.

    Raises NotComparedError: REFUSED on a standby, NOT_CAUGHT_UP if a table stays locked.
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
    """Begins the transaction and locks all tables, with their partitions, before the snapshot is taken.

    A table that is rewritten or truncated after a snapshot would read as empty under it. This never waits for one table
    while it holds a lock on another: a migration that needs both could be cancelled as the victim of a deadlock.
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
                raise NotComparedError(NOT_CAUGHT_UP, message, hint=hint) from error
            time.sleep(LOOK_S)
        except psycopg.Error as error:
            raise explain(error.sqlstate, error.diag.message_primary or str(error), "locking the tables") from error


def _taken(connection: Connection, source: SourceDatabase) -> Fence:
    """Takes the snapshot with the first query; the log's end is read later, so it is past all that it shows."""
    row = connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
    assert row is not None
    about = connection.execute(
        "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8, current_database(), "
        "current_setting('server_version'), (SELECT system_identifier::text FROM pg_control_system()), "
        "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"
    ).fetchone()
    assert about is not None
    names = {entity.table for entity in source.entities}
    tables = {(item.schema, item.name): item for item in read_tables(connection, sized=names.__contains__)}
    return Fence(
        name=row[0],
        text=row[1],
        lsn=about[0],
        timeline=about[4],
        system_identifier=about[3],
        database=about[1],
        server=about[2],
        taken_at=datetime.now(UTC),
        tables={item.name: _fenced(connection, item, tables[item.table], source) for item in source.entities},
    )


def _fenced(connection: Connection, entity: Entity, table: Table, source: SourceDatabase) -> Fenced:
    return Fenced(
        binding=bind_table(connection, entity, table, source.hmac_key),
        columns=tuple(column.name for column in table.columns if column.published),
        leaves=tuple(Leaf(name=quoted((leaf.schema, leaf.name)), pages=leaf.pages) for leaf in table.leaves),
    )
