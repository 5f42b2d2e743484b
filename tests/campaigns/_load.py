"""Creates four tables, and runs threads that write to them.

Every row has a `version`: each insert and update takes the next number of a sequence, which all tables share. Every row
also has a `stamp`, the provenance identifier of the transaction that wrote it last. Every writer updates rows of all
keys. But each key belongs to one writer, and only this writer inserts or deletes its row, or changes the key. The
server lets updates of one row wait for each other. So the versions of a key grow in the order in which its changes are
committed.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from changelog.connectors.sources.postgres.values.lsn import parse_lsn

WRITERS = 4

Cursor = psycopg.Cursor[tuple[object, ...]]

CONFLICTS = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.UniqueViolation,
)

TABLES = """
CREATE SEQUENCE versions;
CREATE TABLE account (
    id bigint PRIMARY KEY, guest_id int NOT NULL, version bigint NOT NULL, stamp text NOT NULL,
    amount numeric(12,2), quantity int, note text, changed_at timestamptz DEFAULT clock_timestamp()
);
CREATE TABLE line (
    order_id int, line_no int, version bigint NOT NULL, stamp text NOT NULL, sku text, price float8, open boolean,
    PRIMARY KEY (order_id, line_no)
);
CREATE TABLE place (
    id bigint, region int, version bigint NOT NULL, stamp text NOT NULL, name text, PRIMARY KEY (id, region)
) PARTITION BY LIST (region);
CREATE TABLE place_a PARTITION OF place FOR VALUES IN (0, 1);
CREATE TABLE place_b PARTITION OF place FOR VALUES IN (2);
CREATE TABLE place_c PARTITION OF place DEFAULT;
CREATE TABLE doc (
    id bigint PRIMARY KEY, version bigint NOT NULL, stamp text NOT NULL, body text, meta jsonb, tags text[]
);
ALTER TABLE doc ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE account REPLICA IDENTITY FULL;
ALTER TABLE line REPLICA IDENTITY FULL;
ALTER TABLE place REPLICA IDENTITY FULL;
ALTER TABLE place_a REPLICA IDENTITY FULL;
ALTER TABLE place_b REPLICA IDENTITY FULL;
ALTER TABLE place_c REPLICA IDENTITY FULL;
ALTER TABLE doc REPLICA IDENTITY FULL;
"""

FILL = """
INSERT INTO account SELECT n, n % 97, nextval('versions'), '', n, n % 7, repeat('x', 60 + n % 90)
FROM generate_series(0, %(rows)s - 1) AS n;
INSERT INTO line SELECT n / 5, n % 5, nextval('versions'), '', 'sku' || n, n / 7.0, n % 3 = 0
FROM generate_series(0, %(rows)s - 1) AS n;
INSERT INTO place SELECT n, n % 4, nextval('versions'), '', 'name ' || n FROM generate_series(0, %(rows)s - 1) AS n;
INSERT INTO doc SELECT n, nextval('versions'), '', repeat(md5(n::text), 80), '{"a": null}', '{x,NULL}'
FROM generate_series(0, %(rows)s / 10) AS n;
"""

ENTITIES = """
[entities.account]
table = "public.account"
partition_by = ["guest_id"]
partitions = 8
on_truncate = "publish"
[entities.line]
table = "public.line"
partitions = 3
on_truncate = "publish"
[entities.place]
table = "public.place"
partitions = 2
on_truncate = "publish"
[entities.doc]
table = "public.doc"
on_truncate = "publish"
"""


def prepare(dsn: str, rows: int) -> None:
    """Creates the tables, with about `rows` rows in each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(FILL.replace("%(rows)s", str(rows)).encode())
        connection.execute("VACUUM ANALYZE")


def last_write(dsn: str) -> int:
    """Writes a last change, and returns the position in the server's log just before this change.

    All writers must have stopped. Then a reader that has passed this position has read every change.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        connection.execute("INSERT INTO doc VALUES (-1, nextval('versions'), '')")
    assert row is not None
    return parse_lsn(row[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How the writers write. All keys are below `universe`. One in `big_every` transactions writes about `big` rows.

    `lingering` is the share of transactions that stay open for up to `linger_s` seconds. `held` is the share of
    transactions that become visible only after the synchronous standby has received them. Between two transactions, a
    writer pauses for `pause_s` seconds.
    """

    universe: int
    big: int
    big_every: int = 400
    pause_s: float = 0.0
    lingering: float = 0.0
    linger_s: float = 0.0
    held: float = 0.0


@dataclass(slots=True)
class Counts:
    """How many transactions the writers committed and rolled back, and the errors of writers that failed."""

    committed: int = 0
    rolled_back: int = 0
    failed: list[BaseException] = field(default_factory=list)


class Load:
    """Threads that write until `stop`. They survive lost connections, deadlocks and conflicts."""

    def __init__(self, dsn: str, scale: Scale, seed: int) -> None:
        logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns if a rollback cannot reach the server
        self.counts = Counts()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(Writer(dsn, scale, seed, number),), daemon=True)
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends each thread after its present transaction. If a thread failed, raises its error."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self.counts.failed:
            raise self.counts.failed[0]

    def _run(self, writer: "Writer") -> None:
        try:
            writer.write(self._stopping, self.counts)
        except BaseException as error:
            self.counts.failed.append(error)
            raise


class Writer:
    """Writes random transactions. If it loses its session, it opens another one."""

    def __init__(self, dsn: str, scale: Scale, seed: int, number: int) -> None:
        self._dsn, self._scale, self._number = dsn, scale, number
        self._rng = random.Random(f"{seed}/{number}")
        self._stamps = 0
        self._stamp = ""
        self._actions: Sequence[Callable[[Cursor], object]] = (
            *(self._insert_account, self._update_account, self._update_account, self._delete_account),
            *(self._rename_account, self._place_account),
            *(self._write_line, self._update_line, self._delete_line),
            *(self._insert_place, self._update_place, self._delete_place, self._cross),
            *(self._write_doc, self._update_doc, self._update_body, self._delete_doc),
        )

    def write(self, stopping: threading.Event, counts: Counts) -> None:
        """Writes until `stopping` is set."""
        while not stopping.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    connection.execute("SET synchronous_commit = local")
                    connection.execute("SET deadlock_timeout = 50")
                    while not stopping.is_set():
                        self._transaction(connection, counts)
                        stopping.wait(self._scale.pause_s)
            except (psycopg.OperationalError, psycopg.Rollback):  # a Rollback gets here only if the rollback failed
                stopping.wait(0.1)

    def _transaction(self, connection: psycopg.Connection, counts: Counts) -> None:
        self._stamp = ""
        rng = self._rng
        try:
            with connection.transaction(), connection.cursor() as cursor:
                if rng.random() < 0.7:
                    self._emit_stamp(cursor)
                if rng.randrange(self._scale.big_every) == 0:
                    self._big(cursor)
                for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 12))):
                    self._step(cursor)
                if rng.random() < self._scale.held:
                    cursor.execute("SET LOCAL synchronous_commit = on")
                if rng.random() < self._scale.lingering:
                    time.sleep(rng.random() * self._scale.linger_s)
                    self._step(cursor)
                if rng.random() < 0.05:
                    raise psycopg.Rollback
        except CONFLICTS:
            counts.rolled_back += 1
        else:
            counts.committed += 1

    def _step(self, cursor: Cursor) -> None:
        rng = self._rng
        action = rng.choice(self._actions)
        if rng.random() < 0.8:
            action(cursor)
        elif rng.random() < 0.3:
            self._emit_stamp(cursor)
            action(cursor)
        else:
            self._tentative(cursor, action)

    def _tentative(self, cursor: Cursor, action: Callable[[Cursor], object]) -> None:
        """Runs `action` in a savepoint. Half of all savepoints begin with a stamp, and half of all are rolled back."""
        before = self._stamp
        with cursor.connection.transaction():
            if self._rng.random() < 0.5:
                self._emit_stamp(cursor)
            action(cursor)
            if self._rng.random() < 0.5:
                self._stamp = before
                raise psycopg.Rollback

    def _emit_stamp(self, cursor: Cursor) -> None:
        """Writes a stamp. Sometimes writes an invalid stamp instead, or a message that is not a stamp. These two must
        have no effect.
        """
        chance = self._rng.random()
        if chance < 0.04:
            cursor.execute("SELECT pg_logical_emit_message(%s, 'other', 'x')", [chance < 0.02])
        elif chance < 0.06:
            cursor.execute("SELECT pg_logical_emit_message(true, 'provenance', '{\"who\": 1}')")
        else:
            self._stamps += 1
            self._stamp = f"w{self._number}-{self._stamps}"
            stamp = f'{{"apiVersion": "v2", "serviceName": "load", "identifier": "{self._stamp}"}}'
            cursor.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [stamp])

    def _any(self) -> int:
        return self._rng.randrange(self._scale.universe)

    def _own(self) -> int:
        return self._rng.randrange(self._scale.universe // WRITERS) * WRITERS + self._number

    def _text(self) -> str:
        return self._rng.choice(('a"b', "back\\slash", "tab\there", "grün 🙂", "line\nbreak", "", "plain")) * 3

    def _big(self, cursor: Cursor) -> None:
        first, rows = self._any(), self._scale.big
        table = self._rng.choice(("account", "place"))
        if self._rng.random() < 0.7:
            cursor.execute(
                f"UPDATE {table} SET version = nextval('versions'), stamp = %s WHERE id BETWEEN %s AND %s".encode(),
                [self._stamp, first, first + rows],
            )
            return
        first = first - first % WRITERS + self._number
        cursor.execute("DELETE FROM account WHERE id BETWEEN %s AND %s AND id %% %s = %s",
                       [first, first + rows, WRITERS, self._number])  # fmt: skip
        cursor.execute(
            "INSERT INTO account SELECT n, n %% 89, nextval('versions'), %s, NULL, 3, 'again'"
            " FROM generate_series(%s::bigint, %s, %s) AS n WHERE n < %s",
            [self._stamp, first, first + rows, WRITERS, self._scale.universe],
        )

    def _insert_account(self, cursor: Cursor) -> None:
        cursor.execute(
            "INSERT INTO account VALUES (%s, %s, nextval('versions'), %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [self._own(), self._any() % 97, self._stamp, self._any() / 100, self._any(), self._text()],
        )

    def _update_account(self, cursor: Cursor) -> None:
        cursor.execute(
            "UPDATE account SET version = nextval('versions'), stamp = %s, amount = amount + 1, note = %s"
            " WHERE id = ANY (%s)",
            [self._stamp, self._text(), [self._any() for _ in range(self._rng.choice((1, 1, 3, 20)))]],
        )

    def _delete_account(self, cursor: Cursor) -> None:
        cursor.execute("DELETE FROM account WHERE id = %s", [self._own()])

    def _rename_account(self, cursor: Cursor) -> None:
        new = self._own()
        cursor.execute(
            "UPDATE account SET id = %s, version = nextval('versions'), stamp = %s WHERE id = %s"
            " AND NOT EXISTS (SELECT FROM account WHERE id = %s)",
            [new, self._stamp, self._own(), new],
        )

    def _place_account(self, cursor: Cursor) -> None:
        cursor.execute(
            "UPDATE account SET guest_id = %s, version = nextval('versions'), stamp = %s WHERE id = %s",
            [self._any() % 97, self._stamp, self._any()],
        )

    def _write_line(self, cursor: Cursor) -> None:
        cursor.execute(
            "INSERT INTO line SELECT %s, n, nextval('versions'), %s, %s, random(), n = 1 FROM generate_series(0, %s) n"
            " ON CONFLICT (order_id, line_no) DO UPDATE"
            " SET version = nextval('versions'), stamp = excluded.stamp, price = excluded.price",
            [self._own(), self._stamp, self._text(), self._rng.randrange(6)],
        )

    def _update_line(self, cursor: Cursor) -> None:
        cursor.execute(
            "UPDATE line SET version = nextval('versions'), stamp = %s, open = NOT open WHERE order_id = %s",
            [self._stamp, self._any()],
        )

    def _delete_line(self, cursor: Cursor) -> None:
        cursor.execute("DELETE FROM line WHERE order_id = %s AND line_no >= %s", [self._own(), self._rng.randrange(5)])

    def _insert_place(self, cursor: Cursor) -> None:
        cursor.execute(
            "INSERT INTO place VALUES (%s, %s, nextval('versions'), %s, %s) ON CONFLICT DO NOTHING",
            [self._own(), self._rng.randrange(5), self._stamp, self._text()],
        )

    def _update_place(self, cursor: Cursor) -> None:
        cursor.execute(
            "UPDATE place SET version = nextval('versions'), stamp = %s, name = %s WHERE id = %s",
            [self._stamp, self._text(), self._any()],
        )

    def _delete_place(self, cursor: Cursor) -> None:
        cursor.execute("DELETE FROM place WHERE id = %s", [self._own()])

    def _cross(self, cursor: Cursor) -> None:
        """Moves a row to another partition of its table. Or deletes a row and inserts it again, which the changelog
        shows as one update.
        """
        number, region = self._own(), self._rng.randrange(5)
        if self._rng.random() < 0.3:
            cursor.execute("DELETE FROM place WHERE id = %s AND region = %s", [number, region])
            cursor.execute(
                "INSERT INTO place VALUES (%s, %s, nextval('versions'), %s, 'back') ON CONFLICT DO NOTHING",
                [number, region, self._stamp],
            )
            return
        cursor.execute(
            "UPDATE place SET region = %s, version = nextval('versions'), stamp = %s WHERE id = %s AND region = %s"
            " AND NOT EXISTS (SELECT FROM place WHERE id = %s AND region = %s)",
            [region, self._stamp, number, self._rng.randrange(5), number, region],
        )

    def _write_doc(self, cursor: Cursor) -> None:
        cursor.execute(
            "INSERT INTO doc VALUES (%s, nextval('versions'), %s, repeat(md5(random()::text), %s), %s, %s)"
            " ON CONFLICT (id) DO UPDATE SET version = nextval('versions'), stamp = excluded.stamp",
            [self._own() // 10 * WRITERS + self._number, self._stamp, self._rng.choice((1, 80, 300)),
             self._rng.choice(('{"a": 1.50}', "null", "[1, 2]", None)), [self._text(), None]],
        )  # fmt: skip

    def _update_doc(self, cursor: Cursor) -> None:
        """Changes a row, but not its large value. So the server does not write this value to the log again."""
        cursor.execute(
            "UPDATE doc SET version = nextval('versions'), stamp = %s, tags = %s WHERE id = %s",
            [self._stamp, [self._text()], self._any() // 10],
        )

    def _update_body(self, cursor: Cursor) -> None:
        cursor.execute(
            "UPDATE doc SET version = nextval('versions'), stamp = %s, body = repeat(md5(random()::text), 100)"
            " WHERE id = %s",
            [self._stamp, self._any() // 10],
        )

    def _delete_doc(self, cursor: Cursor) -> None:
        cursor.execute("DELETE FROM doc WHERE id = %s", [self._own() // 10 * WRITERS + self._number])
