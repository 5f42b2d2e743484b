"""Decodes the most frequent types of events, if an event has the form in which servers usually write it.

The other modules of this folder define what an event means. A function of `DECODERS` returns either exactly what those
modules return, or None. If it returns None, those modules decode the event, or say what is wrong with it. The functions
here take a quarter of the time: a struct reads all fixed fields at once, and the parts that are the same in many events
are decoded only once.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct
from uuid import UUID

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    Event,
    MariadbGtid,
    MysqlGtid,
    Operation,
    Query,
    RowsEvent,
    RowsQuery,
    TableMap,
    Xid,
)
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES, Header
from changelog.connectors.sources.mysql.decode.events.query_events import context_of
from changelog.connectors.sources.mysql.decode.events.table_maps.table_description import OFFSET, read_names

Decode = Callable[[bytes, Header, int, Dialect], Event | None]
"""Takes a packet, its header, the offset at which its content ends, and the dialect. Returns the event; None if the
packet does not have the usual form.
"""

BYTES_MAX = 1 << 20
"""The size of the largest event with rows that is decoded here. The functions here copy the rows, which costs more for
larger events.
"""

_XID = Struct("<Q")
_QUERY = Struct("<IIBHH")
_MYSQL_GTID = Struct("<B16sqBQQ")
_MARIADB_GTID = Struct("<QIB")
_ROWS_V1 = Struct("<IHH0sB")
_ROWS = Struct("<IHHHB")

_LOGICAL_CLOCK = 2
_NUMBER_MAX = 2**63 - 1
_TIMESTAMP_BYTES, _VERSION_BYTES = 7, 4
_TWO_TIMESTAMPS, _TWO_VERSIONS = 1 << 55, 1 << 31
_STANDALONE, _GROUP_COMMIT, _TRANSACTIONAL, _DDL, _XA = 1, 2, 4, 32, 64 | 128
_NO_EXTRA_DATA = 2
_LENGTH_MAX = 0xFA
"""The largest length-encoded integer that takes only one byte."""
_TWO_BYTES = 0xFC


def _xid(packet: bytes, header: Header, end: int, _: Dialect) -> Event | None:
    if end != HEADER_BYTES + _XID.size:
        return None
    return Xid(header=header, number=_XID.unpack_from(packet, HEADER_BYTES)[0])


def _query(packet: bytes, header: Header, end: int, _dialect: Dialect) -> Event | None:
    context_begin = HEADER_BYTES + _QUERY.size
    if end < context_begin:
        return None
    thread_id, _, database_bytes, error_code, variables_bytes = _QUERY.unpack_from(packet, HEADER_BYTES)
    sql_begin = context_begin + variables_bytes + database_bytes + 1
    if sql_begin > end:
        return None
    context = context_of(packet[context_begin:sql_begin], variables_bytes)
    return Query(
        header=header,
        thread_id=thread_id,
        error_code=error_code,
        database=context.database,
        sql=packet[sql_begin:end],
        sql_mode=context.sql_mode,
        client_collation=context.client_collation,
        microseconds=context.microseconds,
    )


def _rows_query(packet: bytes, header: Header, end: int, _: Dialect) -> Event | None:
    return RowsQuery(header=header, sql=packet[HEADER_BYTES + 1 : end]) if end > HEADER_BYTES else None


def _annotate_rows(packet: bytes, header: Header, end: int, _: Dialect) -> Event | None:
    return RowsQuery(header=header, sql=packet[HEADER_BYTES:end])


def _table_map(packet: bytes, header: Header, end: int, dialect: Dialect) -> Event | None:
    if end < OFFSET:
        return None
    table_id, flags, schema, table, body = _map_fields(packet[HEADER_BYTES:end])
    return TableMap(
        header=header, table_id=table_id, flags=flags, schema=schema, table=table, body=body, dialect=dialect
    )


@lru_cache(maxsize=1024)
def _map_fields(content: bytes) -> tuple[int, int, str, str, bytes]:
    """Decodes what follows the header of a table map: its table's id, its flags, its names, and its body."""
    body = content[OFFSET - HEADER_BYTES :]
    names = read_names(Cursor(body, base=OFFSET))
    return int.from_bytes(content[:6], "little"), int.from_bytes(content[6:8], "little"), *names, body


def _mysql_gtid(packet: bytes, header: Header, end: int, _dialect: Dialect) -> Event | None:
    """Decodes a GTID as MySQL 8 usually writes it: with one timestamp, the size, and one version of the server."""
    at = HEADER_BYTES + _MYSQL_GTID.size
    size_at = at + _TIMESTAMP_BYTES
    if end <= size_at:
        return None
    _, uuid, number, clock, _, _ = _MYSQL_GTID.unpack_from(packet, HEADER_BYTES)
    committed_us = int.from_bytes(packet[at:size_at], "little")
    first = packet[size_at]
    size_bytes = 1 if first <= _LENGTH_MAX else 3 if first == _TWO_BYTES else 0
    version_at = size_at + size_bytes
    if not size_bytes or end != version_at + _VERSION_BYTES or clock != _LOGICAL_CLOCK:
        return None
    if not 0 < number < _NUMBER_MAX or committed_us & _TWO_TIMESTAMPS:
        return None
    if int.from_bytes(packet[version_at:end], "little") & _TWO_VERSIONS:
        return None
    return MysqlGtid(
        header=header,
        server_uuid=_uuid(uuid),
        number=number,
        original_commit_us=committed_us,
        immediate_commit_us=committed_us,
        transaction_bytes=first if size_bytes == 1 else int.from_bytes(packet[size_at + 1 : version_at], "little"),
    )


@lru_cache(maxsize=64)
def _uuid(content: bytes) -> UUID:
    return UUID(bytes=content)


def _mariadb_gtid(packet: bytes, header: Header, end: int, _: Dialect) -> Event | None:
    """Decodes a GTID of MariaDB that belongs to no XA transaction and to no ALTER with two phases."""
    at = HEADER_BYTES + _MARIADB_GTID.size
    if end < at:
        return None
    sequence, domain_id, flags = _MARIADB_GTID.unpack_from(packet, HEADER_BYTES)
    commit_id = None
    if flags & _GROUP_COMMIT:
        commit_id, at = int.from_bytes(packet[at : at + 8], "little"), at + 8
    if flags & _XA or at > end or any(packet[at:end]):
        return None
    return MariadbGtid(
        header=header,
        domain_id=domain_id,
        sequence=sequence,
        standalone=bool(flags & _STANDALONE),
        transactional=bool(flags & _TRANSACTIONAL),
        ddl=bool(flags & _DDL),
        commit_id=commit_id,
    )


def _rows(operation: Operation, *, extra: bool) -> Decode:
    """Returns a decoder for events with rows. It decodes only events with at most 250 columns and no extra data."""
    fields, without_extra = (_ROWS, _NO_EXTRA_DATA) if extra else (_ROWS_V1, b"")
    bitmaps_begin = HEADER_BYTES + fields.size
    has_before, has_after = operation is not Operation.INSERT, operation is not Operation.DELETE

    def decode(packet: bytes, header: Header, end: int, _: Dialect) -> Event | None:
        if not bitmaps_begin <= end <= BYTES_MAX:
            return None
        low, high, flags, extra_bytes, width = fields.unpack_from(packet, HEADER_BYTES)
        size = (width + 7) // 8
        after_at = bitmaps_begin + size * has_before
        offset = after_at + size * has_after
        if width > _LENGTH_MAX or offset > end or extra_bytes != without_extra:
            return None
        return RowsEvent(
            header=header,
            table_id=high << 32 | low,
            operation=operation,
            flags=flags,
            width=width,
            before=_bitmap(packet[bitmaps_begin:after_at], width) if has_before else None,
            after=_bitmap(packet[after_at:offset], width) if has_after else None,
            partial=False,
            body=packet[offset:end],
            offset=offset,
        )

    return decode


@lru_cache(maxsize=1024)
def _bitmap(octets: bytes, width: int) -> bytes:
    """Returns the bitmap with the unused bits of its last byte set to 0."""
    return (int.from_bytes(octets, "little") & (1 << width) - 1).to_bytes(len(octets), "little")


DECODERS: Mapping[int, Decode] = {
    EventType.XID: _xid,
    EventType.QUERY: _query,
    EventType.ROWS_QUERY: _rows_query,
    EventType.ANNOTATE_ROWS: _annotate_rows,
    EventType.TABLE_MAP: _table_map,
    EventType.GTID: _mysql_gtid,
    EventType.MARIADB_GTID: _mariadb_gtid,
    EventType.WRITE_ROWS_V1: _rows(Operation.INSERT, extra=False),
    EventType.UPDATE_ROWS_V1: _rows(Operation.UPDATE, extra=False),
    EventType.DELETE_ROWS_V1: _rows(Operation.DELETE, extra=False),
    EventType.WRITE_ROWS: _rows(Operation.INSERT, extra=True),
    EventType.UPDATE_ROWS: _rows(Operation.UPDATE, extra=True),
    EventType.DELETE_ROWS: _rows(Operation.DELETE, extra=True),
}
"""The decoders, by the type of the event."""
