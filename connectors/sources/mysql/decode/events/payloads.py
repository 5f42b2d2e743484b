"""Decompresses the events of a whole transaction of MySQL (`binlog_transaction_compression`).

Source: MySQL's source documentation, "Transaction_payload_event". The event has fields with a type and a size; a
type of 0 ends them. Then come the events of the transaction, without checksums, compressed by zstd.
"""

from collections.abc import Iterator

import pyarrow as pa

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.header import EVENT_BYTES_MAX, HEADER_BYTES

_PIECE_BYTES = 1 << 20
_END, _SIZE, _ALGORITHM, _UNCOMPRESSED_SIZE = range(4)
_ZSTD = 0
_SIZE_OFFSET = 9


def payload_events(cursor: Cursor) -> Iterator[bytes]:
    """Yields the events of a TRANSACTION_PAYLOAD, with their headers. Each is decompressed when the caller asks for it.

    At most one decompressed event and a piece of 1 MiB are in memory, whatever sizes the payload claims. Raises
    ChangelogError (MALFORMED) if the payload cannot be decompressed, or if its size is not what it claims.
    """
    begin = cursor.at
    fields = _fields(cursor)
    if fields.get(_SIZE) != cursor.left:
        raise cursor.malformed(f"a compressed transaction of {cursor.left} bytes whose size field differs", begin)
    if fields.get(_ALGORITHM) != _ZSTD or _UNCOMPRESSED_SIZE not in fields:
        raise cursor.malformed("a transaction whose compression is not known", begin)
    stream = _Stream(cursor, fields[_UNCOMPRESSED_SIZE])
    while head := stream.read(HEADER_BYTES):
        size = int.from_bytes(head[_SIZE_OFFSET : _SIZE_OFFSET + 4], "little")
        if not HEADER_BYTES <= size <= EVENT_BYTES_MAX:
            raise stream.malformed(f"an event of {size} bytes")
        yield head + stream.read(size - HEADER_BYTES)
    stream.finish()


def _fields(cursor: Cursor) -> dict[int, int]:
    fields: dict[int, int] = {}
    while (kind := cursor.length()) != _END:
        field = cursor.part(cursor.length())
        if kind in (_SIZE, _ALGORITHM, _UNCOMPRESSED_SIZE):
            fields[kind] = field.length()
            field.finish("a field of a compressed transaction")
    return fields


class _Stream:
    """Decompresses the remaining bytes of `cursor`. `size` is the size that the payload claims for the result."""

    def __init__(self, cursor: Cursor, size: int) -> None:
        self._cursor, self._begin, self._bytes_left = cursor, cursor.at, size
        self._stream = pa.CompressedInputStream(pa.BufferReader(cursor.rest()), "zstd")

    def malformed(self, problem: str) -> Exception:
        return self._cursor.malformed(f"a compressed transaction with {problem}", self._begin)

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes; no bytes at the end of the stream."""
        pieces = []
        missing = min(size, self._bytes_left)
        while missing and (piece := self._piece(min(missing, _PIECE_BYTES))):
            pieces.append(piece)
            missing -= len(piece)
        content = b"".join(pieces)
        if len(content) not in (0, size):
            raise self.malformed(f"only {len(content)} of {size} bytes of an event")
        self._bytes_left -= len(content)
        return content

    def _piece(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except (OSError, pa.ArrowException):
            raise self.malformed("bytes that zstd cannot decompress") from None

    def finish(self) -> None:
        if self._bytes_left or self._piece(1):
            raise self.malformed("a different uncompressed size than it claims")
