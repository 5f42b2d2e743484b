"""Tests how rows in events of the binary log are read.

Rows of random tables are encoded and read back. Rows that no server writes must be refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Operation, RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.rows.row_images import Image, PartialJson, images
from changelog.connectors.sources.mysql.decode.rows.value_framing import framing
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.binlog_encoder import number
from tests.unit.mysql.random_events import rows_event
from tests.unit.mysql.reading import attempt, header
from tests.unit.mysql.table_encoder import (
    NAMED,
    SIGNED,
    Row,
    Table,
    bits,
    column,
    encode_row,
    rows,
    table_body,
    table_map,
    table_of,
    tables,
)

KINDS = {
    Operation.INSERT: EventType.WRITE_ROWS,
    Operation.UPDATE: EventType.UPDATE_ROWS,
    Operation.DELETE: EventType.DELETE_ROWS,
}


def rows_of(table: Table, operation: Operation, content: bytes, bitmaps: Sequence[bytes | None]) -> RowsEvent:
    before, after = bitmaps
    return rows_event(header(KINDS[operation]), operation, 7, 1, len(table.kinds), before, after, content)


def raw(image: Image | None) -> Row | None:
    """Returns a row in the form in which the test drew it: with bytes in place of views of the event."""
    if image is None:
        return None
    assert not any(isinstance(value, PartialJson) for value in image)
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in image)  # type: ignore[misc]


@st.composite
def table_and_rows(draw: st.DrawFn) -> tuple[Table, Operation, Sequence[bytes | None], list[tuple[Row | None, ...]]]:
    table = draw(tables().filter(lambda table: len(table.kinds) > 0))
    indexes = st.integers(0, len(table.kinds) - 1)
    operation = draw(st.sampled_from(Operation))
    present = [
        None if absent else frozenset(draw(st.sets(indexes, min_size=1)))
        for absent in (operation is Operation.INSERT, operation is Operation.DELETE)
    ]
    sides = [st.none() if columns is None else rows(table, columns) for columns in present]
    bitmaps = [
        None if columns is None else bits((index in columns for index in range(len(table.kinds))), low_first=True)
        for columns in present
    ]
    return table, operation, bitmaps, draw(st.lists(st.tuples(*sides), min_size=1, max_size=3))


@given(drawn=table_and_rows())
def test_every_row_is_read_back(
    drawn: tuple[Table, Operation, Sequence[bytes | None], list[tuple[Row | None, ...]]],
) -> None:
    table, operation, bitmaps, changes = drawn
    content = b"".join(encode_row(table, row) for change in changes for row in change if row is not None)
    maps = table_map(table_body(table), table.dialect)
    assert read_rows(maps, rows_of(table, operation, content, bitmaps)) == changes
    for length in range(len(content)):
        event = rows_of(table, operation, content[:length], bitmaps)
        fewer = attempt(partial(read_rows, maps, event))
        assert fewer is None or fewer == changes[: len(fewer)]


def read_rows(maps: TableMap, event: RowsEvent) -> list[tuple[Row | None, Row | None]]:
    return [(raw(old), raw(new)) for old, new in images(maps, event)]


def test_a_table_map_without_names_of_columns_is_refused() -> None:
    nameless = table_map(table_of((TypeCode.LONG, b"")))
    assert nameless.columns is None
    event = rows_event(header(EventType.WRITE_ROWS), Operation.INSERT, 7, 1, 1, None, b"\1", bytes(5))
    with pytest.raises(ChangelogError) as caught:
        next(images(nameless, event))
    assert caught.value.kind is Kind.PRECONDITION
    assert "binlog_row_metadata" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("width", "bitmap", "body", "problem"),
    [
        (2, b"\1", bytes(5), "rows of 2 columns for a table of 1 (byte 0"),
        (1, b"\1", bytes(4), "too few bytes for a field: 4 needed, 3 left (byte 1"),
        (1, b"\1", b"", "too few bytes for a field: 1 needed, 0 left (byte 0"),
        (1, b"\1", bytes(7), "too few bytes for a field: 4 needed, 1 left (byte 6"),
        (1, b"\0", bytes(1), "1 bytes for rows without columns (byte 0"),
    ],
)
def test_rows_that_do_not_fit_their_table_are_refused(width: int, bitmap: bytes, body: bytes, problem: str) -> None:
    event = rows_event(header(EventType.WRITE_ROWS), Operation.INSERT, 7, 1, width, None, bitmap, body)
    with pytest.raises(ChangelogError) as caught:
        list(images(table_map(NAMED + SIGNED), event))
    assert caught.value.kind is Kind.MALFORMED
    assert problem in caught.value.message


def test_an_insert_without_any_column_is_one_change() -> None:
    event = rows_event(header(EventType.WRITE_ROWS), Operation.INSERT, 7, 1, 1, None, b"\0", b"")
    assert list(images(table_map(NAMED + SIGNED), event)) == [(None, (UNCHANGED,))]


JSON_TABLE = table_of((TypeCode.JSON, b"\4"), (TypeCode.LONG, b""), (TypeCode.JSON, b"\4")) + b"\4\6\1a\1b\1c" + SIGNED


def json_update(new: bytes) -> RowsEvent:
    old = b"\0" + b"\1\0\0\0A" + bytes(4) + b"\1\0\0\0C"
    return rows_event(header(EventType.PARTIAL_UPDATE_ROWS), Operation.UPDATE, 7, 1, 3, b"\7", b"\6", old + new)


def test_only_columns_that_the_row_marks_have_diffs() -> None:
    """Bits before the new row mark the JSON columns that have diffs. There is a bit for each JSON column of the table,
    even for the first column here, which the new row lacks.
    """
    [(_, new)] = images(table_map(JSON_TABLE), json_update(b"\1\2\0" + bytes(4) + b"\3\0\0\0xyz"))
    assert new is not None
    assert new[0] is UNCHANGED
    assert new[2] == PartialJson(diffs=memoryview(b"xyz"))


def test_a_row_without_options_has_whole_documents() -> None:
    [(_, new)] = images(table_map(JSON_TABLE), json_update(b"\0\0" + bytes(4) + b"\3\0\0\0xyz"))
    assert new is not None
    assert new[2] == memoryview(b"xyz")


def test_unknown_options_of_a_row_are_refused() -> None:
    with pytest.raises(ChangelogError, match=r"the unknown options 0x2 of a row \(byte 15"):
        list(images(table_map(JSON_TABLE), json_update(b"\2\0" + bytes(4) + b"\3\0\0\0xyz")))


def test_the_length_of_a_value_has_as_many_bytes_as_its_type_needs() -> None:
    assert framing(column(TypeCode.VARCHAR, 255)).prefix == 1
    assert framing(column(TypeCode.VARCHAR, 256)).prefix == 2
    assert framing(replace(column(TypeCode.NEWDECIMAL, 65 | 30 << 8))).size == 30
    assert number(251) == b"\xfc\xfb\0"
