"""The threads that read chunks of tables."""

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.windows import Windows
from changelog.connectors.sources.postgres.session.connection import Connection
from changelog.connectors.sources.postgres.snapshot.chunk_reader import ChunkReader
from changelog.connectors.sources.postgres.snapshot.chunk_rows import ReadTable


def test_any_error_of_a_reader_is_reported() -> None:
    class UnforeseenError(Exception):
        pass

    def bind(_: Connection, name: str) -> ReadTable:
        raise AssertionError(name)

    def connect() -> Connection:
        raise UnforeseenError

    windows = Windows({}, horizon=0, nonces=lambda: "")
    reader = ChunkReader(
        windows,
        {},
        Origin(connector="postgres", name="n", database="d"),
        bind=bind,
        connect=connect,
        workers=1,
    )
    reader.close()
    assert isinstance(reader.failure, UnforeseenError)
