"""Tests the conversion of many rows at once. It must give the same texts and errors as converting them one by one."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Operation, RowsEvent
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.row_images import images
from changelog.connectors.sources.mysql.decode.rows.row_texts import RowTexts
from changelog.connectors.sources.mysql.values.batches.raw_columns import PADDING_BYTES
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Stamp
from tests.unit.mysql.random_events import rows_event
from tests.unit.mysql.reading import header
from tests.unit.mysql.table_encoder import MYSQL_8, Row, Table, bits, digits_bytes, encode_row, table_body, table_map
from tests.unit.mysql.table_encoder import Kind as ColumnKind
from tests.unit.mysql.value_columns import UTF8MB4, bit_meta, column, decimal_meta

LATIN1, SWE7, SJIS, UTF16 = 8, 10, 13, 54
CHARSETS = {UTF8MB4: "utf8mb4", LATIN1: "latin1", SWE7: "swe7", SJIS: "sjis", UTF16: "utf16"}

ENTITY = Entity(
    name="rows",
    table=("d", "t"),
    key=("id",),
    partition_by=("id",),
    partitions=1,
    masks={},
    default_stamp=Stamp(api_version="unknown", service_name="unknown", identifier=""),
)

OPS = {Operation.INSERT: Op.CREATE, Operation.UPDATE: Op.UPDATE, Operation.DELETE: Op.DELETE}
KINDS = {
    Operation.INSERT: EventType.WRITE_ROWS,
    Operation.UPDATE: EventType.UPDATE_ROWS,
    Operation.DELETE: EventType.DELETE_ROWS,
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A column, and the bytes that values of this column usually have."""

    kind: ColumnKind
    usual: st.SearchStrategy[bytes]

    @property
    def values(self) -> st.SearchStrategy[bytes | None]:
        return self.usual | st.none() if self.kind.column.nullable else self.usual


def fixed(of: LogColumn, size: int, usual: st.SearchStrategy[bytes] | None = None) -> Typed:
    return Typed(ColumnKind(of, size=size), st.binary(min_size=size, max_size=size) if usual is None else usual)


def varying(of: LogColumn, prefix: int, usual: st.SearchStrategy[bytes]) -> Typed:
    return Typed(ColumnKind(of, prefix=prefix), usual)


def big_endian(size: int, numbers: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return numbers.map(lambda number: number.to_bytes(size, "big"))


@st.composite
def decimals(draw: st.DrawFn) -> Typed:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(precision, 30)))
    whole, part = precision - scale, scale
    groups = [whole % 9] + [9] * (whole // 9) + [9] * (part // 9) + [part % 9]
    numbers = (big_endian(digits_bytes(digits), st.just(0) | st.integers(0, 10**digits - 1)) for digits in groups)
    usual = st.tuples(st.booleans(), *numbers).map(stored_decimal)
    size = digits_bytes(precision - scale) + digits_bytes(scale)
    return fixed(column(TypeCode.NEWDECIMAL, decimal_meta(precision, scale)), size, usual)


def stored_decimal(parts: tuple[bool, *tuple[bytes, ...]]) -> bytes:
    negative, *groups = parts
    octets = b"".join(groups)
    octets = bytes([octets[0] | 0x80]) + octets[1:]
    return bytes(octet ^ 0xFF for octet in octets) if negative else octets


@st.composite
def times(draw: st.DrawFn) -> Typed:
    code = draw(st.sampled_from([TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2]))
    digits = draw(st.integers(0, 6))
    size = (digits + 1) // 2
    fraction = st.integers(0, 100**size - 1)
    minute = st.integers(0, 59).map(lambda number: number << 6)
    hours = st.sampled_from([0, 99, 100, 838]) | st.integers(0, 838)
    clock = st.tuples(hours, minute, st.integers(0, 59))
    if code == TypeCode.TIME2:
        whole = st.tuples(clock, st.sampled_from([1, -1]), fraction).map(
            lambda parts: (
                (0x800000 << 8 * size)
                + parts[1] * ((parts[0][0] << 12 | parts[0][1] | parts[0][2]) << 8 * size | parts[2])
            )
        )
        return fixed(column(code, digits), 3 + size, big_endian(3 + size, whole))
    if code == TypeCode.TIMESTAMP2:
        seconds = st.just(0) | st.integers(0, 2**32 - 1)
        usual = st.tuples(big_endian(4, seconds), big_endian(size, st.just(0) | fraction)).map(b"".join)
        return fixed(column(code, digits), 4 + size, usual)
    day = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 23))
    whole = st.tuples(day, minute, st.integers(0, 59)).map(
        lambda parts: (
            0x8000000000
            + ((parts[0][0] * 13 + parts[0][1]) << 22 | parts[0][2] << 17 | parts[0][3] << 12 | parts[1] | parts[2])
        )
    )
    usual = st.tuples(big_endian(5, whole), big_endian(size, fraction)).map(b"".join)
    return fixed(column(code, digits), 5 + size, usual)


@st.composite
def strings(draw: st.DrawFn) -> Typed:
    collation = draw(st.sampled_from([UTF8MB4, UTF8MB4, LATIN1, SWE7, SJIS, UTF16]))
    text = st.text(st.characters(codec="ascii"), max_size=20)
    usual = text.map(str.encode) | st.just(b"a  ")
    if collation == UTF8MB4:
        usual |= st.text(max_size=8).map(str.encode) | st.sampled_from([b"\xed\xa0\x80", b"\xc3\xa4"])
    elif collation == LATIN1:
        usual |= st.binary(max_size=8)
    elif collation == UTF16:
        usual = text.map(lambda content: content.encode("utf-16-be"))
    code, meta, prefix = draw(
        st.sampled_from([(TypeCode.VARCHAR, 80, 1), (TypeCode.VARCHAR, 800, 2), (TypeCode.STRING, 80, 1)])
        | st.integers(1, 4).map(lambda size: (TypeCode.BLOB, size, size))
    )
    return varying(column(code, meta, collation=collation), prefix, usual)


def integers() -> list[Typed]:
    sizes = {TypeCode.TINY: 1, TypeCode.SHORT: 2, TypeCode.INT24: 3, TypeCode.LONG: 4, TypeCode.LONGLONG: 8}
    return [fixed(column(code, unsigned=sign), size) for code, size in sizes.items() for sign in (False, True)]


def packed(layout: str, numbers: st.SearchStrategy[float]) -> st.SearchStrategy[bytes]:
    return numbers.map(lambda number: struct.pack(layout, number))


LABELS = (b"small", "größer".encode(), b"")
single_bytes = st.integers(0, 3).map(lambda number: bytes([number]))
dates = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31)).map(
    lambda day: (day[0] << 9 | day[1] << 5 | day[2]).to_bytes(3, "little")
)
OTHERS = [
    fixed(column(TypeCode.FLOAT, 4), 4, packed("<f", st.floats(allow_nan=False, allow_infinity=False, width=32))),
    fixed(column(TypeCode.FLOAT, 4), 4, packed("<f", st.floats(-2e6, 2e6, width=32))),
    fixed(column(TypeCode.DOUBLE, 8), 8, packed("<d", st.floats(allow_nan=False, allow_infinity=False))),
    fixed(column(TypeCode.DOUBLE, 8), 8, packed("<d", st.floats(-1e16, 1e16))),
    fixed(column(TypeCode.YEAR), 1),
    fixed(column(TypeCode.DATE), 3, dates),
    fixed(column(TypeCode.ENUM, 1, labels=LABELS, collation=UTF8MB4), 1, single_bytes),
    fixed(column(TypeCode.SET, 1, labels=LABELS[:2], collation=UTF8MB4), 1, single_bytes),
    fixed(column(TypeCode.BIT, bit_meta(10)), 2, big_endian(2, st.integers(0, 1023))),
    varying(column(TypeCode.STRING, 3, collation=BINARY), 1, st.binary(max_size=3)),
    varying(column(TypeCode.VARCHAR, 300, collation=BINARY), 2, st.binary(max_size=30)),
    varying(column(TypeCode.JSON, 4), 4, st.sampled_from([b"\4\0", b"\4\1", b"\4\2"])),
    varying(column(TypeCode.STRING, 16, collation=BINARY, declared="uuid"), 1, st.binary(max_size=16)),
]

typed_columns = st.sampled_from([*integers(), *OTHERS]) | decimals() | times() | strings()

ID = fixed(replace(column(TypeCode.LONG), nullable=False), 4)


@st.composite
def tables_and_events(draw: st.DrawFn) -> tuple[Table, list[tuple[Operation, list[tuple[Row, ...]]]]]:
    others = draw(st.lists(typed_columns, max_size=10))
    named = [
        Typed(replace(typed.kind, column=replace(typed.kind.column, name=name, nullable=nullable)), typed.usual)
        for number, typed in enumerate([ID, *others])
        for name, nullable in [("id", False) if number == 0 else (f"c{number}", draw(st.booleans()))]
    ]
    row = st.tuples(*(typed.values for typed in named))
    events = []
    for _ in range(draw(st.integers(1, 3))):
        operation = draw(st.sampled_from(Operation))
        change = st.tuples(row, row) if operation is Operation.UPDATE else st.tuples(row)
        events.append((operation, draw(st.lists(change, min_size=1, max_size=5))))
    return table_of_kinds([typed.kind for typed in named]), events


def table_of_kinds(kinds: Sequence[ColumnKind]) -> Table:
    return Table(
        dialect=MYSQL_8,
        schema="d",
        name="t",
        kinds=tuple(kinds),
        primary_key=(),
        prefixed=False,
        invisible=frozenset(),
        geometry_types=(),
        listed=True,
    )


def bound(table: Table) -> BoundTable:
    return BoundTable.of(ENTITY, table.columns, Binder(hmac_key=b"").bind(ENTITY, table.columns), CHARSETS)


def event_of(table: Table, operation: Operation, body: bytes) -> RowsEvent:
    bitmap = bits([True] * len(table.kinds), low_first=True)
    before = None if operation is Operation.INSERT else bitmap
    after = None if operation is Operation.DELETE else bitmap
    return rows_event(header(KINDS[operation]), operation, 7, 1, len(table.kinds), before, after, body)


Texts = dict[int, tuple[Op, object]]


def texts(table: BoundTable, raw: Table, events: Sequence[RowsEvent], *, together: bool) -> Texts | Kind:
    """Converts the rows of these events. Returns the op and the texts of each row, by the number of the row. If a row
    is malformed, returns the kind of the error.

    If `together` is true, all rows of an event are converted at once, if `RowTexts.add_event` accepts the event.
    """
    collected = RowTexts()
    maps = table_map(table_body(raw))
    try:
        for event in events:
            op = OPS[event.operation]
            if together and collected.add_event(table, op, event):
                continue
            for before, after in images(maps, event):
                collected.add(table, op, before, after)
        groups, data = collected.take()
    except ChangelogError as error:
        return error.kind
    return {
        place: (group.op, group.row(data, number))
        for group in groups
        for number, place in enumerate(group.places.tolist())
    }


@given(drawn=tables_and_events())
def test_events_are_converted_like_their_single_rows(
    drawn: tuple[Table, list[tuple[Operation, list[tuple[Row, ...]]]]],
) -> None:
    table, changes = drawn
    events = [
        event_of(table, operation, b"".join(encode_row(table, row) for change in rows for row in change))
        for operation, rows in changes
    ]
    one_by_one = texts(bound(table), table, events, together=False)
    assert texts(bound(table), table, events, together=True) == one_by_one


@given(drawn=tables_and_events(), data=st.data())
def test_damaged_events_are_refused_like_their_single_rows(
    drawn: tuple[Table, list[tuple[Operation, list[tuple[Row, ...]]]]], data: st.DataObject
) -> None:
    table, changes = drawn
    operation, rows = changes[0]
    body = bytearray(b"".join(encode_row(table, row) for change in rows for row in change))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    event = event_of(table, operation, bytes(body[: data.draw(st.integers(0, len(body)))]))
    one_by_one = texts(bound(table), table, [event], together=False)
    assert texts(bound(table), table, [event], together=True) == one_by_one


def test_rows_of_usual_events_are_converted_together() -> None:
    table = table_of_kinds([ColumnKind(replace(ID.kind.column, name="id"), size=4)])
    event = event_of(table, Operation.UPDATE, b"\0\1\0\0\0\0\2\0\0\0" * 3)
    assert RowTexts().add_event(bound(table), Op.UPDATE, event) == 3


@pytest.mark.parametrize("body", [b"\1", b"\0\1\0\0", b"\0\1\0\0\0", b""])
def test_rows_of_unusual_events_are_not_converted_together(body: bytes) -> None:
    """The unusual things are a null in a column that cannot be null, a row that lacks bytes, an old row without a new
    row, and an event without rows.
    """
    table = table_of_kinds([ColumnKind(replace(ID.kind.column, name="id"), size=4)])
    assert RowTexts().add_event(bound(table), Op.UPDATE, event_of(table, Operation.UPDATE, body)) == 0


@given(drawn=tables_and_events(), data=st.data())
def test_the_rows_of_several_events_are_found_like_the_rows_of_single_events(
    drawn: tuple[Table, list[tuple[Operation, list[tuple[Row, ...]]]]], data: st.DataObject
) -> None:
    """In half of the cases, one event is damaged. Then the last row of this event may seem to end in the next event."""
    table, changes = drawn
    layout = bound(table).layout
    assert layout is not None
    bodies = [bytearray(b"".join(encode_row(table, row) for change in rows for row in change)) for _, rows in changes]
    bodies = [bytearray(body) for body in bodies * 40]
    if data.draw(st.booleans()):
        body = data.draw(st.sampled_from(bodies))
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        del body[data.draw(st.integers(0, len(body))) :]
    sizes, gap = np.array([len(body) for body in bodies]), b"gap"
    octets = np.frombuffer(b"".join(gap + body for body in bodies) + bytes(PADDING_BYTES), np.uint8)
    begins = np.cumsum(sizes + len(gap)) - sizes
    starts = layout.starts_in(octets, begins, sizes)
    starts_in_bodies = [layout.starts(bytes(body)) for body in bodies]
    firsts = (np.cumsum(sizes) - sizes).tolist()
    if starts is None:
        assert not all(starts_in_bodies) or max(map(len, starts_in_bodies)) > 8
    else:
        alone = [first + start for first, inside in zip(firsts, starts_in_bodies, strict=True) for start in inside]
        assert starts.tolist() == alone
