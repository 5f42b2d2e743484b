"""Collects rows that COPY writes in its text format, up to a size limit, and splits them into values.

Rows can be large, so memory holds only one copy of them, in one buffer. To save memory, the buffer is searched piece by
piece, and escaped values are unescaped in place.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import generators, sql
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.connectors.sources.postgres.session.connection import Connection
from changelog.envelope.columnar.splice import INLINE, Bytes
from changelog.envelope.errors import ChangelogError, Kind

Ints = npt.NDArray[np.int64]

CHUNK_BYTES_MAX = 32 << 20
"""A chunk of several rows has at most this many bytes of text; a larger chunk is divided. One row may have any size."""

_PIECE_BYTES = 1 << 18
_TAB, _NEWLINE, _BACKSLASH = b"\t\n\\"
_ESCAPES = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class ChunkTooLargeError(Exception):
    """A chunk exceeds CHUNK_BYTES_MAX and has to be divided."""


def copy_rows(reader: Connection, query: sql.Composed) -> bytearray:
    """Runs a COPY to STDOUT and returns its rows in one buffer. Raises ChunkTooLargeError."""
    rows = bytearray()
    with copying(reader, query) as copied_rows:
        for row in copied_rows:
            add(rows, row)
    return rows


def add(rows: bytearray, more: memoryview | bytearray) -> None:
    """Appends rows to a chunk's rows. Raises ChunkTooLargeError."""
    if rows and len(rows) + len(more) > CHUNK_BYTES_MAX:
        raise ChunkTooLargeError
    rows += more


@contextmanager
def copying(reader: Connection, query: sql.Composed) -> Iterator[Iterator[memoryview]]:
    """Runs a COPY to STDOUT and yields its rows. After an error inside the block, closes the connection if the COPY is
    still running.

    Nothing else ends a COPY at once. A cancelled COPY has to be read to its end, and the server may make us wait for
    that end.
    """
    try:
        yield copy_out(reader, query.as_bytes(reader))
    except BaseException:
        if reader.pgconn.transaction_status == TransactionStatus.ACTIVE:
            reader.close()
        raise


def copy_out(reader: Connection, query: bytes) -> Iterator[memoryview]:
    """Runs a COPY to STDOUT and yields its rows one by one.

    It reads from libpq directly, because psycopg's `Copy` takes twice the time. A caller that stops early has to close
    the connection.
    """
    link = reader.pgconn
    link.send_query(query)
    start = reader.wait(generators.execute(link))[-1]
    if start.status != ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(start)
    take = link.get_copy_data
    while (received := take(1))[0] >= 0:
        if received[0]:
            yield received[1]
        else:
            reader.wait(_arrival(link))
    for result in reader.wait(generators.fetch_many(link)):
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)


def blocks(rows: Iterator[memoryview], *, rows_max: int, bytes_max: int) -> Iterator[list[memoryview]]:
    """Yields the rows in blocks of `rows_max` rows, or of fewer rows if they are large.

    A block ends with the row that makes it exceed `bytes_max`.
    """
    block: list[memoryview] = []
    room = bytes_max
    for row in rows:
        block.append(row)
        room -= len(row)
        if len(block) == rows_max or room < 0:
            yield block
            block, room = [], bytes_max
    if block:
        yield block


def _arrival(link: PGconn) -> Generator[Wait, Ready | int, None]:
    while not (yield Wait.R):
        pass
    link.consume_input()


def parse_copy(data: bytearray, width: int) -> TextColumns:
    """Splits rows in COPY's text format (SQL-COPY, *Text Format*) into slices of `data`, which must be under 2 GiB.

    Unescapes values in place, and appends `INLINE` bytes to `data`, because `splice` requires this padding. Raises
    ChangelogError (MALFORMED) if a row does not have `width` columns.
    """
    length = len(data)
    is_complete = data.endswith(b"\n") or not data
    data += bytes(INLINE)
    buffer = np.frombuffer(data, np.uint8)[:length]
    ends = np.concatenate([np.empty(0, np.int64), *_positions(buffer, _TAB, _NEWLINE)])
    newlines = buffer[ends] == _NEWLINE
    count = int(np.count_nonzero(newlines))
    if not is_complete or len(ends) != width * count or not newlines[width - 1 :: width].all():
        raise ChangelogError(Kind.MALFORMED, f"COPY gave {len(ends)} values in {count} rows of {width} columns")
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    lengths = ends - starts
    null = np.zeros(len(starts), bool)
    backslashes = (np.unique(np.searchsorted(ends, positions)) for positions in _positions(buffer, _BACKSLASH))
    escaped = np.unique(np.concatenate([ends[:0], *backslashes]))
    null[escaped] = (lengths[escaped] == 2) & (buffer[starts[escaped] + 1] == ord("N"))
    for number in escaped[~null[escaped]].tolist():
        lengths[number] = _unescape(data, int(starts[number]), int(ends[number]))
    lengths[null] = 0
    shape = (count, width)
    return TextColumns(
        starts=starts.astype(np.int32).reshape(shape).T,
        lengths=lengths.astype(np.int32).reshape(shape).T,
        null=null.reshape(shape).T,
    )


def _positions(buffer: Bytes, *bytes_: int) -> Iterator[Ints]:
    """Yields, for each piece of the buffer, an array of the positions at which one of these bytes stands."""
    for begin in range(0, len(buffer), _PIECE_BYTES):
        piece = buffer[begin : begin + _PIECE_BYTES]
        yield np.flatnonzero(np.logical_or.reduce([piece == byte for byte in bytes_])) + begin


def _unescape(data: bytearray, start: int, end: int) -> int:
    """Unescapes a value in place, which works because the result is never longer. Returns the new length."""
    at = to = start
    while at < end:
        piece = bytes(data[at : min(at + _PIECE_BYTES, end)])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the piece's last backslash escapes the character after it
            piece += data[at + len(piece) : at + len(piece) + 1]
        text = _ESCAPES.sub(lambda match: _ESCAPED.get(match[1], match[1]), piece)
        data[to : to + len(text)] = text
        at, to = at + len(piece), to + len(text)
    return to - start
