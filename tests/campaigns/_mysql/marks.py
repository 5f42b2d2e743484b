"""Reads a table by marks, as DBLog and Debezium's incremental snapshots do. Counts how often this gives old rows.

A mark is a change of one special row. Only the reader changes this row, so it can find its marks in the log. The reader
makes a mark, reads a chunk of rows, and makes a second mark. Rows that changed between the two marks in the log are
left out. All other rows of the chunk are published as if they had been read at the second mark. This is correct only if
the chunk shows every commit that is before the first mark in the log. MySQL with `binlog_order_commits = OFF` does not
promise that.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from changelog.connectors.servers.mysql import MysqlServer

MARK = -1
"""The key of the row whose changes are the marks."""

Versions = Mapping[int, int]
"""The version of each row, by its key."""


class MarkedReader(threading.Thread):
    """Reads the whole table again and again, until `over` is set.

    Adds each chunk to `chunks`. The key of a chunk is the version that the special row gets by the second mark.
    """

    def __init__(self, server: MysqlServer, database: str, chunks: dict[int, Versions], over: threading.Event) -> None:
        super().__init__(name="marked-reader")
        self._server, self._database, self._chunks, self._over = server, database, chunks, over

    def run(self) -> None:
        """Makes a mark, reads the rows, and makes the second mark, again and again."""
        number = 0
        with self._server.connect(self._database) as connection, connection.cursor() as cursor:
            while not self._over.is_set():
                cursor.execute(_CHANGE_MARK)
                cursor.execute("SELECT id, version FROM hot WHERE id <> %s", [MARK])
                number += 2
                self._chunks[number] = dict(cursor.fetchall())
                cursor.execute(_CHANGE_MARK)


_CHANGE_MARK = f"UPDATE hot SET version = version + 1 WHERE id = {MARK}"


@dataclass(slots=True)
class MarksJudge:
    """Compares chunks that were read by marks with the log. `judged` counts the chunks that were compared.

    `wrong` counts those of them that have an old version of a row, although the row's last change is before the first
    mark in the log.

    `chunks` has the chunks whose second mark has not come yet (see `MarkedReader`).
    """

    chunks: dict[int, Versions] = field(default_factory=dict)
    judged: int = 0
    wrong: int = 0
    _versions: dict[int, int] = field(default_factory=dict)
    _commits: dict[int, str] = field(default_factory=dict)
    _last_mark: str = ""

    def add(self, number: int, version: int, commit: str) -> None:
        """Judges the next change of the log.

        `number` is the key of the row, and `version` its version after the change. `commit` is the first part of the
        change's position: its epoch and its commit.
        """
        if number != MARK:
            self._versions[number], self._commits[number] = version, commit
            return
        chunk = self.chunks.pop(version, None)
        if chunk is not None:
            self.judged += 1
            self.wrong += any(
                self._commits[key] < self._last_mark and chunk[key] < last for key, last in self._versions.items()
            )
        self._last_mark = commit
