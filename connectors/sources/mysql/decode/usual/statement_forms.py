"""Recognises the usual forms of the events inside a transaction, by their first bytes.

The events of many transactions begin with the same bytes after their headers: only thread ids and rows differ. The
first event with such bytes is decoded as any other event is. Further events with the same bytes have the same meaning.
Events without a usual form must be *read alone*: the general path (`transactions`) reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from changelog.connectors.sources.mysql.decode.events import events as log
from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.header import HEADER_BYTES
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.message_rows import message_rows
from changelog.connectors.sources.mysql.decode.rows.row_batches import RowEvents, is_whole
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.statements.statement_stamps import comment_stamp
from changelog.connectors.sources.mysql.decode.transactions import OPS, SIGNAL_TABLE, STAMP_TABLE
from changelog.connectors.sources.mysql.decode.usual.distinct import are_equal, distinct
from changelog.connectors.sources.mysql.decode.usual.headers import Headers, Ints, Mask
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Op, Stamp
from changelog.envelope.stamp import parse

_BEGIN = b"BEGIN"
_QUERY_AT = HEADER_BYTES + 8
"""After this offset in a BEGIN, all sessions with the same settings write the same bytes."""

_SQL_AT: Mapping[int, int] = {EventType.ROWS_QUERY: HEADER_BYTES + 1, EventType.ANNOTATE_ROWS: HEADER_BYTES}
_COMMENT_BEGINS = np.frombuffer(b" \t\n\r\f\v/", np.uint8)
_TYPE_OFFSET = 4
_HEADS_MAX = 32
"""A head is the bytes of an event before its rows. For each table map and type of event, up to this many different
heads get a code. Events with any further head are read alone.
"""


@dataclass(frozen=True, slots=True)
class _Head:
    """How some events with rows begin. `event` is one of these events, and `map_code` the code of its table map."""

    event: log.RowsEvent
    map_code: int


@dataclass(frozen=True, slots=True)
class RowsForm:
    """The meaning of all events with rows that begin with the same bytes. The rows begin at `offset`.

    `statements` collects the events; it is None if nobody publishes their rows. `is_stamp` says that the rows are
    stamps. A stamp says who makes the changes after it in the transaction.
    """

    offset: int
    statements: RowEvents | None
    is_stamp: bool


class BlockForms:
    """The different ways in which the events of a block's usual transactions begin.

    `queries` are the places of the events that may be a BEGIN, and `is_begin` says which of them are. `maps` are the
    places of the table maps, and `heads` has a code for each table map. The code identifies the table map and the head
    of the event after it: the bytes before the event's rows. The code is -1 if that event must be read alone.
    `commented` has the numbers of the table maps whose statement may have a stamp in its text.
    """

    def __init__(self, block: EventBlock, headers: Headers, reader: EventReader, queries: Ints, maps: Ints) -> None:
        self._block, self._headers, self._reader = block, headers, reader
        self._checksum_bytes = reader.checksum_bytes
        begins, examples = self._distinct(queries, _QUERY_AT)
        is_begin = [self._is_begin(int(queries[example])) for example in examples]
        self.is_begin: Mask = np.array([*is_begin, False])[begins]
        self._map_codes, examples = self._distinct(maps, HEADER_BYTES)
        self._maps = [self.decoded(int(maps[example])) for example in examples]
        self._heads: list[_Head] = []
        self.heads = self._head_codes(maps + 1)
        self.commented = self._commented(maps)

    def _distinct(self, events: Ints, offset: int) -> tuple[Ints, Sequence[int]]:
        headers = self._headers
        lengths = headers.sizes[events] - offset - self._checksum_bytes
        return distinct(headers.octets, headers.begins[events] + offset, lengths)

    def _is_begin(self, place: int) -> bool:
        event = self.decoded(place)
        return isinstance(event, log.Query) and event.sql == _BEGIN

    def _head_codes(self, rows: Ints) -> Ints:
        """Returns the code of each event's head. `rows` are places of events with rows, each after its table map."""
        codes = np.full(len(rows), -1, np.int64)
        kinds = self._map_codes << 8 | self._headers.types[rows]
        for kind in np.unique(kinds[self._map_codes >= 0]).tolist():
            rest = np.flatnonzero(kinds == kind)
            for _ in range(_HEADS_MAX):
                if not len(rest):
                    break
                self._number_head(rows, rest, codes, kind >> 8)
                rest = rest[1:][codes[rest[1:]] < 0]
        return codes

    def _number_head(self, rows: Ints, rest: Ints, codes: Ints, map_code: int) -> None:
        """Sets one code for all events in `rest` that have the same head as the first event in `rest`."""
        headers, event = self._headers, self.decoded(int(rows[rest[0]]))
        if not isinstance(event, log.RowsEvent):
            return
        events = rows[rest]
        begins = headers.begins[events] + HEADER_BYTES
        equal = are_equal(headers.octets, begins, int(begins[0]), event.offset - HEADER_BYTES)
        equal &= event.offset <= headers.sizes[events] - self._checksum_bytes
        codes[rest[equal]] = len(self._heads)
        self._heads.append(_Head(event, map_code))

    def _commented(self, maps: Ints) -> Ints:
        headers = self._headers
        numbers = np.flatnonzero(np.isin(headers.types[maps - 1], [*_SQL_AT]))
        texts = maps[numbers] - 1
        offsets = np.where(
            headers.types[texts] == EventType.ROWS_QUERY,
            _SQL_AT[EventType.ROWS_QUERY],
            _SQL_AT[EventType.ANNOTATE_ROWS],
        )
        has_text = headers.sizes[texts] - self._checksum_bytes > offsets
        return numbers[has_text & np.isin(headers.octets[headers.begins[texts] + offsets], _COMMENT_BEGINS)]

    def stamp(self, place: int) -> Stamp | None:
        """Returns the stamp in the text of a statement; `commented` lists the statements that may have one."""
        packet = self.packet(place)
        return comment_stamp(packet[_SQL_AT[packet[_TYPE_OFFSET]] : len(packet) - self._checksum_bytes])

    def packet(self, place: int) -> bytes:
        """Returns the event at a place of the block."""
        return bytes(self._block[place])

    def decoded(self, place: int) -> log.Event | None:
        """Decodes an event. Returns None if it is malformed; the general path then reports this at the event's place in
        the log.
        """
        try:
            events: Sequence[log.Event] = [*self._reader.read(self.packet(place))]
        except ChangelogError:
            return None
        return events[0]

    def table_map(self, head: int) -> log.TableMap | None:
        """Returns the table map that describes the events with this head; None if it cannot be decoded."""
        event = self._maps[self._heads[head].map_code]
        return event if isinstance(event, log.TableMap) else None

    def rows(self, head: int) -> log.RowsEvent:
        """Returns one of the events with this head."""
        return self._heads[head].event

    @property
    def head_count(self) -> int:
        """The number of heads."""
        return len(self._heads)


@dataclass(slots=True)
class RunForms:
    """What the heads of a block mean in one run of transactions, during which no table changes.

    `groups` has the run's events with rows, one element for each table and op.
    """

    block: BlockForms
    tables: Tables
    groups: list[RowEvents] = field(default_factory=list)

    def form(self, head: int) -> RowsForm | None:
        """Returns the form of the events with this head; None if they have to be read alone."""
        table_map, event = self.block.table_map(head), self.block.rows(head)
        if table_map is None or event.table_id != table_map.table_id or not event.ends_statement:
            return None
        table = self.tables.present(table_map)
        if table is None:
            if self.tables.entity(table_map) is not None or table_map.table == SIGNAL_TABLE:
                return None
            is_stamp = table_map.table == STAMP_TABLE and event.operation is log.Operation.INSERT
            return RowsForm(event.offset, None, is_stamp)
        if not is_whole(table, event):
            return None
        return RowsForm(event.offset, self._statements(table, OPS[event.operation]), is_stamp=False)

    def message(self, head: int, place: int) -> Stamp | None:
        """Returns the stamp in an event whose rows are stamps; None unless the event has one row with a valid stamp."""
        event, table_map = self.block.decoded(place), self.block.table_map(head)
        assert isinstance(event, log.RowsEvent)
        assert table_map is not None
        try:
            contents = [content for _, content in message_rows(table_map, event)]
        except ChangelogError:
            return None
        stamps = [parse(content) for content in contents]
        return stamps[0].stamp if len(stamps) == 1 and stamps[0].problem is None else None

    def _statements(self, table: BoundTable, op: Op) -> RowEvents:
        for statements in self.groups:
            if statements.table is table and statements.op is op:
                return statements
        self.groups.append(RowEvents(table, op))
        return self.groups[-1]
