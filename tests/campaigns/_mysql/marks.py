"""Reads a hot table by marks, as DBLog and Debezium's incremental snapshots do, and counts how often that goes wrong.

A mark is a change of a row that only the reader changes. A chunk is read between two marks, and its rows are placed at
the second mark in the log. Rows that changed between the marks are left out. The method assumes that the other rows are
up to date at the second mark. So it assumes that every commit before the first mark in the log was visible when the
chunk was read. MySQL with `binlog_order_commits = OFF` does not promise that.
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

    Adds the rows of each read to `chunks`. The key in `chunks` is the version that the row of marks has after the
    second mark.
    """

    def __init__(self, server: MysqlServer, database: str, chunks: dict[int, Versions], over: threading.Event) -> None:
        super().__init__(name="marked-reader")
        self._server, self._database, self._chunks, self._over = server, database, chunks, over

    def run(self) -> None:
        """Changes the mark, reads the rows, and changes the mark again."""
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
    """Compares chunks that were read by marks with the log. `judged` is the number of chunks that were compared.

    `wrong` is the number of chunks that have an old version of a row. In the log, the row's last change is before the
    chunk's first mark, so the chunk should have the newer version.
    `chunks` has the chunks whose second mark is not yet delivered; see `MarkedReader`.
    """

    chunks: dict[int, Versions] = field(default_factory=dict)
    judged: int = 0
    wrong: int = 0
    _versions: dict[int, int] = field(default_factory=dict)
    _commits: dict[int, str] = field(default_factory=dict)
    _last_mark: str = ""

    def add(self, number: int, version: int, commit: str) -> None:
        """Judges the next change of the log.

        `number` and `version` are the key and the version of the row. `commit` is the part of the
        change's position that has the epoch and the commit.
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
