"""Measures how much time a stamp costs, and how many bytes of the database's log it takes. A stamp is a note in a
transaction that says who made the transaction. A small transaction is stamped in several ways, and its figures are
compared with those of a transaction without a stamp.

A transaction updates one row by its key. The client and the server are on the same machine, and the server does not
wait for the disk. So the stamp's share of the time is as large as it can be. All ways take turns in a random order, one
transaction each. So they are all affected alike by other load on the machine, and by what the previous transaction has
left in caches. The times are 10th percentiles, because other load disturbs them less than medians.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict

import changelog_stamps.asyncpg
import changelog_stamps.psycopg
import changelog_stamps.psycopg2
import changelog_stamps.sqlalchemy
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.candidate import PostgresCandidate
from changelog_stamps import stamp

TRANSACTIONS = 3000
ROWS = 1000
STAMP: dict[str, Any] = {"service": "order-api", "version": "v2", "identifier": "req-8f1c"}
UPDATE = "UPDATE {table} SET v = v + 1 WHERE id = {key}"
BARE, TRIGGERED = "bare", "triggered"
"""The two tables. Only the second has the trigger that writes stamps."""

Way = Callable[[int], object]
"""Runs a transaction that updates the row with a given key."""


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS, help="transactions of each way")
    parser.add_argument("--quick", action="store_true", help="run a tenth of the transactions")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    count = options.transactions // (10 if options.quick else 1)
    with temporary_server(settings={"fsync": "off", "synchronous_commit": "off"}) as server:
        _create_tables(server.dsn())
        with contextlib.ExitStack() as stack:
            drivers = (_psycopg, _psycopg2, _asyncpg, _sqlalchemy, _django)
            ways = {name: way for driver in drivers for name, way in driver(server.dsn(), stack).items()}
            times_ms = _measure(ways, count)
            log_bytes = _log_bytes(server.dsn(), ways)
    _report(times_ms, log_bytes, options)


def _create_tables(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in (BARE, TRIGGERED):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int) WITH (fillfactor = 50)".encode())
            connection.execute(f"INSERT INTO {table} SELECT n, 0 FROM generate_series(0, {ROWS - 1}) AS n".encode())
        connection.execute(PostgresCandidate(dsn).stamps({("public", TRIGGERED)}).encode())


def _psycopg(dsn: str, stack: contextlib.ExitStack) -> dict[str, Way]:
    connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))

    def plain(table: str) -> Way:
        def run(key: int) -> None:
            with connection.transaction():
                connection.execute(UPDATE.format(table=table, key=key).encode())

        return run

    def stamped(table: str, *, emit: bool) -> Way:
        def run(key: int) -> None:
            with changelog_stamps.psycopg.stamped(connection, emit=emit, **STAMP):
                connection.execute(UPDATE.format(table=table, key=key).encode())

        return run

    return {
        "psycopg, no stamp": plain(BARE),
        "psycopg, emitted": stamped(BARE, emit=True),
        "psycopg, trigger alone": plain(TRIGGERED),
        "psycopg, setting and trigger": stamped(TRIGGERED, emit=False),
    }


def _psycopg2(dsn: str, stack: contextlib.ExitStack) -> dict[str, Way]:
    connection = stack.enter_context(contextlib.closing(psycopg2.connect(dsn)))

    def update(table: str, key: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(UPDATE.format(table=table, key=key))

    def plain(key: int) -> None:
        with connection:
            update(BARE, key)

    def stamped(key: int) -> None:
        with changelog_stamps.psycopg2.stamped(connection, **STAMP):
            update(TRIGGERED, key)

    return {"psycopg2, no stamp": plain, "psycopg2, setting and trigger": stamped}


def _asyncpg(dsn: str, stack: contextlib.ExitStack) -> dict[str, Way]:
    runner = stack.enter_context(asyncio.Runner())
    parts = conninfo_to_dict(dsn)
    address = {"host": parts["host"], "port": parts["port"], "user": parts["user"], "database": parts["dbname"]}
    connection = runner.run(asyncpg.connect(**address))
    stack.callback(lambda: runner.run(connection.close()))

    async def plain(key: int) -> None:
        async with connection.transaction():
            await connection.execute(UPDATE.format(table=BARE, key="$1"), key)

    async def stamped(key: int) -> None:
        async with changelog_stamps.asyncpg.stamped(connection, **STAMP):
            await connection.execute(UPDATE.format(table=TRIGGERED, key="$1"), key)

    return {
        "asyncpg, no stamp": lambda key: runner.run(plain(key)),
        "asyncpg, setting and trigger": lambda key: runner.run(stamped(key)),
    }


def _sqlalchemy(dsn: str, stack: contextlib.ExitStack) -> dict[str, Way]:
    def way(table: str) -> Way:
        engine = sqlalchemy.create_engine("postgresql+psycopg://", connect_args=conninfo_to_dict(dsn))
        stack.callback(engine.dispose)
        if table == TRIGGERED:
            changelog_stamps.sqlalchemy.install(engine)
        update = sqlalchemy.text(UPDATE.format(table=table, key=":key"))

        def run(key: int) -> None:
            with stamp(**STAMP), engine.begin() as connection:
                connection.execute(update, {"key": key})

        return run

    return {"SQLAlchemy, no stamp": way(BARE), "SQLAlchemy, setting and trigger": way(TRIGGERED)}


def _django(dsn: str, stack: contextlib.ExitStack) -> dict[str, Way]:
    parts = {name.upper(): value for name, value in conninfo_to_dict(dsn).items() if name in ("host", "port", "user")}
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": conninfo_to_dict(dsn)["dbname"], **parts}
    settings.configure(
        DATABASES={"default": database, BARE: database}, INSTALLED_APPS=["changelog_stamps.django"], SECRET_KEY="bench"
    )
    django.setup()
    stack.callback(connections.close_all)
    connections[BARE].ensure_connection()
    connections[BARE].execute_wrappers.clear()

    def way(alias: str, table: str) -> Way:
        def run(key: int) -> None:
            with stamp(**STAMP), transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                cursor.execute(UPDATE.format(table=table, key="%s"), [key])

        return run

    return {"Django, no stamp": way(BARE, BARE), "Django, setting and trigger": way("default", TRIGGERED)}


def _measure(ways: dict[str, Way], count: int) -> dict[str, list[float]]:
    """Returns how many ms each transaction took, by the way in which it was stamped."""
    times_ms: dict[str, list[float]] = {name: [] for name in ways}
    turns = random.Random(1)
    for number in range(count):
        for name, way in turns.sample([*ways.items()], len(ways)):
            began = time.perf_counter()
            way(number % ROWS)
            times_ms[name].append((time.perf_counter() - began) * 1000)
    return times_ms


def _log_bytes(dsn: str, ways: dict[str, Way]) -> dict[str, float]:
    """Returns how many bytes a transaction adds to the database's log, by the way in which it is stamped. The figures
    are medians.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:

        def end() -> int:
            [[lsn]] = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchall()
            return int(lsn)

        def sizes(way: Way) -> Iterator[int]:
            for key in range(51):
                before = end()
                way(key)
                yield end() - before

        return {name: statistics.median(sizes(way)) for name, way in ways.items()}


def _report(times_ms: dict[str, list[float]], log_bytes: dict[str, float], options: argparse.Namespace) -> None:
    figures = {name: statistics.quantiles(times, n=10)[0] for name, times in times_ms.items()}
    rows = []
    for name, time_ms in figures.items():
        base = f"{name.partition(',')[0]}, no stamp"
        ratio, more = time_ms / figures[base], log_bytes[name] - log_bytes[base]
        rows.append({"way": name, "ms": round(time_ms, 4), "ratio": round(ratio, 2), "log_bytes_more": more})
        print(f"{name:34} {time_ms:7.3f} ms   {ratio:5.2f}   {more:+5.0f} bytes of log")
    if options.json:
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        print(json.dumps({"transactions": options.transactions, "machine": machine, "ways": rows}))


if __name__ == "__main__":
    main()
