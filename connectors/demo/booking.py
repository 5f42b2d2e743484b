"""The demo's database: a hotel's bookings, and the services that write to it.

A service writes a *stamp* into each of its transactions: a small record that says who makes the changes.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp
from changelog.envelope.stamp import content

GUESTS, ORDERS, SESSIONS, EVENTS = 4_000, 12_000, 4_000, 30_000
ROWS = GUESTS + ORDERS + SESSIONS + EVENTS
"""The number of rows in all tables before `changelog run` starts."""

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
"""

CONFIG = """\
name = "booking"

[source]
kind = "postgres"
dsn = "{dsn}"

{sink}

[entities.guest]
table = "public.guest"
partitions = 4

[entities.order]                  # an order goes to the partition of its guest, like everything of this guest
table = "public.orders"
partition_by = ["guest_id"]
partitions = 4

[entities.session]
table = "public.session"
partition_by = ["guest_id"]
partitions = 4

[entities.event]                  # no program updates or deletes an event
table = "public.event"
partition_by = ["guest_id"]
partitions = 4
immutable = true

[service]
listen = "127.0.0.1:0"
"""

COMPARED = {
    "guest": ("guest", ("name", "email", "loyalty")),
    "order": ("orders", ("guest_id", "room", "nights", "amount", "status", "note")),
    "session": ("session", ("guest_id", "device", "pages")),
    "event": ("event", ("guest_id", "kind")),
}
"""Each entity, with its table and the columns that the demo compares with the changelog."""

Connection = psycopg.Connection[Any]
Write = Callable[[Connection, random.Random], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A service that keeps writing. It calls `write` once in each transaction, and every transaction has a stamp.

    `pause_s` is the pause between two transactions, in seconds.
    """

    name: str
    version: str
    pause_s: float
    write: Write


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A step in the demo's story of one order: the SQL of a change, and its stamp (None for a change without one)."""

    stamp: Stamp | None
    sql: str


@contextmanager
def stamped(connection: Connection, stamp: Stamp) -> Iterator[None]:
    """Opens a transaction with a stamp. An application has to add only the SELECT below."""
    with connection.transaction():
        connection.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [content(stamp).decode()])
        yield


def build(dsn: str) -> None:
    """Creates the tables and fills them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        connection.execute(FILL.encode())
        connection.execute("ANALYZE")


def rows_of(dsn: str, entity: str) -> dict[str, tuple[str | None, ...]]:
    """Returns the rows of an entity's table, by key: the values of the compared columns, as texts."""
    table, columns = COMPARED[entity]
    expressions = ", ".join(f"{column}::text" for column in ("id", *columns))
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(f"SELECT {expressions} FROM {table}".encode()).fetchall()
    return {key: tuple(values) for key, *values in rows}


class Traffic:
    """A context manager that runs the writers, each in a thread, until its end.

    Raises ChangelogError at the end if one of the writers could not write.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._work, args=(writer, random.Random(seed + number)), name=writer.name)
            for number, writer in enumerate(WRITERS)
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._failures:
            raise ChangelogError(Kind.CONNECTION, f"the demo's services could not write: {self._failures[0]}")

    def _work(self, writer: Writer, chance: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                count = 0
                while not self._stop.wait(writer.pause_s):
                    count += 1
                    stamp = Stamp(api_version=writer.version, service_name=writer.name, identifier=f"req-{count:05d}")
                    with stamped(connection, stamp):
                        writer.write(connection, chance)
        except psycopg.Error as error:
            self._failures.append(f"{writer.name}: {type(error).__name__}")


def _book(connection: Connection, chance: random.Random) -> None:
    guest = chance.randint(1, GUESTS)
    connection.execute(
        "INSERT INTO orders (guest_id, room, arrival, nights, amount, status)"
        " VALUES (%s, %s, date '2027-01-01' + %s::int, %s, %s, 'NEW')",
        [guest, chance.choice(["single", "double", "suite"]), chance.randrange(90), 2, chance.randint(90, 500)],
    )
    connection.execute(
        "INSERT INTO event (guest_id, kind, details) VALUES (%s, 'booked', %s)", [guest, '{"by": "web"}']
    )


def _pay(connection: Connection, chance: random.Random) -> None:
    connection.execute("UPDATE orders SET status = 'PAID' WHERE id = %s", [chance.randint(1, ORDERS)])


def _browse(connection: Connection, chance: random.Random) -> None:
    session = chance.randint(1, SESSIONS)
    connection.execute("UPDATE session SET pages = pages + 1 WHERE id = %s", [session])
    connection.execute(
        "INSERT INTO event (guest_id, kind, details) SELECT guest_id, 'viewed', %s FROM session WHERE id = %s",
        [f'{{"page": {chance.randint(1, 50)}}}', session],
    )


def _serve(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        "UPDATE orders SET status = 'CHECKED_IN', note = %s WHERE id = %s",
        [f"room {chance.randint(100, 399)}", chance.randint(1, ORDERS)],
    )


def _reward(connection: Connection, chance: random.Random) -> None:
    """A batch job: many rows in one transaction."""
    connection.execute(
        "UPDATE guest SET loyalty = %s WHERE id %% 20 = %s", [chance.choice(["silver", "gold"]), chance.randrange(20)]
    )


def _forget(connection: Connection, chance: random.Random) -> None:
    """A batch job that deletes rows."""
    connection.execute("DELETE FROM session WHERE id %% 40 = %s", [chance.randrange(40)])


WRITERS = (
    Writer(name="web-booking", version="v3", pause_s=0.004, write=_book),
    Writer(name="payment-api", version="v2", pause_s=0.006, write=_pay),
    Writer(name="session-tracker", version="v7", pause_s=0.003, write=_browse),
    Writer(name="front-desk", version="v5", pause_s=0.02, write=_serve),
    Writer(name="loyalty-batch", version="2026.11", pause_s=0.8, write=_reward),
    Writer(name="session-cleanup", version="2026.11", pause_s=1.3, write=_forget),
)


AUDIT = "night-audit"
"""The service with a batch job that changes more orders than it should."""

LAST = "req-9d04"
"""The identifier in the stamp of the story's last change."""


def story(guest: int) -> list[Chapter]:
    """Returns the changes of one order of the guest with this id.

    The first chapter creates the order. In the SQL of the others, `%(order)s` is the id of the order.
    """

    def by(service: str, version: str, identifier: str) -> Stamp:
        return Stamp(service_name=service, api_version=version, identifier=identifier)

    return [
        Chapter(
            stamp=by("web-booking", "v3", "req-71c2"),
            sql="INSERT INTO orders (guest_id, room, arrival, nights, amount, status)"
            f" VALUES ({guest}, 'double', '2026-11-21', 3, 411.00, 'NEW') RETURNING id",
        ),
        Chapter(
            stamp=by("payment-api", "v2", "pay-5510"), sql="UPDATE orders SET status = 'PAID' WHERE id = %(order)s"
        ),
        Chapter(
            stamp=by("mobile-app", "v1", "req-03fe"),
            sql="UPDATE orders SET nights = 4, amount = 548.00 WHERE id = %(order)s",
        ),
        Chapter(
            stamp=by(AUDIT, "2026.11", "run-2026-11-21"),
            sql="UPDATE orders SET amount = round(amount * 1.05, 2), note = 'city tax 5 %%'"
            " WHERE id = %(order)s OR id %% 8 = 0",
        ),
        Chapter(stamp=None, sql="UPDATE orders SET amount = 548.00, note = NULL WHERE id = %(order)s"),
        Chapter(
            stamp=by("front-desk", "v5", LAST),
            sql="UPDATE orders SET status = 'CHECKED_IN', note = 'room 312, exempt from city tax' WHERE id = %(order)s",
        ),
    ]


def tell(connection: Connection, chapter: Chapter, order: int | None) -> int | None:
    """Performs one chapter; returns the id of the order if the chapter created it."""
    if chapter.stamp is None:
        result = connection.execute(chapter.sql.encode(), {"order": order})
    else:
        with stamped(connection, chapter.stamp):
            result = connection.execute(chapter.sql.encode(), {"order": order})
    return int(result.fetchall()[0][0]) if result.description else None
