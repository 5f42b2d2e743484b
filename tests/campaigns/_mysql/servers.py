"""Runs a server for the service to read, a proxy between the two, and a replica that can take the server's place."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping

import pymysql
from pymysql.cursors import Cursor

from changelog.connectors.servers.mysql import Flavour, MysqlServer
from tests.campaigns._mysql.gate import Gates
from tests.campaigns._mysql.tables import APPEND
from tests.campaigns._mysql.xa import XaRecord, decide_all
from tests.proxy import Proxy
from tests.servers.mysql import mysql_server
from tests.servers.replication import follow, last_error, stop_following

DURABLE: Mapping[str, str] = {
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "innodb_lock_wait_timeout": "1",
    "lock_wait_timeout": "2",
    "max_binlog_size": "1048576",
}
"""With the first two settings, a server that is killed keeps all commits, and its log has no commit that its tables
lack. The other three make waits for locks shorter than by default, and the files of the log smaller.
"""

_GTIDS: Mapping[Flavour, str] = {"mariadb": "@@global.gtid_binlog_pos", "mysql": "@@global.gtid_executed"}
_WAIT: Mapping[Flavour, str] = {"mariadb": "MASTER_GTID_WAIT", "mysql": "WAIT_FOR_EXECUTED_GTID_SET"}
_WAIT_S = 300
_ANSWER_S = 30.0


class Servers:
    """A server, the proxy in front of it, and its replica, if it has one. `database` is the one that has the tables."""

    def __init__(self, primary: MysqlServer, replica: MysqlServer | None, proxy: Proxy, database: str) -> None:
        self.primary, self.database, self.proxy, self.gates = primary, database, proxy, Gates()
        self.xa = XaRecord()
        self._replica = replica
        if replica is not None:
            follow(replica, primary)

    @property
    def has_replica(self) -> bool:
        """Whether there is a replica that can take the server's place."""
        return self._replica is not None

    def connect(self) -> "pymysql.Connection[Cursor]":
        """Opens a session in the database of the present server. Raises pymysql.Error."""
        return self.primary.connect(self.database)

    @contextlib.contextmanager
    def session(self) -> Iterator[Cursor]:
        """Opens a session, and yields its cursor. If the server was killed, waits until it answers again."""
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                connection = self.connect()
                break
            except pymysql.OperationalError:
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.1)
        with connection, connection.cursor() as cursor:
            yield cursor

    def gtids(self) -> set[str]:
        """Returns the GTIDs of all transactions in the server's log, as `split_gtids` splits them."""
        with self.session() as cursor:
            return split_gtids(_gtids(cursor, self.primary.flavour))

    def crash(self) -> None:
        """Kills the server and starts it again.

        Just before the kill, another transaction is committed, because this makes the earlier steps of XA transactions
        durable. Otherwise, old versions of MySQL could lose these steps: an XA transaction that had been committed or
        rolled back would be prepared again after the start.
        """
        with self.gates.fragile.closed():
            with self.session() as cursor:
                cursor.execute(APPEND)
            self.primary.kill()
            self.primary.start()
        self.xa.restart()

    def promote(self) -> None:
        """Waits until the replica has all transactions. Then the replica and the server exchange their roles.

        A replica of MariaDB also has the prepared XA transactions, so they can be committed or rolled back there later.
        A replica of MySQL 8.0.15 loses them when it stops following its server. Therefore, they are all committed or
        rolled back before a MySQL server is replaced.
        """
        assert self._replica is not None
        old, new = self.primary, self._replica
        with self.gates.transactions.closed(), self.gates.fragile.closed():
            with old.connect(self.database) as connection, connection.cursor() as cursor:
                if old.flavour == "mysql":
                    decide_all(cursor, self.xa)
                cursor.execute(APPEND)
                gtids = _gtids(cursor, old.flavour)
            with new.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT {_WAIT[new.flavour]}(%s, {_WAIT_S})", [gtids])
                reached = cursor.fetchall() == ((0,),)
                assert reached, f"the replica does not reach {gtids}: {last_error(new)}"
            stop_following(new)
            old.kill()
            self.proxy.forward_to(new.host, new.port)
            self.primary, self._replica = new, old
            old.start()
            follow(old, new)
        self.xa.restart()


def split_gtids(text: str) -> set[str]:
    """Splits the text of a set of GTIDs at its commas."""
    return {part.strip() for part in text.split(",")}


def _gtids(cursor: Cursor, flavour: Flavour) -> str:
    cursor.execute(f"SELECT {_GTIDS[flavour]}")
    [(gtids,)] = cursor.fetchall()
    return str(gtids)


@contextlib.contextmanager
def running_servers(version: str, database: str, rng: random.Random) -> Iterator[Servers]:
    """Runs a server with an empty database, and a proxy in front of the server. `tests.servers.mysql` has the versions.

    In most cases, the server also gets a replica. Half of the MySQL servers are configured so that commits may become
    visible in another order than that of the log.
    """
    settings = dict(DURABLE)
    if version.startswith("mysql"):
        settings["binlog_order_commits"] = rng.choice(("ON", "OFF"))
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(mysql_server(version, {**settings, "server_id": "1"}))
        replica = None
        if rng.random() < 0.7:
            replica = stack.enter_context(mysql_server(version, {**settings, "server_id": "2"}))
        proxy = stack.enter_context(Proxy(primary.host, primary.port))
        with primary.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {database}")
        yield Servers(primary, replica, proxy, database)
