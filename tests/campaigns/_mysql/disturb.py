"""Runs a thread that disturbs the service while other threads write rows. For example, it alters tables, or asks the
service to read them.
"""

import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable

import pymysql
from pymysql.cursors import Cursor

from tests.campaigns._mysql.servers import Servers
from tests.campaigns._mysql.tables import TABLES, Table
from tests.campaigns._mysql.xa import decide_all

PAUSE_S = 5.0
NEW_COLUMNS_MAX = 6
HOLD_MS = 600

Disturb = Callable[[Cursor, random.Random, Table], object]


class Disturber:
    """Disturbs the tables from `start` to `stop`. `counts` has the number of disturbances of each kind."""

    def __init__(self, servers: Servers, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._servers, self._rng = servers, random.Random(f"{seed}-disturber")
        self._columns = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._ways: dict[Callable[[Cursor, Table], object], tuple[str, int]] = {
            self._rebuild: ("rebuilds", 30),
            self._republish: ("republishes", 30),
            self._rotate: ("rotations", 10),
            self._truncate: ("truncates", 14),
            self._add_column: ("columns", 12),
            self._swap: ("swaps", 12),
        }
        if servers.primary.flavour == "mariadb":
            self._ways[self._hold] = "commits_held", 15

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. If the thread failed, raises its error."""
        self.end()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Ends the thread, and ignores its error."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._rng.random() * PAUSE_S):
                self._disturb()
        except BaseException as error:
            self._failure = error
            raise

    def _disturb(self) -> None:
        way = self._rng.choices(tuple(self._ways), [weight for _, weight in self._ways.values()])[0]
        try:
            with self._servers.connect() as connection, connection.cursor() as cursor:
                way(cursor, self._rng.choice(TABLES))
        except (pymysql.OperationalError, pymysql.InternalError, OSError):
            self.counts["met_another"] += 1  # the server was killed, or a transaction has locked the table
        else:
            self.counts[self._ways[way][0]] += 1

    def _rebuild(self, cursor: Cursor, table: Table) -> None:
        self._signal(cursor, {"do": "rebuild", "entity": table.name})

    def _republish(self, cursor: Cursor, _: Table) -> None:
        table = self._rng.choice([table for table in TABLES if len(table.key) == 1])
        keys = sorted({str(table.some_key(self._rng)[0]) for _ in range(40)})
        self._signal(cursor, {"do": "republish", "entity": table.name, "keys": keys})

    def _signal(self, cursor: Cursor, signal: dict[str, object]) -> None:
        content = json.dumps({**signal, "id": uuid.UUID(int=self._rng.getrandbits(128)).hex})
        with self._servers.gates.transactions.passing():
            cursor.execute("INSERT INTO changelog_signal VALUES (%s, %s)", (self._rng.getrandbits(60), content))

    def _rotate(self, cursor: Cursor, _: Table) -> None:
        with self._servers.gates.fragile.passing():
            cursor.execute("FLUSH BINARY LOGS")

    def _hold(self, cursor: Cursor, _: Table) -> None:
        """Delays all commits for a while: the server delivers a transaction to the service, but keeps it invisible.

        For this, each commit waits until a replica acknowledges it. Because there is no such replica, the server gives
        up after HOLD_MS.
        """
        cursor.execute("SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC")
        cursor.execute(f"SET GLOBAL rpl_semi_sync_master_timeout = {HOLD_MS}")
        cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        self._over.wait(2 * HOLD_MS / 1000)
        cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")

    def _truncate(self, cursor: Cursor, table: Table) -> None:
        """Truncates the table. First commits all prepared XA transactions, or rolls them back, because they could have
        locked the table.
        """
        gates = self._servers.gates
        with gates.transactions.closed(), gates.fragile.passing():
            decide_all(cursor, self._servers.xa)
        with gates.fragile.passing():
            cursor.execute(f"TRUNCATE {table.name}")

    def _add_column(self, cursor: Cursor, table: Table) -> None:
        """Adds a column with a default. This changes all rows of the table, but the log has none of these changes."""
        if self._columns == NEW_COLUMNS_MAX:
            return
        self._columns += 1
        with self._servers.gates.fragile.passing():
            cursor.execute(f"ALTER TABLE {table.name} ADD COLUMN new_{self._columns} INT NOT NULL DEFAULT 3")

    def _swap(self, cursor: Cursor, table: Table) -> None:
        """Replaces the table by a copy, as tools that alter large tables do."""
        gates, name = self._servers.gates, table.name
        with gates.transactions.closed(), gates.fragile.passing():
            decide_all(cursor, self._servers.xa)
            cursor.execute(f"DROP TABLE IF EXISTS {name}_new")
            cursor.execute(f"CREATE TABLE {name}_new LIKE {name}")
            cursor.execute(f"INSERT INTO {name}_new SELECT * FROM {name}")
            cursor.execute(f"RENAME TABLE {name} TO {name}_old, {name}_new TO {name}")
            cursor.execute(f"DROP TABLE {name}_old")
            for trigger in table.triggers():
                cursor.execute(trigger)
