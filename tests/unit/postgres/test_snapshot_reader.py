"""The threads that read tables."""

from connectors.sources.postgres.chunkrows import ReadTable
from connectors.sources.postgres.copyout import Connection
from connectors.sources.postgres.rows import Origin
from connectors.sources.postgres.snapshot import Reader
from connectors.sources.postgres.windows import Windows


def test_a_reader_that_fails_says_so_whatever_it_fails_with() -> None:
    class UnforeseenError(Exception):
        pass

    def bind(_: Connection, name: str) -> ReadTable:
        raise AssertionError(name)

    def connect() -> Connection:
        raise UnforeseenError

    windows = Windows({}, horizon=0, nonces=lambda: "")
    reader = Reader(windows, {}, Origin(name="n", database="d", decisions={}), bind=bind, connect=connect, workers=1)
    reader.close()
    assert isinstance(reader.failure, UnforeseenError)
