"""Defines the sample applications of the demo, which write to a hotel's booking database, and the story of one order.

An application writes a *stamp* into each of its transactions: a small record that says who makes the changes.
"""

import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date, timedelta

from changelog.connectors.demo.database import DemoDatabase, Session
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp

GUESTS, ORDERS, SESSIONS, EVENTS = 4_000, 12_000, 4_000, 30_000
ROWS = GUESTS + ORDERS + SESSIONS + EVENTS
"""The number of rows in all tables before `changelog run` starts."""

FIRST_ARRIVAL = date(2027, 1, 1)
"""The earliest arrival in the orders that the sample applications make."""

CONFIG = """\
name = "booking"

{source}
{sink}

[entities.guest]
table = "{schema}.guest"
partitions = 4

[entities.order]                  # an order goes to the partition of its guest, like everything of this guest
table = "{schema}.orders"
partition_by = ["guest_id"]
partitions = 4

[entities.session]
table = "{schema}.session"
partition_by = ["guest_id"]
partitions = 4

[entities.event]                  # no program updates or deletes an event
table = "{schema}.event"
partition_by = ["guest_id"]
partitions = 4
immutable = true

[service]
listen = "127.0.0.1:0"

[console]                         # `changelog console` shows the reports of drift, if there are any
drift_reports = "drift"
"""

COMPARED = {
    "guest": ("guest", ("name", "email", "loyalty")),
    "order": ("orders", ("guest_id", "room", "nights", "amount", "status", "note")),
    "session": ("session", ("guest_id", "device", "pages")),
    "event": ("event", ("guest_id", "kind")),
}
"""Each entity, with its table and the columns that the demo compares with the changelog."""

Write = Callable[[Session, random.Random], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWriter:
    """A sample application that keeps writing. It calls `write` once in each transaction, and stamps every transaction.

    `pause_s` is the pause between two transactions, in seconds.
    """

    name: str
    version: str
    pause_s: float
    write: Write


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A step in the demo's story of one order: the SQL of a change, and the stamp of the change, or None."""

    stamp: Stamp | None
    sql: str


def rows_of(session: Session, entity: str) -> dict[str, tuple[str | None, ...]]:
    """Returns the rows of an entity's table, by key: the values of the compared columns, as strings."""
    table, columns = COMPARED[entity]
    rows = session.execute(f"SELECT {', '.join(('id', *columns))} FROM {table}")
    return {str(key): tuple(None if value is None else str(value) for value in values) for key, *values in rows}


class Traffic:
    """A context manager that runs each writer in a thread until the end of the context.

    Raises ChangelogError at the end if one of the writers could not write.
    """

    def __init__(self, database: DemoDatabase, seed: int) -> None:
        self._database = database
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
            raise ChangelogError(Kind.CONNECTION, f"the sample applications could not write: {self._failures[0]}")

    def _work(self, writer: SampleWriter, chance: random.Random) -> None:
        try:
            with self._database.session() as session:
                count = 0
                while not self._stop.wait(writer.pause_s):
                    count += 1
                    stamp = Stamp(api_version=writer.version, service_name=writer.name, identifier=f"req-{count:05d}")
                    with session.stamped(stamp):
                        writer.write(session, chance)
        except ChangelogError as error:
            self._failures.append(f"{writer.name}: {error.message}")


def _book(session: Session, chance: random.Random) -> None:
    guest = chance.randint(1, GUESTS)
    room, arrival = chance.choice(["single", "double", "suite"]), FIRST_ARRIVAL + timedelta(chance.randrange(90))
    session.execute(
        "INSERT INTO orders (guest_id, room, arrival, nights, amount, status) VALUES (%s, %s, %s, %s, %s, 'NEW')",
        [guest, room, arrival, 2, chance.randint(90, 500)],
    )
    session.execute("INSERT INTO event (guest_id, kind, details) VALUES (%s, 'booked', %s)", [guest, '{"by": "web"}'])


def _pay(session: Session, chance: random.Random) -> None:
    session.execute("UPDATE orders SET status = 'PAID' WHERE id = %s", [chance.randint(1, ORDERS)])


def _browse(session: Session, chance: random.Random) -> None:
    id_ = chance.randint(1, SESSIONS)
    session.execute("UPDATE session SET pages = pages + 1 WHERE id = %s", [id_])
    session.execute(
        "INSERT INTO event (guest_id, kind, details) SELECT guest_id, 'viewed', %s FROM session WHERE id = %s",
        [f'{{"page": {chance.randint(1, 50)}}}', id_],
    )


def _serve(session: Session, chance: random.Random) -> None:
    session.execute(
        "UPDATE orders SET status = 'CHECKED_IN', note = %s WHERE id = %s",
        [f"room {chance.randint(100, 399)}", chance.randint(1, ORDERS)],
    )


def _reward(session: Session, chance: random.Random) -> None:
    """Updates many rows in one transaction, as a batch job does."""
    session.execute(
        "UPDATE guest SET loyalty = %s WHERE id %% 20 = %s", [chance.choice(["silver", "gold"]), chance.randrange(20)]
    )


def _forget(session: Session, chance: random.Random) -> None:
    """Deletes many rows in one transaction, as a batch job does."""
    session.execute("DELETE FROM session WHERE id %% 40 = %s", [chance.randrange(40)])


WRITERS = (
    SampleWriter(name="web-booking", version="v3", pause_s=0.004, write=_book),
    SampleWriter(name="payment-api", version="v2", pause_s=0.006, write=_pay),
    SampleWriter(name="session-tracker", version="v7", pause_s=0.003, write=_browse),
    SampleWriter(name="front-desk", version="v5", pause_s=0.02, write=_serve),
    SampleWriter(name="loyalty-batch", version="2026.11", pause_s=0.8, write=_reward),
    SampleWriter(name="session-cleanup", version="2026.11", pause_s=1.3, write=_forget),
)


AUDIT = "night-audit"
"""The sample application whose batch job changes more orders than it should."""

LAST = "req-9d04"
"""The identifier in the stamp of the story's last change."""


def story(guest: int) -> list[Chapter]:
    """Returns the changes of one order of the guest with this id.

    The first chapter creates the order. In the SQL of the other chapters, `%(order)s` is the id of this order.
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


def perform(session: Session, chapter: Chapter, order: int | None) -> int | None:
    """Performs one chapter; returns the id of the order if the chapter created it."""
    with nullcontext() if chapter.stamp is None else session.stamped(chapter.stamp):
        rows = session.execute(chapter.sql, {"order": order})
    return int(rows[0][0]) if rows else None
