"""Runs the demo's database on PostgreSQL, which is installed with the extra `embedded`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from changelog.connectors.demo.booking import EVENTS, GUESTS, ORDERS, SESSIONS
from changelog.connectors.demo.database import Parameters
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp
from changelog.envelope.stamp import content

SETTINGS = {"fsync": "off", "max_wal_size": "2GB"}

TABLES = """
CREATE TABLE guest (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, email text NOT NULL, loyalty text NOT NULL);
CREATE TABLE orders (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, guest_id bigint NOT NULL REFERENCES guest, room text NOT NULL,
  arrival date NOT NULL, nights int NOT NULL, amount numeric(10, 2) NOT NULL, status text NOT NULL, note text);
CREATE TABLE session (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, guest_id bigint NOT NULL, device text NOT NULL,
  pages int NOT NULL);
CREATE TABLE event (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, guest_id bigint NOT NULL, kind text NOT NULL, details jsonb);
ALTER TABLE guest REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE session REPLICA IDENTITY FULL;
ALTER TABLE event REPLICA IDENTITY FULL;
"""

FILL = f"""
INSERT INTO guest (name, email, loyalty)
  SELECT 'Guest ' || n, 'guest' || n || '@example.org', CASE WHEN n % 7 = 0 THEN 'silver' ELSE 'none' END
  FROM generate_series(1, {GUESTS}) n;
INSERT INTO orders (guest_id, room, arrival, nights, amount, status)
  SELECT 1 + n % {GUESTS}, (ARRAY['single', 'double', 'suite'])[1 + n % 3], date '2026-12-01' + n % 60, 1 + n % 5,
    90 + n % 400, (ARRAY['NEW', 'PAID', 'CONFIRMED'])[1 + n % 3]
  FROM generate_series(1, {ORDERS}) n;
INSERT INTO session (guest_id, device, pages)
  SELECT 1 + n % {GUESTS}, (ARRAY['phone', 'laptop'])[1 + n % 2], n % 20 FROM generate_series(1, {SESSIONS}) n;
INSERT INTO event (guest_id, kind, details)
  SELECT 1 + n % {GUESTS}, (ARRAY['searched', 'viewed'])[1 + n % 2], jsonb_build_object('nights', 1 + n % 5)
  FROM generate_series(1, {EVENTS}) n;
ANALYZE;
"""

SOURCE = """\
[source]
kind = "postgres"
dsn = "{dsn}"
"""


class PostgresSession:
    """See `changelog.connectors.demo.database.Session`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def stamped(self, stamp: Stamp) -> Iterator[None]:
        """Runs the block in a transaction with this stamp. An application adds the SELECT below to its transactions."""
        with self._connection.transaction():
            self.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [content(stamp).decode()])
            yield


class PostgresDemo:
    """See `changelog.connectors.demo.database.DemoDatabase`."""

    schema = "public"

    def __init__(self, server: PostgresServer) -> None:
        self._dsn = server.dsn()
        self.port = server.port
        self.source = SOURCE.format(dsn=self._dsn)
        with self._connected() as connection:
            version = divmod(connection.info.server_version, 10_000)
        self.label = f"PostgreSQL {'.'.join(str(part) for part in version)}"

    def build(self) -> None:
        with self._connected() as connection:
            connection.execute(TABLES.encode())
            connection.execute(FILL.encode())

    @contextmanager
    def session(self) -> Iterator[PostgresSession]:
        with self._connected() as connection:
            yield PostgresSession(connection)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                yield connection
        except psycopg.Error as error:
            raise ChangelogError(Kind.CONNECTION, f"the demo's PostgreSQL failed: {type(error).__name__}") from error


@contextmanager
def opened() -> Iterator[PostgresDemo]:
    """Runs PostgreSQL in a temporary folder until the end of the context."""
    with temporary_server(settings=SETTINGS) as server:
        yield PostgresDemo(server)
