"""Reads large results of queries as the bytes that the server sends, without making a Python object of each value."""

from collections.abc import Iterator
from dataclasses import dataclass

from changelog.connectors.sources.mysql.session.connection import COM_QUERY, Connection
from changelog.connectors.sources.mysql.session.packets import Packets

_EOF = b"\xfe"
_EOF_BYTES_MAX = 9

_BLOCK_ROWS_MAX = 4096

_DOING = "reading a table"


class ResultTooLargeError(Exception):
    """The result has more bytes than allowed. The connection is closed, because the server still sends the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRows:
    """The rows of a result. They are in `data`, one after the other, each after a header of HEADER_BYTES bytes.

    `bounds` has the offset at which the header of each row begins, and then, as its last element, the end of `data`.
    In a row, the values follow each other. Each value is a length and a text, or the byte 0xFB for NULL. Source: the
    page *Text Resultset Row* of MySQL's documentation.
    """

    data: bytearray
    bounds: list[int]

    @classmethod
    def none(cls) -> "TextRows":
        """Returns an empty result, to which rows can be added."""
        return cls(data=bytearray(), bounds=[0])

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.bounds) - 1

    def add(self, rows: Packets) -> None:
        """Adds rows."""
        begin = len(self.data)
        self.bounds.extend([begin + end for end in rows.ends])
        self.data.extend(rows.data)


def read_text_rows(connection: Connection, sql: str, *, bytes_max: int) -> TextRows:
    """Runs a query, and returns its rows.

    Raises ChangelogError. Raises ResultTooLargeError if the rows have more than `bytes_max` bytes; only a single row
    may have more.
    """
    rows = TextRows.none()
    for block in _blocks(connection, sql):
        rows.add(block)
        if len(rows.data) > bytes_max and rows.count > 1:
            connection.close()
            raise ResultTooLargeError
    return rows


def read_portions(connection: Connection, sql: str, *, rows_max: int, bytes_max: int) -> Iterator[TextRows]:
    """Runs a query, and yields its rows in non-empty portions, as they arrive.

    A portion ends once it has `rows_max` rows or `bytes_max` bytes. It can exceed these limits by the rows that arrive
    in one read of the socket. Raises ChangelogError.
    """
    portion = TextRows.none()
    for block in _blocks(connection, sql):
        portion.add(block)
        if portion.count >= rows_max or len(portion.data) >= bytes_max:
            yield portion
            portion = TextRows.none()
    if portion.count:
        yield portion


def _blocks(connection: Connection, sql: str) -> Iterator[Packets]:
    """Runs a query, and yields its rows in groups, as they arrive."""
    connection.send(COM_QUERY, sql.encode(), _DOING)
    while not _is_end(connection.packets(_DOING, 1).last()):
        pass  # the number of columns, and a description of each column
    while True:
        packets = connection.packets(_DOING, _BLOCK_ROWS_MAX)
        if _is_end(packets.last()):
            yield packets.before_last()
            return
        yield packets


def _is_end(payload: memoryview) -> bool:
    return payload[:1] == _EOF and len(payload) < _EOF_BYTES_MAX
