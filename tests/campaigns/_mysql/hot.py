"""Updates a *hot* table, to which many threads write at once, and judges the rows that a source publishes of it.

Each row has a `version`, which counts its updates. Another thread delays commits now and then. A delayed commit is
already in the log, where the source finds it, but queries do not see it yet.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pymysql

from changelog.connectors.servers.mysql import MysqlServer
from tests.campaigns._mysql.marks import MARK, MarkedReader, MarksJudge, Versions
from tests.campaigns._mysql.xa import ABSENT

ROWS = 1_000
RANGE = 30
WRITERS = 8
HOLD_MS = 300
WORDS = 100_000
"""MySQL takes a few tenths of a second of CPU time to add a text of this many words to a full-text index."""

COMMIT = 25
"""How many characters at the start of a position's text hold its epoch and its commit."""

XA_ENDS = ("own session", "other session", "ONE PHASE")
"""The ways to commit an XA transaction: by the session that prepared it, by another session, or without a PREPARE."""

INSERT_WORDS = "INSERT INTO prose (words) VALUES (%s)", [" ".join(f"word{number}" for number in range(WORDS))]

UPDATE = "UPDATE hot SET version = version + 1 WHERE id BETWEEN %s AND %s"


def create(server: MysqlServer, database: str) -> None:
    """Creates the hot table, with a row for the marks (see `marks.py`). Also creates the table `prose`: its full-text
    index delays commits.
    """
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE hot (id INT PRIMARY KEY, version BIGINT NOT NULL)")
        cursor.executemany("INSERT INTO hot VALUES (%s, 0)", [(number,) for number in (MARK, *range(ROWS))])
        cursor.execute("CREATE TABLE prose (id INT AUTO_INCREMENT PRIMARY KEY, words LONGTEXT, FULLTEXT (words))")


@contextmanager
def updated(
    server: MysqlServer, database: str, seed: int, chunks: dict[int, Versions], *, xa: bool = False
) -> Iterator[None]:
    """While the block runs, updates the table, delays commits, and reads the table into `chunks` (see `marks.py`).

    With `xa`, another thread also updates the table, in XA transactions.
    """
    over = threading.Event()
    threads = [
        threading.Thread(target=_update, args=(server, database, random.Random(f"{seed}-{number}"), over))
        for number in range(WRITERS)
    ]
    hold = _hold_unacknowledged if server.flavour == "mariadb" else _hold_by_words
    threads.append(threading.Thread(target=hold, args=(server, database, random.Random(seed), over)))
    if xa:
        threads.append(threading.Thread(target=_update_by_xa, args=(server, database, random.Random(seed), over)))
    threads.append(MarkedReader(server, database, chunks, over))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _update(server: MysqlServer, database: str, rng: random.Random, over: threading.Event) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        while not over.is_set():
            first = rng.randrange(ROWS)
            try:
                cursor.execute(UPDATE, [first, first + RANGE])
            except pymysql.OperationalError:
                continue  # another transaction has locked some of the rows


def _hold_unacknowledged(server: MysqlServer, database: str, rng: random.Random, over: threading.Event) -> None:
    """Sometimes lets commits wait until a replica acknowledges them. There is no replica, so they wait for HOLD_MS."""
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC")
        cursor.execute(f"SET GLOBAL rpl_semi_sync_master_timeout = {HOLD_MS}")
        while not over.wait(rng.random()):
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
            over.wait(HOLD_MS / 1000)
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")


def _hold_by_words(server: MysqlServer, database: str, rng: random.Random, over: threading.Event) -> None:
    """Updates rows in transactions that also add to a full-text index.

    When MySQL commits such a transaction, it first writes the commit to the log. Then it adds the words to the index,
    and only then makes the transaction visible.
    """
    with server.connect(database) as connection, connection.cursor() as cursor:
        while not over.wait(rng.random()):
            first = rng.randrange(ROWS)
            try:
                cursor.execute("BEGIN")
                cursor.execute(UPDATE, [first, first + RANGE])
                cursor.execute(*INSERT_WORDS)
                cursor.execute("COMMIT")
            except pymysql.OperationalError:
                continue  # another transaction has locked some of the rows; this one is rolled back


def _update_by_xa(server: MysqlServer, database: str, rng: random.Random, over: threading.Event) -> None:
    """Updates rows in XA transactions. The commit of some of them takes long."""
    number = 0
    while not over.is_set():
        number += 1
        name, first, end = f"{database}.{number}", rng.randrange(ROWS), rng.choice(XA_ENDS)
        update_by_xa(server, database, name, first, end, slow=rng.random() < 0.3)


def update_by_xa(server: MysqlServer, database: str, name: str, first: int, end: str, *, slow: bool) -> None:
    """Updates rows in the XA transaction `name`, and commits it in the way `end` (see XA_ENDS).

    Does nothing if another transaction has locked some of the rows. With `slow`, the transaction also adds to a
    full-text index, so that its commit takes long. While the commit goes on, the log may already have the XA COMMIT.
    """
    with server.connect(database) as session, session.cursor() as cursor:
        cursor.execute(f"XA START '{name}'")
        try:
            cursor.execute(UPDATE, [first, first + RANGE])
        except pymysql.OperationalError:
            return  # the end of the session rolls the transaction back
        if slow:
            cursor.execute(*INSERT_WORDS)
        cursor.execute(f"XA END '{name}'")
        if end == "ONE PHASE":
            cursor.execute(f"XA COMMIT '{name}' ONE PHASE")
            return
        cursor.execute(f"XA PREPARE '{name}'")
        if end == "own session":
            cursor.execute(f"XA COMMIT '{name}'")
    if end == "other session":
        _commit_prepared(server, name)


def _commit_prepared(server: MysqlServer, name: str) -> None:
    """Commits a prepared XA transaction whose session was closed just now. Until the server has ended that session, XA
    COMMIT fails; so it is tried again until it succeeds.
    """
    with server.connect() as session, session.cursor() as cursor:
        while True:
            try:
                cursor.execute(f"XA COMMIT '{name}'")
            except pymysql.Error as error:
                if error.args[0] not in ABSENT:
                    raise
                time.sleep(0.001)
            else:
                return


class _State(msgspec.Struct):
    id: int
    version: int


@dataclass(slots=True)
class HotJudge:
    """Judges the rows that a source returns, in the order in which it returns them. The source is opened only once.

    - Each update of a row must have a version that is one higher than the row's version before. `lost` counts the
      updates that have another version.
    - A row that was read from the table must have the same version as the last state of this row that the source
      returned, if it returned one. `stale` counts the rows that have another version.
    - `wrong` counts the rows whose last returned state is not that of the table.
    - `marks` judges the chunks that `MarkedReader` read at the same time.
    """

    updates: int = 0
    reads: int = 0
    stale: int = 0
    lost: int = 0
    wrong: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    marks: MarksJudge = field(default_factory=MarksJudge)

    def add(self, rows: pa.RecordBatch) -> None:
        """Judges the rows of a batch."""
        columns = (rows.column(name).to_pylist() for name in ("op", "position", "current"))
        for op, position, text in zip(*columns, strict=True):
            state = msgspec.json.decode(text, type=_State)
            before = self.versions.get(state.id)
            if op == "read":
                self.reads += 1
                self.stale += before is not None and before != state.version
            else:
                self.updates += 1
                self.lost += before is not None and before + 1 != state.version
                self.marks.add(state.id, state.version, position[:COMMIT])
            self.versions[state.id] = state.version
