"""Decodes the events that describe the log itself, and the end of a transaction."""

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    FormatDescription,
    GtidList,
    Heartbeat,
    Incident,
    PreviousGtids,
    Rotate,
    ServerStop,
    XaId,
    XaPrepare,
    Xid,
)
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES, Header

_HEADER_SIZES = {
    EventType.QUERY: 13,
    EventType.TABLE_MAP: 8,
    EventType.WRITE_ROWS_V1: 8,
    EventType.UPDATE_ROWS_V1: 8,
    EventType.DELETE_ROWS_V1: 8,
    EventType.WRITE_ROWS: 10,
    EventType.UPDATE_ROWS: 10,
    EventType.DELETE_ROWS: 10,
}
"""The size, in bytes, of the fixed part that follows the header in these events. The decoders rely on these sizes."""

_XA_PART_BYTES = 64


def rotate(cursor: Cursor, header: Header) -> Rotate:
    """Decodes a ROTATE."""
    position = cursor.number(8)
    return Rotate(header=header, position=position, file=cursor.text(cursor.left))


def format_description(cursor: Cursor, header: Header) -> FormatDescription:
    """Decodes a FORMAT_DESCRIPTION. The caller has already removed the checksum at its end.

    Raises ChangelogError (MALFORMED) if the description says that events have a form that the decoders do not know.
    """
    version = cursor.number(2)
    if version != 4:
        raise cursor.malformed(f"the version {version}, not 4", cursor.at - 2)
    server_version = _zero_padded(cursor, 50)
    created_s = cursor.number(4)
    header_bytes = cursor.number(1)
    if header_bytes != HEADER_BYTES:
        raise cursor.malformed(f"headers of {header_bytes} bytes, not {HEADER_BYTES}", cursor.at - 1)
    sizes_begin = cursor.at
    if cursor.left < EventType.DELETE_ROWS + 1:
        raise cursor.malformed(f"sizes for only {cursor.left - 1} types of events")
    header_sizes = cursor.take(cursor.left - 1)
    for kind, size in _HEADER_SIZES.items():
        if header_sizes[kind - 1] not in (size, 0):
            problem = f"{header_sizes[kind - 1]} fixed bytes in events of the type {kind.name}, not {size}"
            raise cursor.malformed(problem, sizes_begin + kind - 1)
    algorithm = cursor.number(1)
    if algorithm > 1:
        raise cursor.malformed(f"the unknown checksum algorithm {algorithm}", cursor.at - 1)
    return FormatDescription(
        header=header,
        server_version=server_version,
        created_s=created_s,
        has_checksums=algorithm == 1,
        header_sizes=header_sizes,
    )


def _zero_padded(cursor: Cursor, size: int) -> str:
    """Reads a text that is padded with zero bytes."""
    begin = cursor.at
    text = cursor.text(size)
    stripped = text.rstrip("\0")
    if "\0" in stripped:
        raise cursor.malformed("a server version with a zero byte in it", begin)
    return stripped


def stop(_: Cursor, header: Header) -> ServerStop:
    """Decodes a STOP."""
    return ServerStop(header=header)


def previous_gtids(cursor: Cursor, header: Header) -> PreviousGtids:
    """Decodes a PREVIOUS_GTIDS of MySQL, except for the set of GTIDs in it: the set stays encoded."""
    if cursor.left < 8:
        raise cursor.malformed(f"a set of GTIDs of only {cursor.left} bytes")
    return PreviousGtids(header=header, encoded=cursor.rest())


def gtid_list(cursor: Cursor, header: Header) -> GtidList:
    """Decodes a GTID_LIST of MariaDB.

    The list begins with the count of its GTIDs; the upper four bits of this number are flags. MariaDB pads an empty
    list with zero bytes.
    """
    count = cursor.number(4) & 0x0FFFFFFF
    gtids = tuple((cursor.number(4), cursor.number(4), cursor.number(8)) for _ in range(count))
    zeros_to_the_end(cursor)
    return GtidList(header=header, gtids=gtids)


def zeros_to_the_end(cursor: Cursor) -> None:
    """Skips the zero bytes with which MariaDB pads a short event. Raises ChangelogError (MALFORMED) for other bytes."""
    begin = cursor.at
    if any(cursor.rest()):
        raise cursor.malformed("unknown fields", begin)


def xid(cursor: Cursor, header: Header) -> Xid:
    """Decodes an XID."""
    return Xid(header=header, number=cursor.number(8))


def xa_prepare(cursor: Cursor, header: Header) -> XaPrepare:
    """Decodes an XA_PREPARE."""
    one_phase = bool(cursor.number(1))
    format_id = cursor.signed(4)
    return XaPrepare(header=header, one_phase=one_phase, xa_id=xa_id(cursor, format_id, size_bytes=4))


def xa_id(cursor: Cursor, format_id: int, *, size_bytes: int) -> XaId:
    """Reads the id of an XA transaction: the sizes of its two parts, in `size_bytes` bytes each, and then the parts."""
    begin = cursor.at
    gtrid, bqual = cursor.number(size_bytes), cursor.number(size_bytes)
    if max(gtrid, bqual) > _XA_PART_BYTES:
        raise cursor.malformed(f"an XA id of {gtrid} and {bqual} bytes", begin)
    return XaId(format_id=format_id, gtrid=cursor.take(gtrid), bqual=cursor.take(bqual))


def incident(cursor: Cursor, header: Header) -> Incident:
    """Decodes an INCIDENT."""
    number = cursor.number(2)
    return Incident(header=header, number=number, message=cursor.take(cursor.number(1)))


def heartbeat(cursor: Cursor, header: Header) -> Heartbeat:
    """Decodes a HEARTBEAT.

    The position in the log is in the header. If it needs more than four bytes, MariaDB stores 0 in the header, and puts
    the position before the name of the file.
    """
    position = header.end_log_pos or cursor.number(8)
    return Heartbeat(header=header, file=cursor.text(cursor.left), position=position)


def heartbeat_v2(cursor: Cursor, header: Header) -> Heartbeat:
    """Decodes a HEARTBEAT_V2 of MySQL: fields with a type and a size. Type 1 is the file, and type 2 the position."""
    file, position = None, None
    begin = cursor.at
    while kind := cursor.length():
        field = cursor.part(cursor.length())
        if kind == 1:
            file = field.text(field.left)
        elif kind == 2:
            position = field.length()
            field.finish("the position of a heartbeat")
    if file is None or position is None:
        raise cursor.malformed("a heartbeat without a file or a position", begin)
    return Heartbeat(header=header, file=file, position=position)
