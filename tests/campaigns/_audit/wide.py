"""Writes a few wide rows, and keeps changing them. One of these rows is larger than what the service reads at once."""

import random
import threading

import psycopg

from tests.campaigns._audit.load import CONFLICTS

TABLE = "wide"
MIB = 1 << 20
SIZES = {1: 10 * MIB, 2: 10 * MIB, 3: 10 * MIB, 4: 10 * MIB, 5: 10 * MIB, 6: 40 * MIB}
"""The size of each row in bytes, by key. PostgreSQL compresses these rows so well that one page holds all of them."""
PAUSE_S = 0.2

_BODY = "repeat(md5(%(text)s::text), %(size)s / 32)"
_INSERT = f"INSERT INTO wide VALUES (%(key)s, %(text)s, {_BODY}) ON CONFLICT DO NOTHING"
_CHANGES = (
    *[["UPDATE wide SET note = %(text)s WHERE id = %(key)s"]] * 10,
    [f"UPDATE wide SET body = {_BODY} WHERE id = %(key)s"],
    ["DELETE FROM wide WHERE id = %(key)s", _INSERT],
)
"""Each change runs one of these lists of statements, chosen at random. Most lists do not write the long value to the
log. If all did, the service would have no time for other rows.
"""


class WideRows:
    """Fills the table, and changes its rows until the `with` block ends. While the server is away, it tries again."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn, self._rng = dsn, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            for key in SIZES:
                self._execute(connection, key, [_INSERT])
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    self._write(connection)
            except psycopg.OperationalError:
                self._stopping.wait(0.1)

    def _write(self, connection: psycopg.Connection) -> None:
        while not self._stopping.wait(self._rng.random() * 2 * PAUSE_S):
            try:
                with connection.transaction():
                    self._execute(connection, self._rng.choice(list(SIZES)), self._rng.choice(_CHANGES))
            except CONFLICTS:
                continue

    def _execute(self, connection: psycopg.Connection, key: int, statements: list[str]) -> None:
        values = {"key": key, "size": SIZES[key], "text": str(self._rng.randrange(1 << 40))}
        for statement in statements:
            connection.execute(statement.encode(), values)
