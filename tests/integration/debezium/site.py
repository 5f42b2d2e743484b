"""Creates a PostgreSQL table for Debezium's connector, and runs a program that reads the table through Debezium until
a test kills the program.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from changelog.connectors.debezium.launch import MAIN
from changelog.debezium import Progress

POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"


def connector(dsn: str, **more: str) -> dict[str, str]:
    """Returns the properties of a connector for the table `orders`.

    `more` are additional properties. Their names have underscores in place of dots.
    """
    parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    return {
        "connector.class": POSTGRES,
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "database.hostname": str(parameters["host"]),
        "database.port": str(parameters["port"]),
        "database.dbname": str(parameters["dbname"]),
        "database.user": str(parameters["user"]),
        "database.password": "",
        "table.include.list": "public.orders",
        "slot.name": str(parameters["dbname"]),
        "publication.name": "orders",
        "publication.autocreate.mode": "filtered",
        "poll.interval.ms": "20",
        "slot.retry.delay.ms": "200",  # after a kill, the server may need a moment to free the slot
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def create_table(dsn: str, rows: int = 0) -> None:
    """Creates the table `orders` with rows 1 to `rows`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(10, 2))")
        connection.execute("INSERT INTO orders SELECT i, 'NEW', 12.5 FROM generate_series(1, %s) AS i", [rows])


class SqliteStore:
    """Imitates the store of an application: one transaction commits the handler's rows and Debezium's offsets."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

    def open(self) -> Progress:
        self._connection = sqlite3.connect(self._file, check_same_thread=False)
        self._connection.execute("CREATE TABLE IF NOT EXISTS offsets (partition PRIMARY KEY, offset)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, op, row)")
        offsets = dict(self._connection.execute("SELECT partition, offset FROM offsets"))
        return Progress(offsets=offsets, history=[])

    def add(self, events: Sequence[tuple[str, int]]) -> None:
        assert self._connection
        self._connection.executemany("INSERT INTO events (op, row) VALUES (?, ?)", events)

    def commit(self, offsets: Mapping[bytes, bytes], history: Sequence[bytes]) -> None:
        assert self._connection
        assert not history
        self._connection.executemany("REPLACE INTO offsets VALUES (?, ?)", offsets.items())
        self._connection.commit()

    def close(self) -> None:
        assert self._connection
        self._connection.close()  # rolls back what is not committed


PROGRAM = """
import json, sys
from pathlib import Path
from changelog.debezium import DebeziumEngine
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.debezium.site import SqliteStore

properties, jars, file = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
store = SqliteStore(Path(file))
engine = DebeziumEngine(properties, store=store, jars=jars, in_flight_bytes=200_000)


def handle(events):
    values = [event.decoded_value() for event in events]
    store.add([(value["op"], value["after"]["id"]) for value in values])


while True:
    try:
        engine.run(handle)
    except ChangelogError as error:
        print(error, flush=True)
        if error.kind is not Kind.CONNECTION:
            raise
"""


@contextmanager
def program(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs PROGRAM until the end of the `with` block, and then kills its process."""
    with log.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def java_of(parent: int) -> int | None:
    """Returns the id of the running Debezium process that the process `parent` started, or None. Other Java processes,
    such as Spark's or one that only prints its version, do not count.
    """
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in task.read_text("utf-8").split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if MAIN.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
    return None


def has_ended(process: int) -> bool:
    """Returns whether the process has ended. A process that its parent has not waited for yet has ended, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill(process: int) -> None:
    """Kills a process, unless it has already ended."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
