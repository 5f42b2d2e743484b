"""Runs the demo's database on MariaDB, which needs no installation, only a folder with its programs. Needs the extra
`mysql`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from changelog.connectors.demo.booking import EVENTS, GUESTS, ORDERS, SESSIONS
from changelog.connectors.demo.database import Parameters
from changelog.connectors.servers.mysql import USER, MysqlServer, temporary_server
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp
from changelog.envelope.stamp import content

DATABASE = "booking"

# READ-COMMITTED is also the default of PostgreSQL: a statement sees what was committed before it, and locks only the
# rows that it changes.
SETTINGS = {"innodb_flush_method": "nosync", "sync_binlog": "0", "transaction_isolation": "READ-COMMITTED"}

_MESSAGES = "(id bigint PRIMARY KEY, content mediumtext CHARACTER SET utf8mb4 NOT NULL)"

TABLES = (
    """CREATE TABLE guest (
  id bigint AUTO_INCREMENT PRIMARY KEY, name text NOT NULL, email text NOT NULL, loyalty text NOT NULL)""",
    """CREATE TABLE orders (
  id bigint AUTO_INCREMENT PRIMARY KEY, guest_id bigint NOT NULL REFERENCES guest (id), room text NOT NULL,
  arrival date NOT NULL, nights int NOT NULL, amount decimal(10, 2) NOT NULL, status text NOT NULL, note text)""",
    """CREATE TABLE session (
  id bigint AUTO_INCREMENT PRIMARY KEY, guest_id bigint NOT NULL, device text NOT NULL, pages int NOT NULL)""",
    """CREATE TABLE event (
  id bigint AUTO_INCREMENT PRIMARY KEY, guest_id bigint NOT NULL, kind text NOT NULL, details json)""",
    f"CREATE TABLE changelog_stamp {_MESSAGES}",
    f"CREATE TABLE changelog_signal {_MESSAGES}",
)

FILL = (
    f"""INSERT INTO guest (name, email, loyalty)
  SELECT concat('Guest ', seq), concat('guest', seq, '@example.org'), if(seq % 7 = 0, 'silver', 'none')
  FROM seq_1_to_{GUESTS}""",
    f"""INSERT INTO orders (guest_id, room, arrival, nights, amount, status)
  SELECT 1 + seq % {GUESTS}, elt(1 + seq % 3, 'single', 'double', 'suite'), date '2026-12-01' + INTERVAL seq % 60 DAY,
    1 + seq % 5, 90 + seq % 400, elt(1 + seq % 3, 'NEW', 'PAID', 'CONFIRMED')
  FROM seq_1_to_{ORDERS}""",
    f"""INSERT INTO session (guest_id, device, pages)
  SELECT 1 + seq % {GUESTS}, elt(1 + seq % 2, 'phone', 'laptop'), seq % 20 FROM seq_1_to_{SESSIONS}""",
    f"""INSERT INTO event (guest_id, kind, details)
  SELECT 1 + seq % {GUESTS}, elt(1 + seq % 2, 'searched', 'viewed'), json_object('nights', 1 + seq % 5)
  FROM seq_1_to_{EVENTS}""",
)

SOURCE = """\
[source]
kind = "mysql"
dsn = "mysql://{user}@{host}:{port}/{database}"
"""


class MysqlSession:
    """See `changelog.connectors.demo.database.Session`."""

    def __init__(self, connection: "pymysql.Connection[Cursor]") -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    @contextmanager
    def stamped(self, stamp: Stamp) -> Iterator[None]:
        """Runs the block in a transaction with this stamp.

        An application that stamps its changes in this way adds the INSERT and the DELETE below to its transactions. The
        log has both, but the table stays empty. A connection has only one open transaction, so the connection's id is a
        key that no other open transaction uses.
        """
        self._connection.begin()
        self.execute(
            "INSERT INTO changelog_stamp (id, content) VALUES (connection_id(), %s)", [content(stamp).decode()]
        )
        self.execute("DELETE FROM changelog_stamp WHERE id = connection_id()")
        yield
        self._connection.commit()


class MysqlDemo:
    """See `changelog.connectors.demo.database.DemoDatabase`."""

    schema = DATABASE

    def __init__(self, server: MysqlServer) -> None:
        self._server = server
        self.port = server.port
        self.source = SOURCE.format(user=USER, host=server.host, port=server.port, database=DATABASE)
        with self._connected(None) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT substring_index(version(), '-', 1)")
            [(version,)] = cursor.fetchall()
        self.label = f"MariaDB {version}"

    def build(self) -> None:
        with self._connected(None) as connection, connection.cursor() as cursor:
            for statement in (f"CREATE DATABASE {DATABASE}", f"USE {DATABASE}", *TABLES, *FILL):
                cursor.execute(statement)

    @contextmanager
    def session(self) -> Iterator[MysqlSession]:
        with self._connected(DATABASE) as connection:
            yield MysqlSession(connection)

    @contextmanager
    def _connected(self, database: str | None) -> Iterator["pymysql.Connection[Cursor]"]:
        try:
            with self._server.connect(database) as connection:
                yield connection
        except pymysql.Error as error:
            raise ChangelogError(Kind.CONNECTION, f"the demo's MariaDB failed: {type(error).__name__}") from error


@contextmanager
def opened() -> Iterator[MysqlDemo]:
    """Runs MariaDB in a temporary folder until the end of the context."""
    with temporary_server("mariadb", settings=SETTINGS) as server:
        yield MysqlDemo(server)
