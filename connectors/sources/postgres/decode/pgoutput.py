"""Decodes messages of the output plugin pgoutput, one at a time, from bytes to the dataclasses of `messages`.

Source: PostgreSQL's documentation, "Logical Replication Message Formats", protocol versions 1 to 4.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

from changelog.connectors.capture.rows.row_change import LARGE_BYTES, UNCHANGED, Delete, Insert, Update, Value
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Decoded,
    LogicalMessage,
    Prepare,
    Relation,
    RelationColumn,
    ReplicationOrigin,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeName,
)
from changelog.envelope.errors import ChangelogError, Kind


def decode(payload: bytes, *, begin: int = 0, end: int | None = None, streaming: bool = False) -> Decoded:
    """Decodes the one message that fills `payload` from `begin` to `end`.

    `streaming` says that the message is inside a stream block. There, a transaction id follows the kind of the message;
    it is skipped. Raises ChangelogError (MALFORMED) with the offset of the first byte that cannot be read.
    """
    cursor = _Cursor(payload, begin, len(payload) if end is None else end)
    kind = cursor.take(1)
    parse = _PARSERS.get(kind)
    if parse is None:
        raise cursor.malformed(f"an unknown message kind {kind!r}", begin)
    if streaming and kind in _IN_BLOCKS:
        cursor.number(_INT32)
    message = parse(cursor)
    if cursor.left:
        raise cursor.malformed(f"{cursor.left} extra bytes after a {type(message).__name__} message", cursor.at)
    return message


_INT8, _INT16, _INT32, _INT64 = struct.Struct("!B"), struct.Struct("!H"), struct.Struct("!I"), struct.Struct("!Q")
_SIGNED32, _SIGNED64 = struct.Struct("!i"), struct.Struct("!q")
_IN_BLOCKS = frozenset({b"R", b"Y", b"I", b"U", b"D", b"T", b"M"})


class _Cursor:
    """Reads a message from front to back; missing bytes raise an error with their offset."""

    def __init__(self, payload: bytes, begin: int, end: int) -> None:
        self._payload, self._begin, self._end = payload, begin, end
        self.at = begin

    @property
    def left(self) -> int:
        return self._end - self.at

    def malformed(self, what: str, at: int) -> ChangelogError:
        return ChangelogError(Kind.MALFORMED, f"pgoutput sent {what} (byte {at - self._begin} of the message)")

    def take(self, length: int) -> bytes:
        begin = self._pass(length)
        return self._payload[begin : self.at]

    def _pass(self, length: int) -> int:
        if length > self.left:
            raise self.malformed(f"too few bytes: {length} needed, {self.left} left", self.at)
        self.at += length
        return self.at - length

    def number(self, form: struct.Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])

    def text(self) -> str:
        end = self._payload.find(b"\0", self.at, self._end)
        if end < 0:
            raise self.malformed("a string without a terminator", self.at)
        begin, self.at = self.at, end + 1
        try:
            return self._payload[begin:end].decode()
        except UnicodeDecodeError:
            raise self.malformed("a string that is not UTF-8", begin) from None

    def flag(self, expected: bytes, what: str) -> bytes:
        begin = self.at
        value = self.take(1)
        if value not in expected:
            raise self.malformed(f"{what} {value!r}", begin)
        return value

    def tuple(self) -> tuple[Value, ...]:
        return tuple(self._value() for _ in range(self.number(_INT16)))

    def _value(self) -> Value:
        match self.flag(b"tnu", "a column of kind"):
            case b"t":
                return self._text_value(self.number(_INT32))
            case b"n":
                return None
            case _:
                return UNCHANGED

    def _text_value(self, length: int) -> bytes | memoryview:
        if length < LARGE_BYTES:
            return self.take(length)
        begin = self._pass(length)
        return memoryview(self._payload)[begin : self.at]


def _begin(cursor: _Cursor) -> Begin:
    return Begin(final_lsn=cursor.number(_INT64), committed_at=cursor.number(_SIGNED64), xid=cursor.number(_INT32))


def _commit(cursor: _Cursor) -> Commit:
    return Commit(
        flags=cursor.number(_INT8),
        commit_lsn=cursor.number(_INT64),
        end_lsn=cursor.number(_INT64),
        committed_at=cursor.number(_SIGNED64),
    )


def _origin(cursor: _Cursor) -> ReplicationOrigin:
    return ReplicationOrigin(commit_lsn=cursor.number(_INT64), name=cursor.text())


def _relation(cursor: _Cursor) -> Relation:
    relid, namespace, name = cursor.number(_INT32), cursor.text(), cursor.text()
    identity = cursor.flag(b"dnfi", "a replica identity").decode()
    columns = tuple(_column(cursor) for _ in range(cursor.number(_INT16)))
    return Relation(
        relid=relid, namespace=namespace or "pg_catalog", name=name, replica_identity=identity, columns=columns
    )


def _column(cursor: _Cursor) -> RelationColumn:
    return RelationColumn(
        key=bool(cursor.number(_INT8) & 1),
        name=cursor.text(),
        type_oid=cursor.number(_INT32),
        typmod=cursor.number(_SIGNED32),
    )


def _type(cursor: _Cursor) -> TypeName:
    return TypeName(type_oid=cursor.number(_INT32), namespace=cursor.text() or "pg_catalog", name=cursor.text())


def _insert(cursor: _Cursor) -> Insert:
    relid = cursor.number(_INT32)
    cursor.flag(b"N", "an insert with a tuple of kind")
    return Insert(relid=relid, new=cursor.tuple())


def _update(cursor: _Cursor) -> Update:
    relid = cursor.number(_INT32)
    kind = cursor.flag(b"NKO", "an update with a tuple of kind")
    if kind == b"N":
        return Update(relid=relid, old_kind=None, old=None, new=cursor.tuple())
    old = cursor.tuple()
    cursor.flag(b"N", "an update with a second tuple of kind")
    return Update(relid=relid, old_kind="O" if kind == b"O" else "K", old=old, new=cursor.tuple())


def _delete(cursor: _Cursor) -> Delete:
    relid = cursor.number(_INT32)
    kind = cursor.flag(b"KO", "a delete with a tuple of kind")
    return Delete(relid=relid, old_kind="O" if kind == b"O" else "K", old=cursor.tuple())


def _truncate(cursor: _Cursor) -> Truncate:
    count, options = cursor.number(_INT32), cursor.number(_INT8)
    relids = struct.unpack(f"!{count}I", cursor.take(4 * count))
    return Truncate(relids=relids, cascade=bool(options & 1), restart_identity=bool(options & 2))


def _message(cursor: _Cursor) -> LogicalMessage:
    return LogicalMessage(
        transactional=bool(cursor.number(_INT8) & 1),
        lsn=cursor.number(_INT64),
        prefix=cursor.text(),
        content=cursor.take(cursor.number(_INT32)),
    )


def _stream_start(cursor: _Cursor) -> StreamStart:
    return StreamStart(xid=cursor.number(_INT32), first=bool(cursor.number(_INT8)))


def _stream_stop(_: _Cursor) -> StreamStop:
    return StreamStop()


def _stream_commit(cursor: _Cursor) -> StreamCommit:
    return StreamCommit(
        xid=cursor.number(_INT32),
        flags=cursor.number(_INT8),
        commit_lsn=cursor.number(_INT64),
        end_lsn=cursor.number(_INT64),
        committed_at=cursor.number(_SIGNED64),
    )


def _stream_abort(cursor: _Cursor) -> StreamAbort:
    xid, subxid = cursor.number(_INT32), cursor.number(_INT32)
    if not cursor.left:
        return StreamAbort(xid=xid, subxid=subxid)
    return StreamAbort(xid=xid, subxid=subxid, abort_lsn=cursor.number(_INT64), aborted_at=cursor.number(_SIGNED64))


def _begin_prepare(cursor: _Cursor) -> BeginPrepare:
    return BeginPrepare(
        lsn=cursor.number(_INT64),
        end_lsn=cursor.number(_INT64),
        at=cursor.number(_SIGNED64),
        xid=cursor.number(_INT32),
        gid=cursor.text(),
    )


_Flagged = TypeVar("_Flagged", Prepare, CommitPrepared, StreamPrepare)


def _flagged(cls: type[_Flagged]) -> Callable[[_Cursor], _Flagged]:
    def parse(cursor: _Cursor) -> _Flagged:
        return cls(
            flags=cursor.number(_INT8),
            lsn=cursor.number(_INT64),
            end_lsn=cursor.number(_INT64),
            at=cursor.number(_SIGNED64),
            xid=cursor.number(_INT32),
            gid=cursor.text(),
        )

    return parse


def _rollback_prepared(cursor: _Cursor) -> RollbackPrepared:
    flags, lsn, end_lsn = cursor.number(_INT8), cursor.number(_INT64), cursor.number(_INT64)
    prepared_at, at = cursor.number(_SIGNED64), cursor.number(_SIGNED64)
    return RollbackPrepared(
        flags=flags,
        lsn=lsn,
        end_lsn=end_lsn,
        prepared_at=prepared_at,
        at=at,
        xid=cursor.number(_INT32),
        gid=cursor.text(),
    )


_PARSERS: dict[bytes, Callable[[_Cursor], Decoded]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _message,
    b"S": _stream_start,
    b"E": _stream_stop,
    b"c": _stream_commit,
    b"A": _stream_abort,
    b"b": _begin_prepare,
    b"P": _flagged(Prepare),
    b"K": _flagged(CommitPrepared),
    b"r": _rollback_prepared,
    b"p": _flagged(StreamPrepare),
}
