"""Creates and fills the large table for `bench/large.py`, in each kind of database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import psycopg

from changelog.connectors.servers.mysql import Flavour, MysqlServer, temporary_server
from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.servers.postgres import temporary_server as temporary_postgres
from changelog.connectors.sources.mysql.admin.server_log import end_coordinate
from changelog.connectors.sources.mysql.settings import Settings
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.envelope.checkpoint import Checkpoint

KINDS = ("postgres", "mysql", "mariadb")

_POSTGRES_SETTINGS = {"fsync": "off", "max_wal_size": "16GB"}
_POSTGRES_TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, guest_id bigint NOT NULL, status text NOT NULL, amount numeric(12,2) NOT NULL,
    note text, created_at timestamptz NOT NULL);
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
_POSTGRES_FILL = """
INSERT INTO orders SELECT g, g %% 5000, 'NEW', (g %% 90000) / 100.0, 'note of order ' || g,
    timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series(1, %s::bigint) AS g
"""

_MYSQL_SETTINGS = {
    "innodb_flush_method": "nosync", "innodb_buffer_pool_size": "512M", "sync_binlog": "0", "performance_schema": "OFF",
    "innodb_flush_log_at_trx_commit": "0", "max_binlog_size": "1G",
}  # fmt: skip
_MYSQL_DATABASE = "bench"
_MYSQL_TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, guest_id bigint NOT NULL, status varchar(20) NOT NULL, amount decimal(12,2) NOT NULL,
    note text, created_at timestamp(6) NOT NULL) CHARACTER SET utf8mb4
"""
_MYSQL_ORDER = (
    "g, g % 5000, 'NEW', (g % 90000) / 100.0, concat('note of order ', g),"
    " timestamp '2026-01-01 00:00:00' + interval g second"
)


class LargeTable(Protocol):
    """A server with an empty table `orders`. `config` is the section [source] for a service that reads this server."""

    config: str

    def fill(self, rows: int) -> None:
        """Inserts this many rows in one transaction."""

    def settle(self) -> None:
        """Makes the server finish the work that follows a large insert, which would disturb the measurement later."""

    def has_reached_end(self) -> Callable[[Checkpoint], bool]:
        """Returns a function that says whether a checkpoint has reached the present end of the database's log."""


@contextmanager
def large_table(kind: str) -> Iterator[LargeTable]:
    """Runs a server until the context ends. `kind` is one of `KINDS`."""
    if kind == "postgres":
        with temporary_postgres(settings=_POSTGRES_SETTINGS) as server:
            yield _Postgres(server)
    else:
        flavour: Flavour = "mariadb" if kind == "mariadb" else "mysql"
        with temporary_server(flavour, settings=_MYSQL_SETTINGS) as mysql:
            yield _Mysql(mysql)


class _Postgres:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.config = f'kind = "postgres"\ndsn = "{server.dsn()}"'
        self._execute(_POSTGRES_TABLE)

    def fill(self, rows: int) -> None:
        self._execute(_POSTGRES_FILL, rows)

    def settle(self) -> None:
        self._execute("VACUUM (FREEZE, ANALYZE) orders")

    def has_reached_end(self) -> Callable[[Checkpoint], bool]:
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        end = parse_lsn(row[0])
        return lambda checkpoint: through_lsn(checkpoint) >= end

    def _execute(self, statement: str, *values: int) -> None:
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute(statement.encode(), values or None)


class _Mysql:
    def __init__(self, server: MysqlServer) -> None:
        self._server = server
        self._dsn = f"mysql://root@{server.host}:{server.port}/{_MYSQL_DATABASE}"
        self.config = f'kind = "mysql"\ndsn = "{self._dsn}"'
        with server.connect() as session, session.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {_MYSQL_DATABASE}")
            cursor.execute(f"USE {_MYSQL_DATABASE}")
            cursor.execute(_MYSQL_TABLE)

    def fill(self, rows: int) -> None:
        """Inserts one row, and then doubles the number of rows until there are enough. See `LargeTable`."""
        with self._server.connect(_MYSQL_DATABASE) as session, session.cursor() as cursor:
            session.begin()
            cursor.execute(f"INSERT INTO orders SELECT {_MYSQL_ORDER} FROM (SELECT 1 AS g) AS first")
            count = 1
            while count < rows:
                added = f"SELECT id + {count} AS g FROM orders WHERE id <= {rows - count}"
                cursor.execute(f"INSERT INTO orders SELECT {_MYSQL_ORDER} FROM ({added}) AS added")
                count = min(2 * count, rows)
            session.commit()

    def settle(self) -> None:
        with self._server.connect(_MYSQL_DATABASE) as session, session.cursor() as cursor:
            cursor.execute("ANALYZE TABLE orders")

    def has_reached_end(self) -> Callable[[Checkpoint], bool]:
        with Settings(name="bench", dsn=self._dsn, hmac_key=b"").connect() as connection:
            end = end_coordinate(connection.query, connection.version)
        return lambda checkpoint: int(checkpoint.through, 16) >= end
