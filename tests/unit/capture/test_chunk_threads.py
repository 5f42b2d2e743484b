"""Tests the threads that read tables in chunks. They must keep any error for the thread that started them."""

from contextlib import AbstractContextManager

from changelog.connectors.capture.tables.chunk_threads import ChunkThreads, ReadChunk
from changelog.connectors.capture.tables.windows import Windows


def test_any_error_of_a_thread_is_reported() -> None:
    class UnforeseenError(Exception):
        pass

    def sessions() -> AbstractContextManager[ReadChunk]:
        raise UnforeseenError

    threads = ChunkThreads(Windows({}, horizon=0, nonces=lambda: ""), {}, sessions, workers=1)
    threads.close()
    assert isinstance(threads.failure, UnforeseenError)
