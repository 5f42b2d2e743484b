"""Runs threads that write transactions of all kinds. Each thread has a random generator of its own."""

import contextlib
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable

import pymysql
from pymysql.cursors import Cursor

from tests.campaigns._mysql.servers import Servers
from tests.campaigns._mysql.tables import APPEND, TABLES, UNIVERSE, Table
from tests.campaigns._mysql.xa import decide, decide_all

WRITERS = 8
PAUSE_S = 0.06
LARGE_ROWS = 400
DUPLICATE = 1062
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

Write = Callable[[Cursor, random.Random, Table], object]


class Load:
    """Threads that write from `start` to `stop`. `counts` has the number of transactions of each kind."""

    def __init__(self, servers: Servers, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._servers = servers
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}-{number}"),)) for number in range(WRITERS)
        ]

    def start(self) -> None:
        """Starts the writers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the writers. If a writer failed, raises its error. Otherwise, commits or rolls back the XA transactions
        that are still prepared.
        """
        self.end()
        if self._failures:
            raise self._failures[0]
        with self._servers.session() as cursor:
            decide_all(cursor, self._servers.xa)

    def end(self) -> None:
        """Ends the writers, and ignores their errors."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, rng: random.Random) -> None:
        try:
            while not self._over.is_set():
                try:
                    with self._servers.connect() as connection, connection.cursor() as cursor:
                        self._write(cursor, rng)
                except (pymysql.Error, OSError):
                    self._over.wait(0.1)  # the server was killed, or another transaction has locked the row
        except BaseException as error:
            self._failures.append(error)
            raise

    def _write(self, cursor: Cursor, rng: random.Random) -> None:
        """Makes transactions until the load ends, or until this session has prepared an XA transaction.

        After that, the caller must end this session. Only then can other sessions commit the XA transaction, or roll it
        back.
        """
        cursor.execute(ISOLATION)
        while not self._over.wait(rng.random() * PAUSE_S):
            with self._servers.gates.transactions.passing():
                if rng.random() < 0.06:
                    self._prepare(cursor, rng)
                    return
                if rng.random() < 0.03:  # rarely, so that many transactions are still prepared at a restart
                    with self._servers.gates.fragile.passing(), self._servers.gates.deciding:
                        decide(cursor, rng, self._servers.xa, share=0.2)
                else:
                    self._transact(cursor, rng)

    def _transact(self, cursor: Cursor, rng: random.Random) -> None:
        begin(cursor, "BEGIN", rng)
        try:
            for _ in range(rng.choice((1, 1, 2, 4, 8))):
                _change(cursor, rng)
            if rng.random() < 0.1:
                _savepoint(cursor, rng)
            if rng.random() < 0.01:
                _fill(cursor, rng, rng.choice(TABLES))
        except pymysql.OperationalError:
            cursor.execute("ROLLBACK")
            self.counts["met_another"] += 1
            return
        outcome = "ROLLBACK" if rng.random() < 0.08 else "COMMIT"
        cursor.execute(outcome)
        self.counts[outcome.lower()] += 1

    def hold(self, rng: random.Random, transactions: int) -> None:
        """Prepares XA transactions, each in a session of its own. The writers commit them or roll them back later."""
        for _ in range(transactions):
            with (
                contextlib.suppress(pymysql.Error),  # another transaction has locked the row
                self._servers.session() as cursor,
                self._servers.gates.transactions.passing(),
                self._servers.gates.fragile.passing(),
            ):
                cursor.execute(ISOLATION)
                name = _new_name(rng)
                txn = self._change_in_xa(cursor, rng, name)
                self._leave_prepared(cursor, name, txn)

    def _prepare(self, cursor: Cursor, rng: random.Random) -> None:
        """Makes an XA transaction. Sometimes commits it in one phase; otherwise, prepares it. A prepared transaction is
        sometimes ended by this session, but mostly by another session later.
        """
        name, xa = _new_name(rng), self._servers.xa
        with self._servers.gates.fragile.passing():
            txn = self._change_in_xa(cursor, rng, name)
            if rng.random() < 0.1:
                cursor.execute(f"XA COMMIT '{name}' ONE PHASE")
                xa.commit_unprepared()
                return
            self._leave_prepared(cursor, name, txn)
            if rng.random() < 0.3:
                outcome = rng.choice(("COMMIT", "ROLLBACK"))
                with self._servers.gates.deciding:
                    cursor.execute(f"XA {outcome} '{name}'")
                xa.decide(name, outcome)

    def _change_in_xa(self, cursor: Cursor, rng: random.Random, name: str) -> int:
        """Makes the changes of an XA transaction. Returns the number that the rows get in the column `txn`.

        If there is a replica, the transaction always changes a row. If it changed none, MySQL could log only the end of
        the transaction, and replicas fail at such an end.
        """
        txn = begin(cursor, f"XA START '{name}'", rng)
        self._servers.xa.begin()
        if self._servers.has_replica:
            cursor.execute(APPEND)
        for _ in range(rng.choice((1, 2, 6))):
            _change(cursor, rng)
        cursor.execute(f"XA END '{name}'")
        return txn

    def _leave_prepared(self, cursor: Cursor, name: str, txn: int) -> None:
        cursor.execute(f"XA PREPARE '{name}'")
        self._servers.xa.prepare(name, txn)


def _new_name(rng: random.Random) -> str:
    return f"x{uuid.UUID(int=rng.getrandbits(128)).hex[:20]}"


def begin(cursor: Cursor, statement: str, rng: random.Random) -> int:
    """Begins a transaction. Draws a random number, which its rows get in the column `txn`, and returns this number."""
    txn = rng.getrandbits(50)
    cursor.execute(f"SET @txn = {txn}")
    cursor.execute(statement)
    return txn


def _change(cursor: Cursor, rng: random.Random) -> None:
    write: Write = rng.choices(tuple(WRITES), tuple(WRITES.values()))[0]
    try:
        write(cursor, rng, rng.choice(TABLES))
    except pymysql.IntegrityError as error:
        if error.args[0] != DUPLICATE:
            raise


def _insert(cursor: Cursor, rng: random.Random, table: Table) -> None:
    values = ", ".join(["%s"] * (len(table.key) + 2))
    row = (*table.some_key(rng), rng.randrange(1000), _note(rng))
    cursor.execute(f"INSERT INTO {table.name} ({table.columns}, amount, note) VALUES ({values})", row)


def _update(cursor: Cursor, rng: random.Random, table: Table) -> None:
    values = (rng.randrange(1000), _note(rng), *table.some_key(rng))
    cursor.execute(f"UPDATE {table.name} SET amount = %s, note = %s WHERE {table.condition}", values)


def _update_range(cursor: Cursor, rng: random.Random, table: Table) -> None:
    first = next(iter(table.key))
    key = table.some_key(rng)[0]
    cursor.execute(f"UPDATE {table.name} SET amount = amount + 1 WHERE {first} >= %s ORDER BY {first} LIMIT 6", [key])


def _delete(cursor: Cursor, rng: random.Random, table: Table) -> None:
    cursor.execute(f"DELETE FROM {table.name} WHERE {table.condition}", table.some_key(rng))


def _move(cursor: Cursor, rng: random.Random, table: Table) -> None:
    assignments = ", ".join(f"{name} = %s" for name in table.key)
    values = (*table.some_key(rng), *table.some_key(rng))
    cursor.execute(f"UPDATE {table.name} SET {assignments} WHERE {table.condition}", values)


WRITES: dict[Write, int] = {_insert: 30, _update: 35, _update_range: 12, _delete: 15, _move: 8}
"""The kinds of writes, with their relative frequencies."""


def _savepoint(cursor: Cursor, rng: random.Random) -> None:
    cursor.execute("SAVEPOINT here")
    _change(cursor, rng)
    _change(cursor, rng)
    if rng.random() < 0.7:
        cursor.execute("ROLLBACK TO here")
        _change(cursor, rng)


def _fill(cursor: Cursor, rng: random.Random, table: Table) -> None:
    """Updates many rows, so that the transaction is published in parts."""
    first = next(iter(table.key))
    cursor.execute(f"UPDATE {table.name} SET note = %s ORDER BY {first} LIMIT {LARGE_ROWS}", [_note(rng)])


def _note(rng: random.Random) -> str | None:
    number = rng.randrange(UNIVERSE)
    return rng.choice((None, "", f"note {number}", "é" * (number % 50), '"\\\n\x00'))
