"""Encodes messages of a replication stream as PostgreSQL would. The module
`changelog.connectors.sources.postgres.decode.pgoutput` decodes them.
"""

import struct
from collections.abc import Sequence

from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update, Value
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Decoded,
    LogicalMessage,
    Prepare,
    Relation,
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

OF_A_TRANSACTION = Relation | TypeName | Insert | Update | Delete | Truncate | LogicalMessage
"""PostgreSQL can send a part of a transaction that is still open, as a *stream block*. Inside such a block, these
messages have the id of the transaction after their first byte.
"""

FLAGGED = {Prepare: b"P", CommitPrepared: b"K", StreamPrepare: b"p"}


def encode(message: Decoded, *, xid: int | None = None) -> bytes:
    """Encodes a message. If `xid` is given, encodes it as a message inside a stream block of this transaction."""
    payload = _encode(message)
    plain = xid is None or not isinstance(message, OF_A_TRANSACTION)
    return payload if plain else payload[:1] + struct.pack("!I", xid) + payload[1:]


def _encode(message: Decoded) -> bytes:
    match message:
        case Begin():
            return struct.pack("!cQqI", b"B", message.final_lsn, message.committed_at, message.xid)
        case Commit():
            numbers = (message.flags, message.commit_lsn, message.end_lsn, message.committed_at)
            return struct.pack("!cBQQq", b"C", *numbers)
        case ReplicationOrigin():
            return struct.pack("!cQ", b"O", message.commit_lsn) + text(message.name)
        case Relation():
            return relation(message)
        case TypeName():
            return struct.pack("!cI", b"Y", message.type_oid) + text(message.namespace) + text(message.name)
        case Insert():
            return struct.pack("!cI", b"I", message.relid) + b"N" + row(message.new)
        case Update():
            old = b"" if message.old_kind is None else message.old_kind.encode() + row(message.old or ())
            return struct.pack("!cI", b"U", message.relid) + old + b"N" + row(message.new)
        case Delete():
            return struct.pack("!cI", b"D", message.relid) + message.old_kind.encode() + row(message.old)
        case Truncate():
            options = message.cascade | message.restart_identity << 1
            return struct.pack(f"!cIB{len(message.relids)}I", b"T", len(message.relids), options, *message.relids)
        case LogicalMessage():
            head = struct.pack("!cBQ", b"M", message.transactional, message.lsn)
            return head + text(message.prefix) + struct.pack("!I", len(message.content)) + message.content
        case _:
            return _encode_unusual(message)


def _encode_unusual(message: Decoded) -> bytes:
    match message:
        case StreamStart():
            return struct.pack("!cIB", b"S", message.xid, message.first)
        case StreamStop():
            return b"E"
        case StreamCommit():
            numbers = (message.xid, message.flags, message.commit_lsn, message.end_lsn, message.committed_at)
            return struct.pack("!cIBQQq", b"c", *numbers)
        case StreamAbort():
            head = struct.pack("!cII", b"A", message.xid, message.subxid)
            if message.abort_lsn is None or message.aborted_at is None:
                return head
            return head + struct.pack("!Qq", message.abort_lsn, message.aborted_at)
        case BeginPrepare():
            return struct.pack("!cQQqI", b"b", message.lsn, message.end_lsn, message.at, message.xid) + text(
                message.gid
            )
        case RollbackPrepared():
            times = (message.prepared_at, message.at)
            head = struct.pack("!cBQQqqI", b"r", message.flags, message.lsn, message.end_lsn, *times, message.xid)
            return head + text(message.gid)
        case Prepare() | CommitPrepared() | StreamPrepare():
            numbers = (message.flags, message.lsn, message.end_lsn, message.at, message.xid)
            return struct.pack("!cBQQqI", FLAGGED[type(message)], *numbers) + text(message.gid)
        case _:
            raise AssertionError(message)


def relation(message: Relation) -> bytes:
    head = struct.pack("!cI", b"R", message.relid) + text(message.namespace) + text(message.name)
    columns = b"".join(
        struct.pack("!B", column.key) + text(column.name) + struct.pack("!Ii", column.type_oid, column.typmod)
        for column in message.columns
    )
    return head + message.replica_identity.encode() + struct.pack("!H", len(message.columns)) + columns


def row(values: Sequence[Value]) -> bytes:
    return struct.pack("!H", len(values)) + b"".join(value(column_value) for column_value in values)


def value(content: Value) -> bytes:
    if content is None:
        return b"n"
    if content is UNCHANGED:
        return b"u"
    return b"t" + struct.pack("!I", len(content)) + content


def text(name: str) -> bytes:
    return name.encode() + b"\0"
