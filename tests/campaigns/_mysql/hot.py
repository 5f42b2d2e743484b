"""A hot table: threads update ranges of its rows, and the numbers in its rows tell how often each was updated."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pymysql

from changelog.connectors.servers.mysql import Server

ROWS = 1_000
RANGE = 30
WRITERS = 8
HOLD_MS = 300

CREATE = "CREATE TABLE hot (id INT PRIMARY KEY, version BIGINT NOT NULL)"
MARKS = "CREATE TABLE mark (id BIGINT AUTO_INCREMENT PRIMARY KEY)"


@contextmanager
def updated(server: Server, database: str, seed: int) -> Iterator[None]:
    """Updates the table inside the block. On MariaDB, commits are held again and again in the log, not yet visible."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_update, args=(server, database, random.Random(f"{seed}-{number}"), over))
        for number in range(WRITERS)
    ]
    if server.flavour == "mariadb":
        threads.append(threading.Thread(target=_hold, args=(server, random.Random(seed), over)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _update(server: Server, database: str, rng: random.Random, over: threading.Event) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        while not over.is_set():
            first = rng.randrange(ROWS)
            try:
                cursor.execute(
                    "UPDATE hot SET version = version + 1 WHERE id BETWEEN %s AND %s", [first, first + RANGE]
                )
            except pymysql.OperationalError:
                continue  # it met another transaction


def _hold(server: Server, rng: random.Random, over: threading.Event) -> None:
    """Holds commits until a replica acknowledges them, or for HOLD_MS: there is none."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC")
        cursor.execute(f"SET GLOBAL rpl_semi_sync_master_timeout = {HOLD_MS}")
        while not over.wait(rng.random()):
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
            over.wait(HOLD_MS / 1000)
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")


class _State(msgspec.Struct):
    id: int
    version: int


@dataclass(slots=True)
class HotJudge:
    """Judges the rows of one opening of a source, in order.

    An update must have the next number of its row. A row that was read from the table must have the number of the last
    update that was published before it. `stale` counts the rows that were read from the table and have another one, and
    `wrong` the rows whose last state is not that of the table.
    """

    updates: int = 0
    reads: int = 0
    stale: int = 0
    lost: int = 0
    wrong: int = 0
    versions: dict[int, int] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        """Judges the rows of a batch."""
        for op, text in zip(rows.column("op").to_pylist(), rows.column("current").to_pylist(), strict=True):
            state = msgspec.json.decode(text, type=_State)
            before = self.versions.get(state.id)
            if op == "read":
                self.reads += 1
                self.stale += before is not None and before != state.version
            else:
                self.updates += 1
                self.lost += before is not None and before + 1 != state.version
            self.versions[state.id] = state.version
