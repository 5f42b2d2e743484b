"""Decodes the events of the binary log: takes packets of bytes, and returns the events in them."""

import zlib
from collections.abc import Callable, Iterable, Iterator

from changelog.connectors.sources.mysql.decode.events import (
    control_events,
    frequent_events,
    gtid_events,
    query_events,
    row_events,
)
from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    Event,
    FormatDescription,
    Operation,
    Other,
    StatementContext,
    Unsupported,
)
from changelog.connectors.sources.mysql.decode.events.header import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    IN_USE_FLAG,
    WHOLE_CHECKSUM,
    Header,
    read_header,
    unpack_header,
)
from changelog.connectors.sources.mysql.decode.events.payloads import payload_events

_TYPE_OFFSET, _FLAGS_OFFSET = 4, 17
_BEFORE_THE_FORMAT = frozenset({EventType.ROTATE, EventType.HEARTBEAT, EventType.HEARTBEAT_V2})


class EventReader:
    """Decodes the events of one connection, or of one file, in their order.

    Its state is the last format description: this says whether the events after it end with a checksum, and which
    server wrote these events. Before the first format description, a stream has only events that the server makes for
    this connection alone.
    """

    def __init__(self) -> None:
        self._format: FormatDescription | None = None
        self._dialect = Dialect.of("")
        self._has_checksums, self.checksum_bytes = False, 0
        """`checksum_bytes` is the size of the checksum at the end of each event; 0 if events have none."""

    @property
    def format(self) -> FormatDescription | None:
        """The last format description that was read; None before the first one."""
        return self._format

    def read(self, packet: bytes | memoryview) -> Iterable[Event]:
        """Decodes `packet`, which begins with the header of an event and ends with this event.

        Returns one event, unless `packet` is a compressed transaction. The events of a compressed transaction are
        decompressed one by one, as the caller takes them. Raises ChangelogError (MALFORMED), with the offset in the
        event, if the event cannot be read, if bytes are left over, or if the checksum is wrong. No other error is
        raised. The fast decoders in `frequent_events` are used only for `bytes`, not for a memoryview.
        """
        size = len(packet)
        if self._format is None or size < HEADER_BYTES + CHECKSUM_BYTES or not isinstance(packet, bytes):
            return self._any(packet)
        decode = _FREQUENT.get(packet[_TYPE_OFFSET])
        if decode is None:
            return self._any(packet)
        header = _new_header(Header, unpack_header(packet))
        is_right = header.size == size and (not self._has_checksums or zlib.crc32(packet) == WHOLE_CHECKSUM)
        event = decode(packet, header, size - self.checksum_bytes, self._dialect) if is_right else None
        return self._any(packet) if event is None else (event,)

    def _any(self, packet: bytes | memoryview) -> Iterable[Event]:
        """Decodes an event of any type and form."""
        cursor = Cursor(packet)
        header = read_header(cursor)
        if header.type == EventType.FORMAT_DESCRIPTION:
            self._format = _format_description(cursor, header)
            self._dialect = self._format.dialect
            self._has_checksums = self._format.has_checksums
            self.checksum_bytes = CHECKSUM_BYTES if self._has_checksums else 0
            return (self._format,)
        if self._format is None and header.type not in _BEFORE_THE_FORMAT:
            raise cursor.malformed(f"an event of the type {_name(header)} before the format description")
        if self._has_checksum(cursor):
            _remove_checksum(cursor, header, _checksum(cursor))
        if header.type == EventType.TRANSACTION_PAYLOAD:
            return self._payload(cursor, header)
        return (self._event(cursor, header),)

    def _has_checksum(self, cursor: Cursor) -> bool:
        """Whether the event ends with a checksum.

        The last format description decides. Before the first one, the event has a checksum if its last bytes are the
        checksum of the bytes before them.
        """
        if self._format is not None:
            return self._format.has_checksums
        return cursor.left > CHECKSUM_BYTES and _checksum(cursor) == _stored_checksum(cursor)

    def _payload(self, cursor: Cursor, header: Header) -> Iterator[Event]:
        for packet in payload_events(cursor):
            inner = Cursor(packet, what="event in a compressed transaction")
            inner_header = read_header(inner)
            if inner_header.type in (EventType.TRANSACTION_PAYLOAD, EventType.FORMAT_DESCRIPTION):
                raise inner.malformed(f"an event of the type {_name(inner_header)} in a compressed transaction")
            yield self._event(inner, inner_header._replace(end_log_pos=header.end_log_pos))

    def _event(self, cursor: Cursor, header: Header) -> Event:
        """Decodes the event whose `header` has already been read from `cursor`."""
        event: Event
        if header.type == EventType.TABLE_MAP:
            event = row_events.table_map(cursor, header, self._dialect)
        elif decoder := _DECODERS.get(header.type):
            event = decoder(cursor, header)
        else:
            return _undecoded(cursor, header)
        if cursor.left:
            cursor.finish(f"an event of the type {_name(header)}")
        return event


def _format_description(cursor: Cursor, header: Header) -> FormatDescription:
    """Decodes a format description. It has a checksum even if other events have none.

    The server computes this checksum as if `IN_USE_FLAG` were not set.
    """
    begin = cursor.at
    flags = header.flags & ~IN_USE_FLAG
    head = bytes(cursor.data[:_FLAGS_OFFSET]) + flags.to_bytes(2, "little")
    _remove_checksum(cursor, header, zlib.crc32(cursor.data[begin : cursor.end - CHECKSUM_BYTES], zlib.crc32(head)))
    event = control_events.format_description(cursor, header)
    cursor.finish("a format description")
    return event


def _remove_checksum(cursor: Cursor, header: Header, computed: int) -> None:
    """Removes the checksum from the end of an event. Raises ChangelogError if the checksum is not `computed`."""
    if cursor.left < CHECKSUM_BYTES:
        raise cursor.malformed("an event without a checksum")
    checksum = _stored_checksum(cursor)
    if checksum != computed:
        place = f"at offset {header.end_log_pos - header.size} " if header.end_log_pos > header.size else ""
        problem = (
            f"an event {place}of the type {_name(header)} whose checksum is {checksum:#010x}, not {computed:#010x}"
        )
        raise cursor.malformed(problem, cursor.end - CHECKSUM_BYTES)
    cursor.end -= CHECKSUM_BYTES


def _checksum(cursor: Cursor) -> int:
    return zlib.crc32(memoryview(cursor.data)[: cursor.end - CHECKSUM_BYTES])


def _stored_checksum(cursor: Cursor) -> int:
    return int.from_bytes(cursor.data[cursor.end - CHECKSUM_BYTES : cursor.end], "little")


def _name(header: Header) -> str:
    return _NAMES.get(header.type, str(header.type))


def _undecoded(cursor: Cursor, header: Header) -> Event:
    """Returns an event of a type whose content is not decoded. Raises ChangelogError (MALFORMED) if the type is unknown
    and the header does not say that readers may ignore the event.
    """
    name = _name(header)
    if header.type in _CONTEXT:
        return StatementContext(header=header, name=name)
    if header.type in _UNSUPPORTED:
        return Unsupported(header=header, name=name)
    if header.type not in _WITHOUT_MEANING and not header.ignorable:
        raise cursor.malformed(f"an event of the unknown type {name}")
    return Other(header=header, name=name)


_new_header = tuple.__new__  # `Header._make` without its check of the number of fields
_FREQUENT = frequent_events.DECODERS
_NAMES: dict[int, str] = {kind: kind.name for kind in EventType}

_INSERT, _UPDATE, _DELETE = Operation.INSERT, Operation.UPDATE, Operation.DELETE

_DECODERS: dict[int, Callable[[Cursor, Header], Event]] = {
    EventType.QUERY: query_events.query,
    EventType.STOP: control_events.stop,
    EventType.ROTATE: control_events.rotate,
    EventType.XID: control_events.xid,
    EventType.WRITE_ROWS_V1: row_events.rows(_INSERT),
    EventType.UPDATE_ROWS_V1: row_events.rows(_UPDATE),
    EventType.DELETE_ROWS_V1: row_events.rows(_DELETE),
    EventType.INCIDENT: control_events.incident,
    EventType.HEARTBEAT: control_events.heartbeat,
    EventType.ROWS_QUERY: query_events.rows_query,
    EventType.WRITE_ROWS: row_events.rows(_INSERT, extra=True),
    EventType.UPDATE_ROWS: row_events.rows(_UPDATE, extra=True),
    EventType.DELETE_ROWS: row_events.rows(_DELETE, extra=True),
    EventType.GTID: gtid_events.mysql_gtid,
    EventType.ANONYMOUS_GTID: gtid_events.anonymous_gtid,
    EventType.PREVIOUS_GTIDS: control_events.previous_gtids,
    EventType.XA_PREPARE: control_events.xa_prepare,
    EventType.PARTIAL_UPDATE_ROWS: row_events.rows(_UPDATE, extra=True, partial=True),
    EventType.HEARTBEAT_V2: control_events.heartbeat_v2,
    EventType.GTID_TAGGED: gtid_events.tagged_gtid,
    EventType.ANNOTATE_ROWS: query_events.annotate_rows,
    EventType.MARIADB_GTID: gtid_events.mariadb_gtid,
    EventType.GTID_LIST: control_events.gtid_list,
    EventType.QUERY_COMPRESSED: query_events.compressed_query,
    EventType.WRITE_ROWS_COMPRESSED_V1: row_events.rows(_INSERT, compressed=True),
    EventType.UPDATE_ROWS_COMPRESSED_V1: row_events.rows(_UPDATE, compressed=True),
    EventType.DELETE_ROWS_COMPRESSED_V1: row_events.rows(_DELETE, compressed=True),
    EventType.WRITE_ROWS_COMPRESSED: row_events.rows(_INSERT, extra=True, compressed=True),
    EventType.UPDATE_ROWS_COMPRESSED: row_events.rows(_UPDATE, extra=True, compressed=True),
    EventType.DELETE_ROWS_COMPRESSED: row_events.rows(_DELETE, extra=True, compressed=True),
}

_CONTEXT = frozenset({EventType.INTVAR, EventType.RAND, EventType.USER_VAR})

_UNSUPPORTED = frozenset(
    {
        EventType.LOAD,
        EventType.CREATE_FILE,
        EventType.APPEND_BLOCK,
        EventType.EXEC_LOAD,
        EventType.DELETE_FILE,
        EventType.NEW_LOAD,
        EventType.BEGIN_LOAD_QUERY,
        EventType.EXECUTE_LOAD_QUERY,
        EventType.PRE_GA_WRITE_ROWS,
        EventType.PRE_GA_UPDATE_ROWS,
        EventType.PRE_GA_DELETE_ROWS,
    }
)

_WITHOUT_MEANING = frozenset(
    {
        EventType.IGNORABLE,
        EventType.TRANSACTION_CONTEXT,
        EventType.VIEW_CHANGE,
        EventType.BINLOG_CHECKPOINT,
        EventType.START_ENCRYPTION,
    }
)
