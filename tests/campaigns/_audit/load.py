"""Changes tables as applications do, with cascades, changed keys, MERGE, COPY, savepoints and two-phase commits."""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from tests.campaigns._audit.tables import HOSTILE, HOSTILE_COLUMNS, MIGRATED, restate, table_of

WRITERS = 4
UNIVERSE = 300
PAUSE_S = 0.02
LINGER_S = 0.8
PREPARED_S = 0.4

Cursor = psycopg.Cursor[tuple[object, ...]]

CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.SerializationFailure,
    psycopg.errors.IntegrityError,
    psycopg.errors.CardinalityViolation,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DatatypeMismatch,
)
"""Errors that occur if another thread writes to the same rows, or alters the table. The transaction is rolled back."""

_STATEMENTS = """
INSERT INTO customer (id, name, balance, tags, ratio)
    VALUES (%(id)s, %(text)s, %(n)s / 7.0, ARRAY[%(text)s, NULL], %(n)s / 3.0::float8)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, seen = clock_timestamp();
UPDATE customer SET balance = balance + 1.10, tier = 'gold' WHERE id BETWEEN %(id)s AND %(id)s + %(n)s;
UPDATE customer SET ratio = 'NaN', balance = 'NaN', active = NULL, seen = 'infinity' WHERE id = %(id)s;
UPDATE customer SET id = %(other)s WHERE id = %(id)s;
DELETE FROM customer WHERE id = %(id)s;

INSERT INTO purchase (id, customer_id, state, total) SELECT %(id)s, {customer}, 'new', 1.50 ON CONFLICT DO NOTHING;
UPDATE purchase SET customer_id = {customer}, state = 'moved' WHERE id = %(id)s;
UPDATE purchase SET total = total * 1.01, state = %(text)s WHERE id BETWEEN %(id)s AND %(id)s + %(n)s;
UPDATE purchase SET id = %(other)s WHERE id = %(id)s;
DELETE FROM purchase WHERE id = %(id)s;

INSERT INTO purchase_line SELECT id, n, %(text)s, 1.5 FROM purchase, generate_series(1, 4) AS n
    WHERE id BETWEEN %(id)s AND %(id)s + 3
    ON CONFLICT (purchase_id, no) DO UPDATE SET sku = excluded.sku, price = purchase_line.price + 0.1;
UPDATE purchase_line SET no = no + 10 WHERE purchase_id = %(id)s AND no < 10;
DELETE FROM purchase_line WHERE purchase_id = %(id)s;

MERGE INTO ledger AS l USING generate_series(%(id)s::bigint, %(id)s + %(n)s) AS s(id) ON l.id = s.id
    WHEN MATCHED AND l.id %% 3 = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET amount = l.amount + 0.125, open = NOT coalesce(l.open, false)
    WHEN NOT MATCHED THEN INSERT (id, kind, amount, span) VALUES (s.id, %(text)s, s.id / 8.0, int4range(1, NULL));
UPDATE ledger SET customer_id = {customer}, span = 'empty' WHERE id BETWEEN %(id)s AND %(id)s + %(n)s;
DELETE FROM ledger WHERE id > 5000 AND id %% 3 = %(n)s %% 3;

INSERT INTO document (id, title, body, blob, meta)
    VALUES (%(id)s, %(text)s, %(long)s, %(long)s::text::bytea, '[1.0, null]')
    ON CONFLICT (id) DO UPDATE SET body = excluded.body;
UPDATE document SET title = %(text)s, took = took + '1 hour' WHERE id BETWEEN %(id)s AND %(id)s + 5;
UPDATE document SET body = %(long)s, meta = 'null' WHERE id = %(id)s;
UPDATE document SET id = %(other)s WHERE id = %(id)s;
DELETE FROM document WHERE id = %(id)s;

INSERT INTO page VALUES (%(id)s, %(text)s, %(long)s) ON CONFLICT (id) DO UPDATE SET title = excluded.title;
UPDATE page SET title = %(text)s WHERE id BETWEEN %(id)s AND %(id)s + 5;
UPDATE page SET id = %(other)s WHERE id = %(id)s;
DELETE FROM page WHERE id = %(id)s;

INSERT INTO place VALUES (%(id)s, %(n)s %% 5, %(text)s, ROW(%(n)s, NULL)::spot) ON CONFLICT DO NOTHING;
UPDATE place SET region = %(n)s %% 5, name = %(text)s WHERE id = %(id)s AND region = %(other)s %% 5;
WITH gone AS (DELETE FROM place WHERE id = %(id)s RETURNING *) INSERT INTO place SELECT * FROM gone;
DELETE FROM place WHERE id = %(id)s;

INSERT INTO seat VALUES ('seat "' || %(id)s || '"', %(text)s) ON CONFLICT (code) DO UPDATE SET holder = excluded.holder;
UPDATE seat SET holder = %(text)s WHERE code = 'seat "' || %(id)s || '"';
DELETE FROM seat WHERE code = 'seat "' || %(id)s || '"';

INSERT INTO late_full VALUES (%(id)s, %(text)s, %(long)s) ON CONFLICT (id) DO UPDATE SET title = excluded.title;
UPDATE late_full SET title = %(text)s WHERE id BETWEEN %(id)s AND %(id)s + 5;
UPDATE late_full SET body = %(long)s WHERE id BETWEEN %(id)s AND %(id)s + 2;
DELETE FROM late_full WHERE id = %(id)s;

INSERT INTO late_default VALUES (%(id)s, %(text)s, %(long)s) ON CONFLICT (id) DO UPDATE SET title = excluded.title;
UPDATE late_default SET title = %(text)s WHERE id BETWEEN %(id)s AND %(id)s + 5;
UPDATE late_default SET body = %(long)s WHERE id BETWEEN %(id)s AND %(id)s + 2;
DELETE FROM late_default WHERE id = %(id)s;
"""
_CUSTOMER = "(SELECT id FROM customer ORDER BY abs(id - %(other)s) LIMIT 1)"
ACTIONS: Sequence[bytes] = [
    statement.strip().encode()
    for statement in _STATEMENTS.replace("{customer}", _CUSTOMER).split(";")
    if statement.strip()
]


_HOSTILE_STATEMENTS = (
    "INSERT INTO {table} ({key}, {one}) VALUES (%(key)s, %(text)s) ON CONFLICT ({key}) DO UPDATE SET {two} = %(text)s",
    "UPDATE {table} SET {one} = {two}, {two} = %(text)s, {three} = {key} WHERE {key} = %(key)s",
    "UPDATE {table} SET {key} = {key} || '.', {four} = %(text)s WHERE {key} = %(key)s",
    "DELETE FROM {table} WHERE {key} LIKE %(key)s || '%%'",
)
HOSTILE_ACTIONS = [
    sql.SQL(text).format(
        table=table_of(HOSTILE),
        **{
            part: sql.Identifier(name.replace("%", "%%"))
            for part, name in zip(("key", "one", "two", "three", "four"), HOSTILE_COLUMNS, strict=True)
        },
    )
    for text in _HOSTILE_STATEMENTS
]
SMALL_ACTIONS = (
    "INSERT INTO {table} VALUES (%(key)s, %(text)s) ON CONFLICT (id) DO UPDATE SET note = excluded.note",
    "UPDATE {table} SET note = %(text)s",
    "DELETE FROM {table} WHERE id = %(key)s",
)


@dataclass(slots=True)
class Counts:
    """Counts of the writers' work, and the errors of threads that failed."""

    committed: int = 0
    rolled_back: int = 0
    prepared: int = 0
    altered: int = 0
    failed: list[BaseException] = field(default_factory=list)


class Load:
    """Runs threads until `stop`: several that write rows, and one that changes columns. The threads survive lost
    connections and conflicts.
    """

    def __init__(self, dsn: str, seed: int, small: Sequence[str] = ()) -> None:
        logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns if a rollback cannot reach the server
        self.counts = Counts()
        self._dsn = dsn
        self._stopping = threading.Event()
        sessions = [
            _Writer(f"{seed}/{number}", number, self.counts, self._stopping, small) for number in range(WRITERS)
        ]
        migrator = _Migrator(f"{seed}/migrator", self.counts, self._stopping)
        self._threads = [
            threading.Thread(target=self._run, args=(session,), daemon=True) for session in (*sessions, migrator)
        ]

    def start(self) -> None:
        """Starts to write."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Ends the threads. Then commits the transactions that are still prepared because the server crashed."""
        self.stop()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(f"COMMIT PREPARED '{name}'".encode())

    def stop(self) -> None:
        """Ends the threads. Raises the error of one that failed."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self.counts.failed:
            raise self.counts.failed[0]

    def _run(self, session: "_Writer | _Migrator") -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None) as connection:
                        connection.execute("SET lock_timeout = 300; SET deadlock_timeout = 50")
                        session.write(connection)
                except psycopg.OperationalError:
                    self._stopping.wait(0.1)
        except BaseException as error:
            self.counts.failed.append(error)
            raise


class _Writer:
    """Writes transactions of random actions. Prepares some of them, and commits or rolls them back a little later."""

    def __init__(self, seed: str, number: int, counts: Counts, stopping: threading.Event, small: Sequence[str]) -> None:
        self._rng, self._number, self._counts, self._stopping = random.Random(seed), number, counts, stopping
        self._stamps, self._small = 0, small
        self._others: Sequence[Callable[[Cursor], None]] = (self._swap, self._copy, self._large, self._empty)

    def write(self, connection: psycopg.Connection) -> None:
        """Writes until `stopping` is set."""
        self._decide(connection)
        while not self._stopping.is_set():
            connection.execute("BEGIN")
            try:
                self._transaction(connection)
            except CONFLICTS:
                connection.execute("ROLLBACK")
                self._counts.rolled_back += 1
            self._stopping.wait(self._rng.random() * 2 * PAUSE_S)

    def _transaction(self, connection: psycopg.Connection) -> None:
        rng = self._rng
        with connection.cursor() as cursor:
            for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 12))):
                self._step(cursor)
            if rng.random() < 0.03:
                self._stopping.wait(rng.random() * LINGER_S)
                self._step(cursor)
        # The load must prepare at least one transaction, even on a slow machine.
        if rng.random() < 0.04 or not self._counts.prepared:
            connection.execute(f"PREPARE TRANSACTION 'writer {self._number}'".encode())
            self._counts.prepared += 1
            self._stopping.wait(rng.random() * PREPARED_S)
            self._decide(connection)
        else:
            connection.execute(rng.choice(("COMMIT",) * 12 + ("ROLLBACK",)).encode())
            self._counts.committed += 1

    def _decide(self, connection: psycopg.Connection) -> None:
        """Commits or rolls back the transaction that this writer has prepared, if there is one. The writer may have
        prepared it before the server crashed.
        """
        for name, *_ in connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE gid = %s", [f"writer {self._number}"]
        ).fetchall():
            connection.execute(f"{self._rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED '{name}'".encode())

    def _step(self, cursor: Cursor) -> None:
        """Does one random action. Sometimes writes a stamp first.

        Some actions are in a savepoint, with or without a stamp of their own. Half of the savepoints are rolled back.
        """
        rng = self._rng
        if rng.random() < 0.3:
            self._emit_stamp(cursor)
        if rng.random() < 0.85:
            self._act(cursor)
            return
        cursor.execute("SAVEPOINT tentative")
        if rng.random() < 0.5:
            self._emit_stamp(cursor)
        self._act(cursor)
        cursor.execute(rng.choice((b"RELEASE SAVEPOINT tentative", b"ROLLBACK TO SAVEPOINT tentative")))

    def _act(self, cursor: Cursor) -> None:
        rng = self._rng
        if rng.random() < 0.03:
            rng.choice(self._others)(cursor)
            return
        if rng.random() < 0.05:
            self._fill_added(cursor)
            return
        if rng.random() < 0.08:
            key = rng.choice((";", "'--", '"', "\n", "\u202e")) + str(rng.randrange(20))
            cursor.execute(rng.choice(HOSTILE_ACTIONS), {"key": key, "text": self._text()})
            return
        if self._small and rng.random() < 0.5:
            statement = sql.SQL(rng.choice(SMALL_ACTIONS)).format(table=table_of(rng.choice(self._small)))
            cursor.execute(statement, {"key": rng.randrange(1, 9), "text": self._text()})
            return
        values = {"id": self._any(), "other": self._any(), "n": rng.randrange(1, 6), "text": self._text()}
        cursor.execute(rng.choice(ACTIONS), {**values, "long": self._long()})

    def _emit_stamp(self, cursor: Cursor) -> None:
        """Writes a stamp: a message in the log that says who makes the changes after it. The triggers record the stamp
        with each of these changes.
        """
        self._stamps += 1
        stamp = f"w{self._number}-{self._stamps}"
        message = f'{{"apiVersion": "v2", "serviceName": "load", "identifier": "{stamp}"}}'
        cursor.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [message])
        cursor.execute("SELECT set_config('audit.stamp', %s, true)", [stamp])
        cursor.execute("INSERT INTO audit.change (op) VALUES ('MESSAGE')")

    def _any(self) -> int:
        return self._rng.randrange(1, UNIVERSE)

    def _text(self) -> str:
        return self._rng.choice(('a"b', "back\\slash", "tab\there", "grün 🙂", "line\nbreak", "", "1e5")) * 2

    def _long(self) -> str:
        return "".join(self._rng.choices("abcdef", k=50)) * self._rng.choice((1, 60, 200))

    def _swap(self, cursor: Cursor) -> None:
        """Exchanges the codes of two seats."""
        one, two = (f'seat "{self._any()}"' for _ in range(2))
        for new, old in (("free", one), (one, two), (two, "free")):
            cursor.execute("UPDATE seat SET code = %s WHERE code = %s", [new, old])

    def _copy(self, cursor: Cursor) -> None:
        first = self._rng.randrange(5_001, 1_000_000)
        with cursor.copy("COPY ledger (id, kind, amount, day, open) FROM STDIN") as copy:
            for number in range(first, first + self._rng.choice((5, 100, 400))):
                copy.write_row(
                    (number, self._text(), "1.500", "0044-03-15 BC" if number % 50 == 0 else "2026-01-01", None)
                )

    def _large(self, cursor: Cursor) -> None:
        """Updates every row of two tables, and many rows of a third one."""
        cursor.execute("UPDATE customer SET balance = balance - 0.01")
        cursor.execute("UPDATE ledger SET kind = kind || '.'")
        cursor.execute("UPDATE page SET title = title || '.' WHERE id > %s", [self._any()])

    def _empty(self, cursor: Cursor) -> None:
        tables = self._rng.choice(("place", "seat", "page, document", "customer CASCADE"))
        cursor.execute(f"TRUNCATE {tables}".encode())
        if self._rng.random() < 0.3:
            cursor.execute(sql.SQL("TRUNCATE {}").format(table_of(HOSTILE)))
        cursor.execute("INSERT INTO seat VALUES ('first', 'again') ON CONFLICT DO NOTHING")

    def _fill_added(self, cursor: Cursor) -> None:
        """Writes values into a column that the migrator added."""
        table = self._rng.choice(MIGRATED)
        columns = added(cursor.connection, table)
        if columns:
            column = sql.Identifier(self._rng.choice(columns)[0])
            update = "UPDATE {table} SET {column} = %s WHERE id BETWEEN %s AND %s"
            first = self._any()
            statement = sql.SQL(update).format(table=sql.Identifier(table), column=column)
            cursor.execute(statement, [str(self._rng.randrange(1000)), first, first + 9])


def added(connection: psycopg.Connection, table: str) -> list[tuple[str, str]]:
    """Returns the name and type of each column that the migrator has added to a table."""
    return connection.execute(
        "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname LIKE 'x%%'",
        [table],
    ).fetchall()


class _Migrator:
    """Adds, drops and renames columns, and changes their types. The same transactions also write rows."""

    def __init__(self, seed: str, counts: Counts, stopping: threading.Event) -> None:
        self._rng, self._counts, self._stopping = random.Random(seed), counts, stopping

    def write(self, connection: psycopg.Connection) -> None:
        """Migrates until `stopping` is set."""
        while not self._stopping.wait(0.3 + self._rng.random() * 1.5):
            table = self._rng.choice(MIGRATED)
            statement = self._statement(connection, table)
            try:
                with connection.transaction():
                    connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
                    if self._rng.random() < 0.5:
                        touch(connection, table, self._rng.randrange(UNIVERSE))
                    connection.execute(statement.encode())
                    connection.execute(restate(table).encode())
                    if self._rng.random() < 0.5:
                        touch(connection, table, self._rng.randrange(UNIVERSE))
            except CONFLICTS:
                self._counts.rolled_back += 1
            else:
                self._counts.altered += 1

    def _statement(self, connection: psycopg.Connection, table: str) -> str:
        """Returns a random change of a table's columns.

        A new column never gets the name of a dropped one, because the log could not tell the two apart.
        """
        columns, alter = added(connection, table), f"ALTER TABLE {table}"
        if len(columns) < 2 or (len(columns) < 5 and self._rng.random() < 0.4):
            type_name = self._rng.choice(("int", "int", "numeric", "text"))
            default = self._rng.choice(("", f" DEFAULT '{self._rng.randrange(99)}'"))
            return f"{alter} ADD COLUMN x{self._rng.randrange(1 << 40)} {type_name}{default}"
        name, type_name = self._rng.choice(columns)
        wider = {"integer": "bigint", "bigint": "numeric", "numeric": "text"}.get(type_name)
        if wider is not None and self._rng.random() < 0.5:
            return f"{alter} ALTER COLUMN {name} TYPE {wider}"
        if self._rng.random() < 0.3:
            return f"{alter} RENAME COLUMN {name} TO x{self._rng.randrange(1 << 40)}"
        return f"{alter} DROP COLUMN {name}"


def alter_types(connection: psycopg.Connection, rng: random.Random) -> None:
    """Adds a label to the enum of `customer`, and renames or replaces an attribute of `place`'s composite type.

    `place` is locked meanwhile. Otherwise, the audit could record a row with other attribute names than those that were
    valid when the row was written.
    """
    label, fresh = (f"a{rng.randrange(1 << 40)}" for _ in range(2))
    connection.execute(f"ALTER TYPE tier ADD VALUE '{label}'".encode())
    [(number,), (text,)] = connection.execute(
        "SELECT attname::text FROM pg_attribute WHERE NOT attisdropped"
        " AND attrelid = (SELECT typrelid FROM pg_type WHERE oid = 'spot'::regtype) ORDER BY attnum"
    ).fetchall()
    alteration = rng.choice(
        (
            f"RENAME ATTRIBUTE {number} TO {fresh}",
            f"RENAME ATTRIBUTE {text} TO {fresh}",
            f"DROP ATTRIBUTE {text}, ADD ATTRIBUTE {fresh} text",
        )
    )
    with connection.transaction():
        connection.execute("LOCK TABLE place IN ACCESS EXCLUSIVE MODE")
        connection.execute(f"ALTER TYPE spot {alteration}".encode())
        connection.execute(restate("place").encode())
    connection.execute("UPDATE customer SET tier = %s WHERE id %% 10 = 1", [label])


def touch(connection: psycopg.Connection, table: str, key: int) -> None:
    """Updates one row, but leaves its values as they are."""
    connection.execute(
        f"UPDATE {table} SET id = id WHERE id = (SELECT min(id) FROM {table} WHERE id >= {key})".encode()
    )
