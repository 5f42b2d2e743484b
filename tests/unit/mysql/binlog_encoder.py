"""Encodes events of a binary log as a server would.

It uses the classes of events in `changelog.connectors.sources.mysql.decode`, but not the code there that decodes them.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    AlterPhase,
    AnonymousGtid,
    Event,
    FormatDescription,
    GtidList,
    Heartbeat,
    Incident,
    MariadbGtid,
    MysqlGtid,
    Other,
    PreviousGtids,
    Query,
    Rotate,
    RowsEvent,
    RowsQuery,
    ServerStop,
    StatementContext,
    TableMap,
    Unsupported,
    XaId,
    XaPrepare,
    Xid,
)
from changelog.connectors.sources.mysql.decode.events.header import Header


def sized(event: Event, *, checksum: bool = True) -> Event:
    """Returns the event with the size of its encoding in its header."""
    return replace(event, header=event.header._replace(size=len(encode(event, checksum=checksum))))


def encode(event: Event, *, checksum: bool = True) -> bytes:
    """Returns the encoding of the event. Computes the size in the header, and ignores the one that the event has."""
    return packet(event.header, body(event), checksum=checksum or isinstance(event, FormatDescription))


def packet(header: Header, content: bytes, *, checksum: bool = True) -> bytes:
    """Puts a header before the content of an event, and a checksum after it."""
    size = 19 + len(content) + 4 * checksum
    numbers = (header.timestamp_s, header.type, header.server_id, size, header.end_log_pos, header.flags)
    event = struct.pack("<IBIIIH", *numbers) + content
    return event + struct.pack("<I", zlib.crc32(event)) if checksum else event


def payload(header: Header, events: Sequence[bytes]) -> bytes:
    """Encodes a compressed transaction. `events` are its encoded events without checksums."""
    return payload_of(header, b"".join(events))


def payload_of(header: Header, content: bytes) -> bytes:
    """Encodes a compressed transaction whose uncompressed content is `content`, which need not be valid events."""
    compressed = pa.Codec("zstd").compress(content, asbytes=True)
    fields = ((2, number(0)), (3, number(len(content))), (1, number(len(compressed))))
    head = b"".join(bytes([kind, len(value)]) + value for kind, value in fields)
    return packet(header, head + b"\0" + compressed)


def number(value: int) -> bytes:
    """Encodes a number as a length-encoded integer."""
    if value < 251:
        return bytes([value])
    for first, width in ((0xFC, 2), (0xFD, 3)):
        if value < 1 << 8 * width:
            return bytes([first]) + value.to_bytes(width, "little")
    return b"\xfe" + value.to_bytes(8, "little")


def text(content: bytes) -> bytes:
    """Returns the bytes with their length before them."""
    return number(len(content)) + content


def body(event: Event) -> bytes:
    """Returns the bytes of an event between its header and its checksum."""
    match event:
        case Rotate():
            return struct.pack("<Q", event.position) + event.file.encode()
        case FormatDescription():
            version = event.server_version.encode().ljust(50, b"\0")
            head = struct.pack("<H50sIB", 4, version, event.created_s, 19)
            return head + event.header_sizes + bytes([event.has_checksums])
        case MysqlGtid() | AnonymousGtid() | MariadbGtid():
            return gtid(event)
        case Query():
            return query(event)
        case TableMap():
            return struct.pack("<Q", event.table_id)[:6] + struct.pack("<H", event.flags) + event.body
        case RowsEvent():
            return rows(event)
        case Heartbeat():
            return heartbeat(event)
        case ServerStop() | StatementContext() | Unsupported() | Other():
            return b""
        case _:
            return small_body(event)


def small_body(event: PreviousGtids | GtidList | Xid | XaPrepare | Incident | RowsQuery) -> bytes:
    match event:
        case PreviousGtids():
            return event.encoded
        case GtidList():
            return struct.pack("<I", len(event.gtids)) + b"".join(struct.pack("<IIQ", *gtid) for gtid in event.gtids)
        case Xid():
            return struct.pack("<Q", event.number)
        case XaPrepare():
            return bytes([event.one_phase]) + xa_id(event.xa_id, "<iII")
        case Incident():
            return struct.pack("<HB", event.number, len(event.message)) + event.message
        case RowsQuery():
            return (b"" if event.header.type == EventType.ANNOTATE_ROWS else b"?") + event.sql


def query(event: Query) -> bytes:
    mariadb = event.header.type == EventType.QUERY_COMPRESSED
    variables = b"\0" + bytes(4)
    if event.sql_mode is not None:
        variables += b"\1" + struct.pack("<Q", event.sql_mode)
    variables += b"\6\3std" + b"\5\3UTC" + b"\3" + bytes(4)
    if event.client_collation is not None:
        variables += b"\4" + struct.pack("<HHH", event.client_collation, 8, 8)
    variables += b"\x0b\4root\5local" + b"\x0c\2one\0two\0"
    if event.microseconds is not None:
        variables += (b"\x80" if mariadb else b"\x0d") + event.microseconds.to_bytes(3, "little")
    variables += b"\x82\4" + bytes(8) if mariadb else b"\x11" + bytes(8)
    variables += b"\xf0unknown"
    database = event.database.encode()
    head = struct.pack("<IIBHH", event.thread_id, 0, len(database), event.error_code, len(variables))
    return head + variables + database + b"\0" + (compressed(event.sql) if mariadb else event.sql)


def compressed(content: bytes) -> bytes:
    """Compresses bytes as MariaDB does."""
    width = max(1, (len(content).bit_length() + 7) // 8)
    return bytes([0x80 | width]) + len(content).to_bytes(width, "big") + zlib.compress(content)


def xa_id(xid: XaId, form: str) -> bytes:
    return struct.pack(form, xid.format_id, len(xid.gtrid), len(xid.bqual)) + xid.gtrid + xid.bqual


def heartbeat(event: Heartbeat) -> bytes:
    if event.header.type == EventType.HEARTBEAT_V2:
        return b"\1" + text(event.file.encode()) + b"\2" + text(number(event.position)) + b"\0"
    far = b"" if event.header.end_log_pos else struct.pack("<Q", event.position)
    return far + event.file.encode()


def gtid(event: MysqlGtid | AnonymousGtid | MariadbGtid) -> bytes:
    match event:
        case MysqlGtid() if event.header.type == EventType.GTID_TAGGED:
            return tagged_gtid(event)
        case MysqlGtid():
            return bytes(1) + event.server_uuid.bytes + struct.pack("<q", event.number) + commit(event)
        case AnonymousGtid():
            return bytes(25) + commit(event)
        case MariadbGtid():
            return mariadb_gtid(event)


def commit(event: MysqlGtid | AnonymousGtid) -> bytes:
    clock = b"\2" + bytes(16)
    immediate, original = event.immediate_commit_us, event.original_commit_us
    if immediate is None or original is None:
        return clock
    both = immediate != original
    times = (immediate | both << 55).to_bytes(7, "little") + original.to_bytes(7, "little") * both
    if event.transaction_bytes is None:
        return clock + times
    versions = struct.pack("<II", 80000 | 1 << 31, 80001) if both else struct.pack("<I", 80000)
    return clock + times + number(event.transaction_bytes) + versions + bytes(8) * both


def tagged_gtid(event: MysqlGtid) -> bytes:
    assert event.immediate_commit_us is not None
    assert event.original_commit_us is not None
    assert event.transaction_bytes is not None
    fields: dict[int, bytes] = {
        0: packed(1),
        1: b"".join(map(packed, event.server_uuid.bytes)),
        2: packed(event.number << 1),
        3: packed(len(event.tag)) + event.tag.encode(),
        4: packed(3 << 1 | 1),
        5: packed(4 << 1),
        6: packed(event.immediate_commit_us),
        8: packed(event.transaction_bytes),
        9: packed(90704),
    }
    if event.original_commit_us != event.immediate_commit_us:
        fields |= {7: packed(event.original_commit_us), 12: b"a field of later versions"}
    content = packed(10) + b"".join(packed(field) + fields[field] for field in sorted(fields))
    size = next(size for size in range(200) if size == 1 + len(packed(size)) + len(content))
    return packed(1) + packed(size) + content


def packed(value: int) -> bytes:
    """Encodes a number as MySQL's serialization library does.

    The lowest bits of the first byte say how many bytes follow: one 1 bit for each of these bytes, and then a 0 bit.
    """
    for count in range(8):
        if value < 1 << 7 * (count + 1):
            return (value << count + 1 | (1 << count) - 1).to_bytes(count + 1, "little")
    return b"\xff" + value.to_bytes(8, "little")


def mariadb_gtid(event: MariadbGtid) -> bytes:
    flags = {1: event.standalone, 2: event.commit_id is not None, 4: event.transactional, 32: event.ddl}
    flags |= {64: event.xa_prepare, 128: event.xa_complete}
    content = struct.pack("<QIB", event.sequence, event.domain_id, sum(bit for bit, is_set in flags.items() if is_set))
    if event.commit_id is not None:
        content += struct.pack("<Q", event.commit_id)
    if event.xa_id is not None:
        content += xa_id(event.xa_id, "<iBB")
    if event.alter is not None:
        content += bytes([PHASES[event.alter] | 1, 2])
    if event.alter_start is not None:
        content += struct.pack("<Q", event.alter_start)
    return content.ljust(19, b"\0")


PHASES: Mapping[AlterPhase, int] = {AlterPhase.START: 2, AlterPhase.COMMIT: 4, AlterPhase.ROLLBACK: 8}

WITH_EXTRA_DATA = frozenset({30, 31, 32, 39, 169, 170, 171})
"""Events of these types have extra data before their rows."""


def rows(event: RowsEvent) -> bytes:
    head = struct.pack("<Q", event.table_id)[:6] + struct.pack("<H", event.flags)
    extra = struct.pack("<H3s", 5, b"???") if event.header.type in WITH_EXTRA_DATA else b""
    bitmaps = b"".join(bitmap for bitmap in (event.before, event.after) if bitmap is not None)
    content = bytes(event.body)
    return head + extra + number(event.width) + bitmaps + (compressed(content) if event.header.type >= 166 else content)
