"""Runs threads that steadily change the table `account` of a MySQL or MariaDB database."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pymysql.cursors import Cursor

from changelog.connectors.servers.mysql import MysqlServer

WRITERS = 4
PAUSE_S = 0.01
"""The longest pause of a writer after a transaction. On two cores, a service falls behind if writers do not pause."""

BLOCK = 40
"""Each writer has a block of this many keys. The first row of a block is never changed or deleted, so that writers do
not wait for each other. The server locks not only rows, but also the gaps between existing rows. The first row of a
block ends the last gap of the block before it, so no two writers lock the same gap.
"""

TABLE = (
    "CREATE TABLE account (id INT PRIMARY KEY, amount BIGINT)",
    f"INSERT INTO account VALUES {', '.join(f'({number * BLOCK}, 0)' for number in range(WRITERS + 1))}",
)
"""The statements that create the table."""


class Writer(threading.Thread):
    """Changes random rows of one block. `xa` is the share of its transactions that are XA transactions."""

    def __init__(
        self,
        server: MysqlServer,
        database: str,
        number: int,
        rng: random.Random,
        *,
        xa: float,
        over: threading.Event,
    ) -> None:
        super().__init__(name=f"writer-{number}")
        self._server, self._database, self._number = server, database, number
        self._rng, self._xa, self._over = rng, xa, over
        self.transactions = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Makes transactions until `over` is set."""
        try:
            with self._server.connect(self._database) as session, session.cursor() as cursor:
                while not self._over.wait(self._rng.random() * PAUSE_S):
                    self._transaction(cursor)
                    self.transactions += 1
        except BaseException as error:
            self.failure = error
            raise

    def _transaction(self, cursor: Cursor) -> None:
        is_xa = self._rng.random() < self._xa
        name = f"'{self._database}.{self._number}.{self.transactions}'"
        cursor.execute(f"XA START {name}" if is_xa else "BEGIN")
        for _ in range(self._rng.choice((1, 1, 3))):
            self._change(cursor)
        if is_xa:
            cursor.execute(f"XA END {name}")
            cursor.execute(f"XA PREPARE {name}")
            cursor.execute(f"XA {self._rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} {name}")
        else:
            cursor.execute(self._rng.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))

    def _change(self, cursor: Cursor) -> None:
        key = self._number * BLOCK + self._rng.randrange(1, BLOCK)
        if self._rng.random() < 0.2:
            cursor.execute(f"DELETE FROM account WHERE id = {key}")
        else:
            cursor.execute(f"REPLACE INTO account VALUES ({key}, {self._rng.randrange(1 << 40)})")


@contextmanager
def writing(server: MysqlServer, database: str, seed: int, *, xa: float) -> Iterator[list[Writer]]:
    """Runs the writers until the `with` block ends. If a writer failed, raises its error then."""
    over = threading.Event()
    writers = [
        Writer(server, database, number, random.Random(seed + number), xa=xa, over=over) for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        over.set()
        for writer in writers:
            writer.join()
    for writer in writers:
        if writer.failure is not None:
            raise writer.failure
