"""Tests how values are printed from their bytes in the binary log.

Most of the bytes are from the logs of real servers. `tests/integration/mysql/test_values_oracle.py` compares many more
values with what servers print.
"""

import decimal
import math
import struct
import zlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.printed import printer_for
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, STRINGS, codec_for
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.value_columns import CHARSETS, UTF8MB4, bit_meta, column, decimal_meta

LABELS = (b"small", "größer".encode(), b"")


def printed(of: LogColumn, raw: bytes) -> bytes:
    text = printer_for(of, CHARSETS)(raw)
    assert printer_for(of, CHARSETS)(memoryview(raw)) == text
    return text


VALUES = [  # column, bytes in the log, printed text
    (column(TypeCode.TINY), "ff", "-1"),
    (column(TypeCode.TINY, unsigned=True), "ff", "255"),
    (column(TypeCode.SHORT), "0080", "-32768"),
    (column(TypeCode.INT24), "ffff7f", "8388607"),
    (column(TypeCode.INT24, unsigned=True), "ffffff", "16777215"),
    (column(TypeCode.LONG, unsigned=True), "ffffffff", "4294967295"),
    (column(TypeCode.LONGLONG), "0000000000000080", "-9223372036854775808"),
    (column(TypeCode.LONGLONG, unsigned=True), "ffffffffffffffff", "18446744073709551615"),
    (column(TypeCode.YEAR), "00", "0"),
    (column(TypeCode.YEAR), "ff", "2155"),
    (column(TypeCode.FLOAT, 4), "0000804b", "1.6777216e+07"),
    (column(TypeCode.FLOAT, 4), "cdcccc3d", "0.1"),
    (column(TypeCode.FLOAT, 4), "00000080", "-0"),
    (column(TypeCode.DOUBLE, 8), "9a9999999999b93f", "0.1"),
    (column(TypeCode.DOUBLE, 8), "0100000000000000", "5e-324"),
    (column(TypeCode.NEWDECIMAL, decimal_meta(14, 4)), "810dfb38d204d2", "1234567890.1234"),
    (column(TypeCode.NEWDECIMAL, decimal_meta(14, 4)), "7ef204c72dfb2d", "-1234567890.1234"),
    (column(TypeCode.NEWDECIMAL, decimal_meta(2, 2)), "85", "0.05"),
    (column(TypeCode.NEWDECIMAL, decimal_meta(5, 0)), "800000", "0"),
    (column(TypeCode.BIT, bit_meta(1)), "01", "1"),
    (column(TypeCode.BIT, bit_meta(10)), "0203", "1000000011"),
    (column(TypeCode.BIT, bit_meta(16)), "0203", "0000001000000011"),
    (column(TypeCode.DATE), "000000", "0000-00-00"),
    (column(TypeCode.DATE), "00d00f", "2024-00-00"),
    (column(TypeCode.DATE), "3fd00f", "2024-01-31"),
    (column(TypeCode.NEWDATE), "9f1f4e", "9999-12-31"),
    (column(TypeCode.TIME2, 0), "800000", "00:00:00"),
    (column(TypeCode.TIME2, 0), "4b9105", "-838:59:59"),
    (column(TypeCode.TIME2, 1), "7fffffce", "-00:00:00.5"),
    (column(TypeCode.TIME2, 6), "80a0c300007b", "10:03:03.000123"),
    (column(TypeCode.DATETIME2, 0), "8000000000", "0000-00-00 00:00:00"),
    (column(TypeCode.DATETIME2, 3), "99b27ea0001388", "2024-01-31 10:00:00.500"),
    (column(TypeCode.TIMESTAMP2, 0), "00000000", "0000-00-00 00:00:00"),
    (column(TypeCode.TIMESTAMP2, 6), "00000000000000", "0000-00-00 00:00:00.000000"),
    (column(TypeCode.TIMESTAMP2, 0), "7fffffff", "2038-01-19 03:14:07+00"),
    (column(TypeCode.TIMESTAMP2, 2), "ffffffff63", "2106-02-07 06:28:15.99+00"),
    (column(TypeCode.TIME), "5a0a80", "-838:59:58"),
    (column(TypeCode.DATETIME), "600dd38568120000", "2024-01-31 10:00:00"),
    (column(TypeCode.TIMESTAMP), "01000000", "1970-01-01 00:00:01+00"),
    (column(TypeCode.ENUM, 1, labels=LABELS, collation=UTF8MB4), "00", ""),
    (column(TypeCode.ENUM, 1, labels=LABELS, collation=UTF8MB4), "02", "größer"),
    (column(TypeCode.ENUM, 2, labels=(b"a",) * 300, collation=UTF8MB4), "2c01", "a"),
    (column(TypeCode.SET, 1, labels=LABELS[:2], collation=UTF8MB4), "00", ""),
    (column(TypeCode.SET, 1, labels=LABELS[:2], collation=UTF8MB4), "03", "small,größer"),
    (column(TypeCode.VARCHAR, 80, collation=UTF8MB4), "61c3a420", "aä "),
    (column(TypeCode.STRING, 80, collation=UTF8MB4), "61c3a420", "aä"),
    (column(TypeCode.BLOB, 2, collation=UTF8MB4), "eda080", "?"),
    (column(TypeCode.STRING, 3, collation=BINARY), "6100", "a\0\0"),
    (column(TypeCode.VARCHAR, 3, collation=BINARY), "6100", "a\0"),
    (column(TypeCode.VARCHAR_COMPRESSED, 3, collation=UTF8MB4), "", ""),
    (column(TypeCode.VARCHAR_COMPRESSED, 3, collation=UTF8MB4), "00c3a4", "ä"),
    (
        column(TypeCode.STRING, 16, collation=BINARY, declared="uuid"),
        "00112233445566778899aabbccddeeff",
        "00112233-4455-6677-8899-aabbccddeeff",
    ),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="uuid"), "", "00000000-0000-0000-0000-000000000000"),
    (column(TypeCode.VARCHAR, 8, collation=BINARY, declared="vector(2)"), "0000803f0000c0bf", "[1,-1.5]"),
    (column(TypeCode.STRING, 4, collation=BINARY, declared="inet4"), "c0a8", "192.168.0.0"),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"), "", "::"),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"), "00" * 15 + "01", "::1"),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"), "00" * 10 + "ffffc0a80001", "::ffff:192.168.0.1"),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"), "00" * 12 + "c0a80001", "::192.168.0.1"),
    (
        column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"),
        "20010db8000000000001000000000001",
        "2001:db8::1:0:0:1",
    ),
    (
        column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"),
        "00010002000300000005000600070008",
        "1:2:3::5:6:7:8",
    ),
]


@pytest.mark.parametrize(("of", "raw", "text"), VALUES)
def test_a_value_is_printed_from_its_bytes(of: LogColumn, raw: str, text: str) -> None:
    assert printed(of, bytes.fromhex(raw)).decode() == text


MALFORMED = [  # column, bytes that its type cannot have
    *((of, raw + "00") for of, raw, _ in VALUES if of.collation in (None, UTF8MB4) and of.type not in STRINGS),
    (column(TypeCode.FLOAT, 4), "0000807f"),
    (column(TypeCode.DOUBLE, 8), "000000000000f87f"),
    (column(TypeCode.NEWDECIMAL, decimal_meta(2, 0)), "e4"),
    (column(TypeCode.NEWDECIMAL, decimal_meta(9, 0)), "bb9aca00"),
    (column(TypeCode.BIT, bit_meta(10)), "0400"),
    (column(TypeCode.DATE), "a0d10f"),
    (column(TypeCode.DATE), "21204e"),
    (column(TypeCode.TIME2, 0), "b47000"),
    (column(TypeCode.TIME2, 0), "80003c"),
    (column(TypeCode.TIME2, 2), "80000064"),
    (column(TypeCode.DATETIME2, 0), "7fffffffff"),
    (column(TypeCode.DATETIME2, 0), "8000018000"),
    (column(TypeCode.DATETIME2, 4), "80000000002710"),
    (column(TypeCode.TIMESTAMP2, 6), "000000010f4240"),
    (column(TypeCode.TIME), "3c0000"),
    (column(TypeCode.DATETIME), "ffffffffffffffff"),
    (column(TypeCode.ENUM, 1, labels=LABELS, collation=UTF8MB4), "04"),
    (column(TypeCode.SET, 1, labels=LABELS[:2], collation=UTF8MB4), "04"),
    (column(TypeCode.STRING, 2, collation=BINARY), "616263"),
    (column(TypeCode.STRING, 4, collation=BINARY, declared="inet4"), "0102030405"),
    (column(TypeCode.VARCHAR, 9, collation=UTF8MB4), "ff"),
    (column(TypeCode.VARCHAR_COMPRESSED, 9, collation=BINARY), "9101"),
    (column(TypeCode.VARCHAR_COMPRESSED, 9, collation=BINARY), "84000000"),
    (column(TypeCode.BLOB_COMPRESSED, 2, collation=BINARY), "81015555"),
]


@pytest.mark.parametrize(("of", "raw"), MALFORMED)
def test_bytes_that_the_type_cannot_have_are_malformed(of: LogColumn, raw: str) -> None:
    with pytest.raises(ChangelogError) as raised:
        printed(of, bytes.fromhex(raw))
    assert raised.value.kind is Kind.MALFORMED


ALL = list({case[0] for case in VALUES})


@given(of=st.sampled_from(ALL), raw=st.binary(max_size=20))
def test_any_bytes_are_printed_or_malformed(of: LogColumn, raw: bytes) -> None:
    try:
        text = printed(of, raw)
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
    else:
        codec_for(of).to_json(text).decode()


@st.composite
def decimals(draw: st.DrawFn) -> tuple[int, int, decimal.Decimal]:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(precision, 38)))
    unscaled = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    return precision, scale, decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=70))


def decimal_bytes(precision: int, scale: int, value: decimal.Decimal) -> bytes:
    """Encodes a decimal as MySQL's manual says (chapter *DECIMAL Data Type Characteristics* of *Precision Math*)."""
    sizes = [0, 1, 1, 2, 2, 3, 3, 4, 4]
    whole, _, part = f"{value.copy_abs():0{precision + 1 + (scale > 0)}.{scale}f}".partition(".")
    whole = whole[1:] if len(whole) > precision - scale else whole
    head, tail = len(whole) % 9, len(part) - len(part) % 9
    groups = [whole[:head]] + [whole[at : at + 9] for at in range(head, len(whole), 9)]
    groups += [part[at : at + 9] for at in range(0, tail, 9)] + [part[tail:]]
    octets = b"".join(
        int(group).to_bytes(sizes[len(group)] if len(group) < 9 else 4, "big") for group in groups if group
    )
    if value < 0:
        octets = bytes(octet ^ 0xFF for octet in octets)
    return bytes([octets[0] ^ 0x80]) + octets[1:]


@given(decimals())
def test_decimals_are_printed_with_all_digits(case: tuple[int, int, decimal.Decimal]) -> None:
    precision, scale, value = case
    of = column(TypeCode.NEWDECIMAL, decimal_meta(precision, scale))
    text = f"{value:.{scale}f}"
    assert printed(of, decimal_bytes(precision, scale, value)).decode() == (text if value else text.removeprefix("-"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_double_is_read_back_with_the_same_bits(value: float) -> None:
    text = printed(column(TypeCode.DOUBLE, 8), struct.pack("<d", value))
    assert struct.pack("<d", float(text)) == struct.pack("<d", value)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_printed_float_is_read_back_with_the_same_bits(value: float) -> None:
    text = printed(column(TypeCode.FLOAT, 4), struct.pack("<f", value))
    assert struct.pack("<f", float(text)) == struct.pack("<f", value)


@given(st.timedeltas(timedelta(hours=-838), timedelta(hours=838)), st.integers(0, 6))
def test_times_are_printed_with_the_decimals_of_their_column(value: timedelta, digits: int) -> None:
    us = abs(value) // timedelta(microseconds=1) // 10 ** (6 - digits) * 10 ** (6 - digits)
    seconds, fraction = divmod(us, 1000000)
    size = (digits + 1) // 2
    clock = seconds // 3600 << 12 | seconds // 60 % 60 << 6 | seconds % 60
    stored = clock << 8 * size | fraction // 10 ** (6 - 2 * size)
    negative = value < timedelta(0) and us > 0
    raw = ((0x800000 << 8 * size) + (-stored if negative else stored)).to_bytes(3 + size, "big")
    sign = "-" if negative else ""
    expected = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    assert printed(column(TypeCode.TIME2, digits), raw).decode() == expected[: -(6 - digits) or None].rstrip(".")


@given(st.datetimes(), st.integers(0, 6))
def test_datetimes_are_printed_with_the_decimals_of_their_column(value: datetime, digits: int) -> None:
    size = (digits + 1) // 2
    fraction = value.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits)
    day = (value.year * 13 + value.month) << 5 | value.day
    stored = day << 17 | value.hour << 12 | value.minute << 6 | value.second
    raw = (0x8000000000 + stored).to_bytes(5, "big") + (fraction // 10 ** (6 - 2 * size)).to_bytes(size, "big")
    expected = value.isoformat(" ", "microseconds")[: -(6 - digits) or None].rstrip(".")
    assert printed(column(TypeCode.DATETIME2, digits), raw).decode() == expected


@given(st.integers(1, 2**32 - 1))
def test_timestamps_are_printed_in_utc(seconds: int) -> None:
    expected = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S+00")
    assert printed(column(TypeCode.TIMESTAMP2, 0), seconds.to_bytes(4, "big")).decode() == expected
    assert printed(column(TypeCode.TIMESTAMP), seconds.to_bytes(4, "little")).decode() == expected


@given(st.binary(min_size=1, max_size=300), st.booleans())
def test_compressed_values_are_decompressed(content: bytes, header: bool) -> None:
    length = (len(content).bit_length() + 7) // 8
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS if header else -zlib.MAX_WBITS)
    first = 0x80 | (0 if header else 8) | length
    data = compressor.compress(content) + compressor.flush()
    of = column(TypeCode.BLOB_COMPRESSED, 3, collation=BINARY)
    assert printed(of, bytes([first]) + len(content).to_bytes(length, "big") + data) == content
    for bad in (data[:-1], data + b"\0"):
        with pytest.raises(ChangelogError, match="announces"):
            printed(of, bytes([first]) + len(content).to_bytes(length, "big") + bad)


def test_documents_geometries_and_vectors_are_printed() -> None:
    assert printed(column(TypeCode.JSON, 4), b"\x05\xff\xff") == b"-1"
    assert printed(column(TypeCode.GEOMETRY, 4), b"\x01\0\0\0a") == b'{"srid":1,"wkb":"YQ=="}'
    assert printed(column(TypeCode.VECTOR, 4), struct.pack("<2f", 1, 0.1)) == b"[1,0.1]"


def test_the_largest_double_is_not_printed_as_infinity() -> None:
    assert printed(column(TypeCode.DOUBLE, 8), struct.pack("<d", math.nextafter(math.inf, 0))) == (
        b"1.7976931348623157e+308"
    )


@pytest.mark.parametrize("of", [column(TypeCode.TYPED_ARRAY), column(TypeCode.VARCHAR, 9, collation=9999)])
def test_columns_that_are_not_supported_are_refused(of: LogColumn) -> None:
    with pytest.raises(ChangelogError) as raised:
        printer_for(of, CHARSETS)
    assert raised.value.kind is Kind.PRECONDITION
