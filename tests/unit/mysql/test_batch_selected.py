"""Tests how whole columns in the result of a query are converted. This must give the same texts and errors as
converting single values.
"""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.batches.print_all import print_all
from changelog.connectors.sources.mysql.values.batches.raw_columns import PADDING_BYTES, RawColumn
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.selected import Selected, selected
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.columnar.splice import Pool
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.value_columns import UTF8MB4, bit_meta, column

TEXT = column(TypeCode.VARCHAR, 80, collation=UTF8MB4)
FLOAT, DOUBLE = column(TypeCode.FLOAT, 4), column(TypeCode.DOUBLE, 8)
DECIMAL_ZEROFILL = column(TypeCode.NEWDECIMAL, declared="decimal(12,2) unsigned zerofill")

finite = st.floats(allow_nan=False, allow_infinity=False)
singles = st.floats(allow_nan=False, allow_infinity=False, width=32)
moments = st.builds(
    lambda year, fraction: b"%04d-01-31 10:00:59%b" % (year, fraction),
    st.sampled_from([0, 1970, 2038]),
    st.sampled_from([b"", b".5", b".123456"]),
)
printed_numbers = st.sampled_from([b"0", b"-0", b"1e-7", b"1e22", b"0.0001", b"999999", b"1000000", b"123456.789"])

KINDS: Sequence[tuple[LogColumn, st.SearchStrategy[bytes]]] = [
    (
        TEXT,
        st.text(max_size=8).map(str.encode) | st.sampled_from([b"a\xed\xa0\x80", b"\xed\xb0\x80", b"\xc3", b"\xa4"]),
    ),
    (column(TypeCode.ENUM, 1, labels=(b"a",), collation=UTF8MB4), st.sampled_from([b"", b"a", b"\xed\xa0\x80"])),
    (column(TypeCode.TIMESTAMP2, 6), moments),
    (
        DOUBLE,
        finite.map(lambda number: repr(number).encode()) | printed_numbers | st.sampled_from([b"a", b"inf", b"nan"]),
    ),
    (FLOAT, singles.map(lambda number: repr(number).encode()) | printed_numbers | st.just(b"1e300")),
    (DECIMAL_ZEROFILL, st.sampled_from([b"0", b"0.00", b"000.50", b"012.30", b"00000120", b"9.01"])),
    (column(TypeCode.YEAR, declared="year(4)"), st.sampled_from([b"0000", b"1901", b"2155"])),
    (column(TypeCode.YEAR, declared="year(2)"), st.sampled_from([b"00", b"69", b"70", b"a"])),
    (column(TypeCode.BIT, bit_meta(1)), st.sampled_from([b"\0", b"\1", b"\2", b"\0\1"])),
    (column(TypeCode.BIT, bit_meta(64)), st.binary(min_size=8, max_size=8)),
    (
        column(TypeCode.VECTOR, 4),
        st.lists(singles, max_size=3).map(lambda items: struct.pack(f"<{len(items)}f", *items)),
    ),
]


def columns_and_texts(
    kind: tuple[LogColumn, st.SearchStrategy[bytes]],
) -> st.SearchStrategy[tuple[LogColumn, list[bytes]]]:
    of, sent = kind
    return st.tuples(st.just(of), st.lists(sent, min_size=1, max_size=8))


def raw_column(sent: Sequence[bytes]) -> RawColumn:
    """Returns a column of these values. In memory, each value has a byte before it that belongs to no value."""
    lengths = np.array([len(text) for text in sent], np.int64)
    octets = np.frombuffer(b"".join(b"\xff" + text for text in sent) + bytes(PADDING_BYTES), np.uint8)
    return RawColumn(octets=octets, starts=np.cumsum(lengths + 1) - lengths, lengths=lengths)


def one_by_one(of: Selected, sent: Sequence[bytes]) -> list[bytes] | Kind:
    assert of.convert is not None
    try:
        return [of.convert(text) for text in sent]
    except ChangelogError as error:
        return error.kind


def together(of: Selected, sent: Sequence[bytes]) -> list[bytes] | Kind:
    convert, raw = of.convert, raw_column(sent)
    assert convert is not None
    pool = Pool(raw.octets.tobytes())
    try:
        starts, lengths = print_all(raw, of.convert_column, lambda text: convert(bytes(text)), pool)
    except ChangelogError as error:
        return error.kind
    data = pool.data()
    return [data[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


@given(drawn=st.sampled_from(KINDS).flatmap(columns_and_texts))
def test_a_column_is_converted_like_single_values(drawn: tuple[LogColumn, list[bytes]]) -> None:
    of, sent = selected(drawn[0]), drawn[1]
    assert together(of, sent) == one_by_one(of, sent)


@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (TEXT, ["größer".encode(), b"", "漢".encode()]),
        (column(TypeCode.TIMESTAMP2), [b"2024-01-31 10:00:00", b"1970-01-01 00:00:01"]),
        (FLOAT, [b"0", b"0.10000000149011612", b"-123456.7890625"]),
        (DOUBLE, [b"0", b"0.1", b"-9999999999.5"]),
        (DECIMAL_ZEROFILL, [b"10.00", b"9999999999.99"]),
        (column(TypeCode.BIT, bit_meta(10)), [b"\2\3", b"\0\0"]),
    ],
)
def test_a_column_of_usual_values_is_converted_without_single_conversions(of: LogColumn, sent: list[bytes]) -> None:
    convert_column = selected(of).convert_column
    assert convert_column is not None
    left = convert_column(raw_column(sent)).unprintable
    assert left is None or not left.any()
