"""The servers that integration tests run against, and fresh databases in them."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from connectors.embedded import Server

POSTGRES_15_BIN = Path("/usr/lib/postgresql/15/bin")

SETTINGS = {"fsync": "off"}
"""No test pulls the plug of the machine; killing the server loses nothing without fsync."""


def postgres_15_bin() -> Path:
    """Debian's PostgreSQL 15; skips the test where it is absent, and fails it where CI=true."""
    if not (POSTGRES_15_BIN / "postgres").exists():
        missing = "PostgreSQL 15 is missing: apt-get install postgresql-15"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return POSTGRES_15_BIN


@contextlib.contextmanager
def fresh_database(server: Server) -> Iterator[str]:
    """The connection string of a new, empty database; it and its replication slots are dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield server.dsn(name)
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        drop_slots(admin, name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def drop_slots(admin: psycopg.Connection, database: str) -> None:
    """Drops the database's replication slots, ending whoever still reads them."""
    admin.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        [database],
    )
    admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [database]
    )
