"""Tests the parser of query results. It finds the values of all rows at once, and they must be the values that were
encoded.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.session.packets import HEADER_BYTES, Packets
from changelog.connectors.sources.mysql.session.results import TextRows
from changelog.connectors.sources.mysql.snapshot.text_rows import convert_columns, parse_rows
from changelog.connectors.sources.mysql.values.selected import Selected
from changelog.envelope.errors import ChangelogError, Kind

LENGTHS = (0, 1, 250, 251, 252, 255, 256, 65535, 65536, 70000)

values = st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([b"x" * length for length in LENGTHS]))


def encoded(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return b"\xfd" + size.to_bytes(3, "little") + value


def result(rows: list[list[bytes | None]]) -> TextRows:
    text_rows = TextRows.none()
    for row in rows:
        data = bytes(HEADER_BYTES) + b"".join(map(encoded, row))
        text_rows.add(Packets(data, [len(data)]))
    return text_rows


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(values, min_size=width, max_size=width), max_size=6)))
def test_each_value_is_found(rows: list[list[bytes | None]]) -> None:
    width = len(rows[0]) if rows else 1
    text_rows = result(rows)
    columns = parse_rows(text_rows, range(width), width)
    assert [columns.row(text_rows.data, number) for number in range(len(rows))] == rows


def test_columns_that_were_not_read_are_null() -> None:
    text_rows = result([[b"a", b"b"], [b"c", None]])
    columns = parse_rows(text_rows, (1, 3), 4)
    assert [columns.row(text_rows.data, number) for number in range(2)] == [
        [None, b"a", None, b"b"],
        [None, b"c", None, None],
    ]


def test_rows_with_a_wrong_number_of_values_are_refused() -> None:
    with pytest.raises(ChangelogError) as caught:
        parse_rows(result([[b"a", b"b"]]), range(3), 3)
    assert caught.value.kind is Kind.MALFORMED


AS_SENT = Selected(sql="c", convert=None, convert_column=None)
IN_BRACKETS = Selected(sql="c", convert=lambda text: b"<" + text + b">", convert_column=None)


@given(st.lists(st.lists(values, min_size=3, max_size=3), max_size=5))
def test_a_column_is_converted_and_the_others_stay_as_they_are(rows: list[list[bytes | None]]) -> None:
    text_rows = result(rows)
    columns = parse_rows(text_rows, range(3), 3)
    data = convert_columns(text_rows.data, columns, list(enumerate([AS_SENT, IN_BRACKETS, AS_SENT])))
    expected = [[first, None if value is None else b"<" + value + b">", last] for first, value, last in rows]
    assert [columns.row(data, number) for number in range(len(rows))] == expected
