"""Recognises the usual forms of the events inside a transaction, by their first bytes.

The events of many transactions begin with the same bytes after their headers: only thread ids and rows differ. The
first event with new bytes is decoded as any other event is. Further events with the same bytes have the same meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from changelog.connectors.sources.mysql.decode.events import events as log
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.message_rows import message_rows
from changelog.connectors.sources.mysql.decode.rows.row_batches import Statements, is_whole
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.statements.statement_stamps import comment_stamp
from changelog.connectors.sources.mysql.decode.transactions import OPS, SIGNAL_TABLE, STAMP_TABLE
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Stamp
from changelog.envelope.stamp import parse

_BEGIN = b"BEGIN"
_QUERY_AT = HEADER_BYTES + 8
"""Where the bytes of a BEGIN start that are the same in all sessions with the same settings."""

_SQL_AT: Mapping[int, int] = {EventType.ROWS_QUERY: HEADER_BYTES + 1, EventType.ANNOTATE_ROWS: HEADER_BYTES}
_COMMENT_BEGINS = b" \t\n\r\f\v/"
_TYPE_OFFSET = 4


@dataclass(frozen=True, slots=True)
class RowsForm:
    """How events with rows begin: with `head` after the header. The rows begin at `offset`.

    `statements` collects them; it is None for rows that nobody publishes. `is_stamp` says that the rows are messages,
    which say who makes the changes that follow in the transaction.
    """

    head: bytes
    offset: int
    statements: Statements | None
    is_stamp: bool


@dataclass(slots=True)
class MapForm:
    """A table map, and the forms of the events with rows after it, by their type.

    `table` is None if nobody publishes the table.
    """

    event: log.TableMap
    table: BoundTable | None
    rows: dict[int, RowsForm] = field(default_factory=dict)


class StatementForms:
    """The forms in one run of transactions, during which no table changes. Each method refuses by returning None."""

    def __init__(self, reader: EventReader, tables: Tables) -> None:
        self._reader, self._tables, self.checksum_bytes = reader, tables, reader.checksum_bytes
        self._maps: dict[bytes, MapForm | None] = {}
        self._last_map: bytes | None = None
        self._last_form: MapForm | None = None
        self._begins: set[bytes] = set()
        self.groups: list[Statements] = []

    def is_begin(self, packet: bytes) -> bool:
        """Whether a QUERY begins a transaction, and does nothing else."""
        content = packet[_QUERY_AT : len(packet) - self.checksum_bytes]
        if content in self._begins:
            return True
        event = self._decoded(packet)
        if not isinstance(event, log.Query) or event.sql != _BEGIN:
            return False
        self._begins.add(content)
        return True

    def stamp(self, packet: bytes) -> Stamp | None:
        """Returns the stamp in the text of a statement."""
        begin = _SQL_AT[packet[_TYPE_OFFSET]]
        end = len(packet) - self.checksum_bytes
        return comment_stamp(packet[begin:end]) if begin < end and packet[begin] in _COMMENT_BEGINS else None

    def rows(self, map_packet: bytes, packet: bytes) -> RowsForm | None:
        """Returns the form of an event with rows, whose table map is the event before it."""
        content = map_packet[HEADER_BYTES : len(map_packet) - self.checksum_bytes]
        if content != self._last_map:
            if content not in self._maps:
                self._maps[content] = self._map(map_packet)
            self._last_map, self._last_form = content, self._maps[content]
        described = self._last_form
        if described is None:
            return None
        form = described.rows.get(packet[_TYPE_OFFSET])
        if form is None or not packet.startswith(form.head, HEADER_BYTES):
            form = self._rows(described, packet)
        return form if form is not None and form.offset <= len(packet) - self.checksum_bytes else None

    def message(self, packet: bytes) -> Stamp | None:
        """Returns the stamp in the rows for which `rows` has just returned a form; None unless it is a single one."""
        event, described = self._decoded(packet), self._last_form
        assert isinstance(event, log.Rows)
        assert described is not None
        try:
            contents = [content for _, content in message_rows(described.event, event)]
        except ChangelogError:
            return None
        parsed = [parse(content) for content in contents]
        return parsed[0].stamp if len(parsed) == 1 and parsed[0].problem is None else None

    def _map(self, packet: bytes) -> MapForm | None:
        event = self._decoded(packet)
        if not isinstance(event, log.TableMap):
            return None
        table = self._tables.present(event)
        if table is None and (self._tables.entity(event) is not None or event.table == SIGNAL_TABLE):
            return None
        return MapForm(event, table)

    def _rows(self, described: MapForm, packet: bytes) -> RowsForm | None:
        event, table = self._decoded(packet), described.table
        if not isinstance(event, log.Rows) or event.table_id != described.event.table_id or not event.ends_statement:
            return None
        if table is not None and not is_whole(table, event):
            return None
        statements = None if table is None else self._statements(table, OPS[event.operation])
        is_stamp = table is None and described.event.table == STAMP_TABLE and event.operation is log.Operation.INSERT
        form = RowsForm(packet[HEADER_BYTES : event.offset], event.offset, statements, is_stamp)
        described.rows[packet[_TYPE_OFFSET]] = form
        return form

    def _statements(self, table: BoundTable, op: Op) -> Statements:
        for statements in self.groups:
            if statements.table is table and statements.op is op:
                return statements
        self.groups.append(Statements(table, op))
        return self.groups[-1]

    def _decoded(self, packet: bytes) -> log.Event | None:
        """Decodes an event; None if it is malformed, because the general path reports this in its place of the log."""
        try:
            events: Sequence[log.Event] = [*self._reader.read(packet)]
        except ChangelogError:
            return None
        return events[0]
