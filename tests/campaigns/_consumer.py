"""Writes to a table, and reads its changelog with a consumer that follows the rules of docs/reference/kafka.md. The
consumer must end up with the rows of the table.
"""

import json
import random
import threading
from collections.abc import Iterable
from typing import Any

import psycopg
import pyarrow as pa

TABLE = "CREATE TABLE guest (id int PRIMARY KEY, name text, version int NOT NULL)"
ENTITY = """
[entities.guest]
table = "public.guest"
"""
TRUNCATE_KEY = "\0truncate"
KEYS = 60


class Consumer:
    """Keeps the newest state of each key of one entity.

    It ignores a row whose position is not newer than the position of the last row with this key. So the same consumer
    can read a changelog from its start several times. A truncate deletes all older states.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self.states: dict[str, Any] = {}

    def take(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Applies rows of the entity. The caller gives them in the order of the changelog."""
        for batch in batches:
            rows = zip(*(batch.column(name).to_pylist() for name in ("key", "position", "current")), strict=True)
            for key, position, current in rows:
                if position <= self._seen.get(key, ""):
                    continue
                self._seen[key] = position
                if key == TRUNCATE_KEY:
                    self.states = {name: state for name, state in self.states.items() if self._seen[name] > position}
                    continue
                self.states.pop(key, None)
                if current is not None:
                    self.states[key] = json.loads(current)


def check_order(batches: Iterable[pa.RecordBatch]) -> int:
    """Raises AssertionError if the position of a row is not newer than that of the previous row with the same key.
    Returns the number of rows.
    """
    last: dict[tuple[str, int | None], str] = {}
    count = 0
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("key", "partition", "position"))
        for key, partition, position in zip(*columns, strict=True):
            row = (key, partition if key == TRUNCATE_KEY else None)  # a truncate has one row in each partition
            assert position > last.get(row, ""), f"{key!r} goes back from {last[row]} to {position}"
            last[row] = position
            count += 1
    return count


def table(dsn: str) -> dict[str, Any]:
    """The rows of the table, by key."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT id::text, to_json(g) FROM guest AS g").fetchall()
    return dict(rows)


class Writer:
    """Inserts, updates and deletes rows of `guest`, a few in each transaction. While the server is away, it tries
    again.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn, self._random = dsn, random.Random(seed)
        self._version = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, transactions: int) -> None:
        """Writes this number of transactions."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for _ in range(transactions):
                self._transaction(connection)

    def start(self) -> None:
        """Starts a thread that writes until `stop`."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.01):
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    while not self._stopping.wait(0.01):
                        self._transaction(connection)
            except psycopg.OperationalError:
                self._stopping.wait(0.1)

    def _transaction(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        with connection.transaction():
            for _ in range(self._random.randrange(1, 4)):
                self._version += 1
                key = self._random.randrange(KEYS)
                if self._random.random() < 0.3:
                    connection.execute("DELETE FROM guest WHERE id = %s", [key])
                else:
                    connection.execute(
                        "INSERT INTO guest VALUES (%s, %s, %s) ON CONFLICT (id) "
                        "DO UPDATE SET name = excluded.name, version = excluded.version",
                        [key, f"name {self._version}", self._version],
                    )
