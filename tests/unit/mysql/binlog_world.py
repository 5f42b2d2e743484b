"""Simulates a binary log of MySQL. Tests append transactions to it, and read the events that a server would send."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    Event,
    MysqlGtid,
    Operation,
    Query,
    Rotate,
    RowsEvent,
    RowsQuery,
    TableMap,
    XaId,
    XaPrepare,
    Xid,
)
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from tests.unit.mysql.binlog_encoder import encode
from tests.unit.mysql.reading import format_description, header
from tests.unit.mysql.table_encoder import MYSQL_8, Kind, Row, Table, encode_row, table_body

SERVER = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
FILE_BEGIN = 4
TABLE_ID = 77

ITEM = Table(
    dialect=MYSQL_8,
    schema="shop",
    name="item",
    kinds=(
        Kind(LogColumn(name="id", type=TypeCode.LONG, meta=0, nullable=False), size=4),
        Kind(LogColumn(name="name", type=TypeCode.VARCHAR, meta=160, nullable=True, collation=45), prefix=1),
    ),
    primary_key=(0,),
    prefixed=False,
    invisible=frozenset(),
    geometry_types=(),
    listed=False,
)
OTHER = replace(ITEM, name="other")
SIGNALS = replace(
    ITEM,
    name="changelog_signal",
    kinds=(ITEM.kinds[0], replace(ITEM.kinds[1], column=replace(ITEM.kinds[1].column, name="content"))),
)

ALTERATION = "ALTER TABLE item COMMENT 'goods'"
"""A statement that alters the published table."""

_SIZES = [1, 1, 2, 5, 40]

Change = tuple[Operation, int, str]
"""An operation, the key of the changed row, and a text in this row. No two changes have the same text."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A change that the changelog must have. `commit` is the commit in its position."""

    commit: int
    operation: Operation
    key: int
    text: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A transaction in the log. `file` is the number of its file, and `packets` are its encoded events."""

    gtid: str
    file: int
    packets: tuple[bytes, ...]


class World:
    """A binary log. Its first file has the number `file`. `expected` has the changes that the changelog must have.

    If `alters` is true, some random transactions are statements that alter the published table.
    """

    def __init__(self, random: Random, *, file: int = 1, alters: bool = False) -> None:
        self._random, self._alters = random, alters
        self.log: list[Logged] = []
        self.expected: list[Expected] = []
        self._file, self._offset, self._number, self._counter = file, FILE_BEGIN, 0, 0
        self._prepared: dict[int, list[Change]] = {}

    @property
    def end(self) -> int:
        """The coordinate at which the log ends."""
        return coordinate(self._file, self._offset)

    def step(self) -> None:
        """Appends a random transaction. Sometimes first begins another file."""
        random = self._random
        if random.random() < 0.1:
            self.rotate()
        if self._prepared and random.random() < 0.3:
            self._complete(random.choice(list(self._prepared)), commit=random.random() < 0.7)
        elif random.random() < 0.25:
            self.prepare(random.choice(_SIZES), one_phase=random.random() < 0.2)
        elif self._alters and random.random() < 0.4:
            self.execute(ALTERATION)
        else:
            self.commit(random.choice(_SIZES))

    def number_from(self, number: int) -> None:
        """Gives the next transaction a GTID with this number. The numbers of later transactions follow it."""
        self._number = number - 1

    def rotate(self) -> None:
        """Begins another file."""
        self._file, self._offset = self._file + 1, FILE_BEGIN

    def commit(self, count: int) -> None:
        """Appends a transaction with this number of changes."""
        changes = self._changes(count)
        commit = self.end
        events: list[Event] = [self._gtid(), _query("BEGIN"), *self._rows(changes), _xid()]
        self._append(events)
        self._expect(commit, changes)

    def prepare(self, count: int, *, one_phase: bool = False, statement: str = "") -> None:
        """Appends an XA transaction with this number of changes. If `one_phase` is true, it is committed at once;
        otherwise, it is only prepared.

        If `statement` is not empty, the transaction begins with this statement. The log has it as text, without rows.
        """
        name, changes = self._number, self._changes(count)
        commit = self.end
        events: list[Event] = [
            self._gtid(),
            _query(f"XA START {_literal(name)}"),
            *([_query(statement)] if statement else []),
            *self._rows(changes),
            _query(f"XA END {_literal(name)}"),
            XaPrepare(header=header(EventType.XA_PREPARE), xa_id=_xa_id(name), one_phase=one_phase),
        ]
        self._append(events)
        if one_phase:
            self._expect(commit, changes)
        else:
            self._prepared[name] = changes

    def execute(self, sql: str) -> None:
        """Appends a statement, which is a transaction of its own."""
        self._append([self._gtid(), _query(sql)])

    def signal(self, *rows: tuple[int, str]) -> None:
        """Appends a transaction that inserts these rows into the table of signals. A row is a number and a content."""
        events = [_rows_event(Operation.INSERT, _row(number, content)) for number, content in rows]
        self._append([self._gtid(), _query("BEGIN"), _table_map(SIGNALS), *events, _xid()])

    def settle(self) -> None:
        """Commits all prepared transactions."""
        for name in list(self._prepared):
            self._complete(name, commit=True)

    def sent(self, known: Gtids) -> Iterator[bytes]:
        """Yields the events that the server sends to a reader that already has the transactions `known`."""
        file = 0
        for logged in self.log:
            if known.contains(logged.gtid):
                continue
            if logged.file != file:
                file = logged.file
                yield encode(Rotate(header=header(EventType.ROTATE, flags=0x20), file=f"binlog.{file:06}", position=4))
                yield encode(format_description())
            yield from logged.packets

    def _changes(self, count: int) -> list[Change]:
        changes = []
        for _ in range(count):
            self._counter += 1
            operation = self._random.choice(list(Operation))
            changes.append((operation, self._random.randrange(20), f"t{self._counter}"))
        return changes

    def _complete(self, name: int, *, commit: bool) -> None:
        changes, place = self._prepared.pop(name), self.end
        self._append([self._gtid(), _query(f"XA {'COMMIT' if commit else 'ROLLBACK'} {_literal(name)}")])
        if commit:
            self._expect(place, changes)

    def _expect(self, commit: int, changes: Sequence[Change]) -> None:
        self.expected += [Expected(commit, *change) for change in changes]

    def _gtid(self) -> MysqlGtid:
        self._number += 1
        return MysqlGtid(
            header=header(EventType.GTID),
            server_uuid=SERVER,
            number=self._number,
            original_commit_us=self._number,
            immediate_commit_us=self._number,
            transaction_bytes=0,
        )

    def _rows(self, changes: Sequence[Change]) -> Iterator[Event]:
        """Yields the events of these changes. Sometimes also yields events that change an unpublished table."""
        for operation, key, text in changes:
            if self._random.random() < 0.1:
                yield _statement("other")
                yield _table_map(OTHER)
                yield _rows_event(Operation.INSERT, _row(1, "other"))
            if is_stamped(text):
                yield _statement(text)
            yield _table_map(ITEM)
            yield _rows_event(operation, _row(key, text))

    def _append(self, events: Sequence[Event]) -> None:
        """Appends a transaction. Its first event must be its GTID."""
        first = events[0]
        assert isinstance(first, MysqlGtid)
        packets = []
        for event in events:
            self._offset += len(encode(event))
            packets.append(encode(replace(event, header=event.header._replace(end_log_pos=self._offset))))
        self.log.append(Logged(first.text, self._file, tuple(packets)))


def is_stamped(text: str) -> bool:
    """Returns whether the change with this text gets a stamp. If so, a comment in the statement of the change names
    `text` as the service.
    """
    return text.endswith(("0", "4", "8"))


def _statement(service: str) -> RowsQuery:
    return RowsQuery(header=header(EventType.ROWS_QUERY), sql=b"/*serviceName='%b'*/ UPDATE item" % service.encode())


def _query(sql: str) -> Query:
    return Query(header=header(EventType.QUERY), thread_id=1, error_code=0, database="shop", sql=sql.encode())


def _xid() -> Xid:
    return Xid(header=header(EventType.XID), number=1)


def _xa_id(name: int) -> XaId:
    return XaId(format_id=1, gtrid=str(name).encode(), bqual=b"")


def _literal(name: int) -> str:
    return f"X'{str(name).encode().hex()}',X'',1"


def _table_map(table: Table) -> TableMap:
    return TableMap(
        header=header(EventType.TABLE_MAP),
        table_id=TABLE_ID,
        flags=0,
        schema=table.schema,
        table=table.name,
        body=table_body(table),
        dialect=table.dialect,
    )


def _row(key: int, text: str) -> Row:
    return struct.pack("<i", key), text.encode()


_TYPES = {
    Operation.INSERT: EventType.WRITE_ROWS,
    Operation.UPDATE: EventType.UPDATE_ROWS,
    Operation.DELETE: EventType.DELETE_ROWS,
}


def _rows_event(operation: Operation, row: Row) -> RowsEvent:
    images = 2 if operation is Operation.UPDATE else 1
    return RowsEvent(
        header=header(_TYPES[operation]),
        table_id=TABLE_ID,
        operation=operation,
        flags=1,
        width=2,
        before=None if operation is Operation.INSERT else b"\x03",
        after=None if operation is Operation.DELETE else b"\x03",
        partial=False,
        body=memoryview(encode_row(ITEM, row) * images),
        offset=0,
    )
