"""Creates PostgreSQL replication slots for benchmarks that compare several programs (*sides*). With these slots, each
side reads the same backlog of changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_text
from changelog.envelope.checkpoint import Checkpoint

BASE: Final = "base"
DRAINED: Final = "drained"
"""The slot that a side reads. It is a new copy of `BASE`, which itself is never read."""


def create_base(connection: psycopg.Connection) -> None:
    """Creates the slot `BASE`, before the backlog is written."""
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (BASE,))


def end_of_backlog(connection: psycopg.Connection) -> str:
    """Runs PostgreSQL's command CHECKPOINT now, so that no side has to wait for it later. Then returns the LSN at the
    end of the backlog.
    """
    connection.execute("CHECKPOINT")
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


@contextmanager
def slot_to_drain(server: PostgresServer) -> Iterator[None]:
    """Creates the slot `DRAINED`, and drops it at the end of the `with` block."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (BASE, DRAINED))
    try:
        yield
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (DRAINED,))


def first_checkpoint(dsn: str, slot: str) -> Checkpoint:
    """Returns a checkpoint at the beginning of a slot. According to it, the benchmark's table has been read completely.
    So a source that starts with this checkpoint reads only the log.
    """
    replication = ReplicationConnection.connect(dsn)
    system = replication.identify_system()
    [(confirmed,)] = replication.query(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    replication.close()
    return Checkpoint(
        position=None,
        through=through_text(parse_lsn(confirmed)),
        epoch=1,
        source={"system_identifier": system.system_identifier, "timeline": system.timeline},
        windows={"orders": {"complete": True}},
    )
