"""Makes a random binary log of MySQL or MariaDB. Most of its transactions have the usual form, and some are unusual."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    AnonymousGtid,
    Event,
    Heartbeat,
    MariadbGtid,
    MysqlGtid,
    Operation,
    Query,
    Rotate,
    RowsEvent,
    RowsQuery,
    StatementContext,
    TableMap,
    XaId,
    XaPrepare,
    Xid,
)
from changelog.connectors.sources.mysql.values.positions.coordinates import coordinate
from tests.unit.mysql.binlog_encoder import encode
from tests.unit.mysql.binlog_world import ITEM, OTHER, SERVER
from tests.unit.mysql.reading import format_description, header
from tests.unit.mysql.table_encoder import Table, encode_row, table_body

PAIR = replace(ITEM, name="pair")
_CONTENT = tuple(
    replace(kind, column=replace(kind.column, name=name))
    for kind, name in zip(ITEM.kinds, ["id", "content"], strict=True)
)
STAMPS, SIGNALS = (replace(ITEM, name=name, kinds=_CONTENT) for name in ("changelog_stamp", "changelog_signal"))
_WIDER = replace(ITEM, kinds=(*ITEM.kinds, replace(ITEM.kinds[1], column=replace(ITEM.kinds[1].column, name="extra"))))
_TABLE_IDS = {"item": 77, "other": 78, "pair": 79, "changelog_stamp": 80, "changelog_signal": 81}
_STAMP = b'{"apiVersion":"v2","serviceName":"till","identifier":"7"}'
_COMMENTS = (
    b"UPDATE item",
    b"/*serviceName='till'*/ UPDATE item",
    b" /* nothing */ UPDATE",
    b"/*serviceName='a'*/ x",
    b"",
)
_OTHER_SERVER = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429563")
_TYPES = {
    Operation.INSERT: (EventType.WRITE_ROWS, EventType.WRITE_ROWS_V1),
    Operation.UPDATE: (EventType.UPDATE_ROWS, EventType.UPDATE_ROWS_V1),
    Operation.DELETE: (EventType.DELETE_ROWS, EventType.DELETE_ROWS_V1),
}


class MixedLog:
    """A random log, as the packets that a server would send. Some logs begin with transactions that change only an
    unpublished table.

    - `offset` is the place of the first transaction in the first file.
    - `unusual` is the probability that a transaction is unusual.
    - `fatal` is the probability that a transaction makes a service stop, or is malformed.
    """

    def __init__(self, random: Random, *, mariadb: bool, offset: int, unusual: float, fatal: float) -> None:
        self._random, self._mariadb, self._unusual, self._fatal = random, mariadb, unusual, fatal
        self._file, self._offset, self._number, self._counter = 1, offset, 0, 0
        self.begin = coordinate(self._file, offset)
        """The coordinate at which the first transaction begins."""
        self._item = ITEM
        self._has_checksums = True
        self._quiet = random.choice([0, 30])
        self._stamps = random.choice([0, 0.8])

    def gtid(self, number: int) -> str:
        """Returns the GTID of the transaction with this number, as text."""
        return f"0-1-{number}" if self._mariadb else f"{SERVER}:{number}"

    def packets(self, transactions: int) -> Iterator[bytes]:
        """Yields the events of this number of transactions."""
        yield from self._begin_file()
        for _ in range(transactions):
            if self._random.random() < self._unusual / 4:
                yield from self._random.choice([self._next_file, self._heartbeat])()
            yield from self._placed(self._transaction())

    def _begin_file(self) -> Iterator[bytes]:
        rotate = Rotate(
            header=header(EventType.ROTATE, flags=0x20), file=f"binlog.{self._file:06}", position=self._offset
        )
        yield encode(rotate, checksum=self._has_checksums)
        version = "11.4.5-MariaDB-log" if self._mariadb else "8.0.15"
        described = replace(format_description(has_checksums=self._has_checksums), server_version=version)
        yield encode(described)

    def _next_file(self) -> Iterator[bytes]:
        had_checksums = self._has_checksums
        self._has_checksums = self._random.random() < 0.9
        self._file, self._offset = self._file + 1, 4
        for packet in self._begin_file():
            yield packet if had_checksums == self._has_checksums else self._first_packet(packet, had_checksums)

    def _first_packet(self, packet: bytes, had_checksums: bool) -> bytes:
        """Returns one of the first two packets of a file. If it is the format description, returns it as it is.

        The rotation comes before the format description, so it has a checksum if the previous file had checksums.
        """
        if packet[4] == EventType.FORMAT_DESCRIPTION:
            return packet
        rotate = Rotate(
            header=header(EventType.ROTATE, flags=0x20), file=f"binlog.{self._file:06}", position=self._offset
        )
        return encode(rotate, checksum=had_checksums)

    def _heartbeat(self) -> Iterator[bytes]:
        place = self._offset % 2**32 or 1
        event = Heartbeat(
            header=header(EventType.HEARTBEAT, flags=self._random.choice([0, 0x20]), end_log_pos=place),
            file=f"binlog.{self._file:06}",
            position=place,
        )
        yield encode(event, checksum=self._has_checksums)

    def _placed(self, events: Sequence[Event]) -> Iterator[bytes]:
        """Encodes a transaction. In MariaDB, only its first and its last event have offsets."""
        for number, event in enumerate(events):
            self._offset += len(encode(event, checksum=self._has_checksums))
            hidden = self._mariadb and 0 < number < len(events) - 1
            placed = replace(event, header=event.header._replace(end_log_pos=0 if hidden else self._offset % 2**32))
            packet = encode(placed, checksum=self._has_checksums)
            if self._has_checksums and self._random.random() < self._fatal / 20:
                packet = packet[:-1] + bytes([packet[-1] ^ 1])
            yield packet

    def _transaction(self) -> Sequence[Event]:
        self._number += 1
        random = self._random
        if random.random() < self._fatal:
            return random.choice([self._anonymous, self._statement_logged, self._rolled_back, self._lacking])()
        if random.random() < self._unusual:
            kinds: list[Callable[[], Sequence[Event]]] = [
                self._definition, self._truncation, self._stamped, self._signal, self._prepared_once,
                self._committed_by_query, self._empty, self._foreign, self._strange_flags, self._two_maps,
            ]  # fmt: skip
            return random.choice(kinds)()
        if random.random() < self._stamps:
            return self._stamped()
        return self._whole(
            [statement for _ in range(random.choice([1, 1, 1, 2, 4])) for statement in self._statement()]
        )

    # The parts of transactions

    def _whole(self, events: Sequence[Event]) -> Sequence[Event]:
        return [*self._head(), *events, Xid(header=header(EventType.XID), number=1)]

    def _head(self, **fields: object) -> Sequence[Event]:
        return [self._gtid(**fields)] if self._mariadb else [self._gtid(**fields), _query("BEGIN")]

    def _gtid(self, **fields: object) -> Event:
        number, random = self._number, self._random
        event: Event
        if self._mariadb:
            event = MariadbGtid(
                header=header(EventType.MARIADB_GTID),
                domain_id=random.choice([0] * 19 + [1]),
                sequence=number,
                standalone=False,
                transactional=True,
                ddl=False,
                commit_id=random.choice([None, None, 9]),
            )
        else:
            event = MysqlGtid(
                header=header(EventType.GTID),
                server_uuid=random.choice([SERVER] * 19 + [_OTHER_SERVER]),
                number=number,
                original_commit_us=number,
                immediate_commit_us=number,
                transaction_bytes=random.choice([100, 250, 251, 60_000]),
            )
        return replace(event, **fields)  # type: ignore[arg-type]

    def _statement(self) -> Sequence[Event]:
        random = self._random
        tables = [self._item] * 5 + [PAIR, OTHER] if self._number > self._quiet else [OTHER]
        table = random.choice(tables)
        operation = random.choice(list(Operation))
        rows = [self._row(table) for _ in range(random.choice([1, 1, 1, 3]))]
        text = self._text(random.choice(_COMMENTS[:1] * 8 + _COMMENTS)) if random.random() < 0.7 else []
        return [*text, self._map(table), self._rows(table, operation, rows)]

    def _row(self, table: Table) -> bytes:
        self._counter += 1
        texts = [self._random.choice([f"t{self._counter}".encode(), b'"', None]) for _ in table.kinds[1:]]
        return encode_row(table, (struct.pack("<i", self._random.randrange(20)), *texts))

    def _text(self, sql: bytes) -> Sequence[Event]:
        kind = EventType.ANNOTATE_ROWS if self._mariadb else EventType.ROWS_QUERY
        return [RowsQuery(header=header(kind), sql=sql)]

    def _map(self, table: Table) -> TableMap:
        return TableMap(
            header=header(EventType.TABLE_MAP), table_id=_TABLE_IDS[table.name], flags=0, schema=table.schema,
            table=table.name, body=table_body(table), dialect=table.dialect,
        )  # fmt: skip

    def _rows(self, table: Table, operation: Operation, rows: Sequence[bytes], *, flags: int = 1) -> RowsEvent:
        every = ((1 << len(table.kinds)) - 1).to_bytes(1, "little")
        images = 2 if operation is Operation.UPDATE else 1
        return RowsEvent(
            header=header(_TYPES[operation][self._mariadb]), table_id=_TABLE_IDS[table.name], operation=operation,
            flags=flags, width=len(table.kinds), before=None if operation is Operation.INSERT else every,
            after=None if operation is Operation.DELETE else every, partial=False,
            body=memoryview(b"".join(row * images for row in rows)), offset=0,
        )  # fmt: skip

    def _inserted(self, table: Table, content: bytes) -> Sequence[Event]:
        row = encode_row(table, (struct.pack("<i", 5), content))
        return [self._map(table), self._rows(table, Operation.INSERT, [row])]

    # Unusual transactions

    def _alone(self, sql: str) -> Sequence[Event]:
        return [self._gtid(standalone=True) if self._mariadb else self._gtid(), _query(sql)]

    def _definition(self) -> Sequence[Event]:
        self._item = _WIDER if self._item is ITEM else ITEM
        return self._alone("ALTER TABLE item ENGINE = x")

    def _truncation(self) -> Sequence[Event]:
        return self._alone("TRUNCATE TABLE item")

    def _stamped(self) -> Sequence[Event]:
        """Returns a transaction that inserts stamps, and often deletes them again. Most of these transactions insert a
        single stamp before all other changes.
        """
        random = self._random
        content = random.choice([_STAMP] * 6 + [b"{}", b"none", b""])
        row = encode_row(STAMPS, (struct.pack("<i", 5), content))
        rows = [row] * random.choice([1, 1, 1, 2])
        events = [self._map(STAMPS), self._rows(STAMPS, Operation.INSERT, rows), *self._statement()]
        if random.random() < 0.2:
            events = [*self._statement(), *events]
        if random.random() < 0.7:
            events += [self._map(STAMPS), self._rows(STAMPS, Operation.DELETE, rows)]
        return self._whole(events)

    def _signal(self) -> Sequence[Event]:
        return self._whole([*self._inserted(SIGNALS, self._random.choice([b"", b'{"do":"x"}'])), *self._statement()])

    def _prepared_once(self) -> Sequence[Event]:
        if self._mariadb:
            return self._empty()
        xa_id = XaId(format_id=1, gtrid=b"a", bqual=b"")
        end = XaPrepare(header=header(EventType.XA_PREPARE), xa_id=xa_id, one_phase=True)
        return [self._gtid(), _query("XA START X'61',X'',1"), *self._statement(), _query("XA END X'61',X'',1"), end]

    def _committed_by_query(self) -> Sequence[Event]:
        return [*self._head(), *self._statement(), _query("COMMIT")]

    def _empty(self) -> Sequence[Event]:
        return self._whole([])

    def _foreign(self) -> Sequence[Event]:
        """Returns a transaction with an unusual GTID event: for example, it came from another server, or numbers are
        skipped.
        """
        if self._mariadb:
            self._number += 5
            return self._whole(self._statement())
        other: dict[str, Any] = self._random.choice(
            [
                {"original_commit_us": 3},
                {"transaction_bytes": None},
                {"transaction_bytes": 70_000},
                {"header": header(EventType.GTID_TAGGED), "tag": "till"},
            ]
        )
        return [*self._head(**other), *self._statement(), Xid(header=header(EventType.XID), number=1)]

    def _strange_flags(self) -> Sequence[Event]:
        rows = self._rows(ITEM, Operation.INSERT, [self._row(ITEM)], flags=self._random.choice([0, 3, 8]))
        return self._whole([*self._text(_COMMENTS[1]), self._map(ITEM), rows, *self._statement()[-2:]])

    def _two_maps(self) -> Sequence[Event]:
        maps = [self._map(self._item), self._map(PAIR)]
        both = [self._rows(table, Operation.UPDATE, [self._row(table)]) for table in (self._item, PAIR)]
        return self._whole([*maps, replace(both[0], flags=0), both[1]])

    # Transactions at which the changelog stops, or that are malformed

    def _anonymous(self) -> Sequence[Event]:
        if self._mariadb:
            return [*self._head(), *self._whole(self._statement())]
        anonymous = AnonymousGtid(
            header=header(EventType.ANONYMOUS_GTID), original_commit_us=1, immediate_commit_us=1, transaction_bytes=1
        )
        return [anonymous, *self._whole(self._statement())[1:]]

    def _statement_logged(self) -> Sequence[Event]:
        context = StatementContext(header=header(EventType.INTVAR), name="INTVAR")
        return self._whole([context, _query("INSERT INTO item VALUES (1)")])

    def _rolled_back(self) -> Sequence[Event]:
        return [*self._head(), *self._statement(), _query("ROLLBACK")]

    def _lacking(self) -> Sequence[Event]:
        """Returns a transaction that is malformed: its rows lack bytes or a column, or its last event is too long."""
        whole = self._rows(self._item, Operation.INSERT, [self._row(self._item)])
        updated = self._rows(self._item, Operation.UPDATE, [])
        broken = [replace(whole, body=whole.body[:-1]), replace(whole, after=b"\1"), replace(updated, body=whole.body)]
        rows = self._random.choice([whole, *broken])
        longer = RowsQuery(header=header(EventType.XID), sql=b"123456789")
        events = self._whole([self._map(self._item), rows])
        return [*events[:-1], longer] if rows is whole else events


def _query(sql: str) -> Query:
    return Query(header=header(EventType.QUERY), thread_id=1, error_code=0, database="shop", sql=sql.encode())
