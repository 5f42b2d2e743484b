"""Reads, in a few threads, the chunks of tables that `Windows` hands out. A window is a chunk that is being read."""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from changelog.connectors.capture.tables.windows import Chunk, Windows

ReadChunk = Callable[[str, Chunk], bool]
"""Takes the nonce of a chunk (the text of the chunk's message in the database's log), and the chunk. Reads the chunk,
or gives it back to `Windows`.

Returns False if the thread should pause before the next chunk.
"""

_PAUSE_S = 0.2


class ChunkThreads:
    """A few threads that read chunks.

    `tables` gives the table of each entity. Each thread calls `sessions` once. `sessions` opens connections to the
    database, and yields the function that reads a chunk over them.
    """

    def __init__(
        self,
        windows: Windows,
        tables: Mapping[str, tuple[str, str]],
        sessions: Callable[[], AbstractContextManager[ReadChunk]],
        *,
        workers: int,
    ) -> None:
        self._windows, self._tables, self._sessions = windows, tables, sessions
        self._stopping = threading.Event()
        self.failure: BaseException | None = None
        """The error that ended the reading early, if any."""
        self._threads = [threading.Thread(target=self._work, daemon=True, name="snapshot") for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops the threads. A later opening of the source reads the unpublished chunks again."""
        self._stopping.set()
        self._windows.close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            with self._sessions() as read_chunk:
                while not self._stopping.is_set() and (window := self._windows.take(self._tables)) is not None:
                    if not read_chunk(*window):
                        self._stopping.wait(_PAUSE_S)
        except BaseException as error:  # noqa: BLE001 - the source raises it; otherwise the reading would end silently
            self.failure = error
