"""Tests how values in the result of a SELECT are converted. The texts must be the same as those that are printed from
the binary log.

These tests need no server. On real servers, `test_values_oracle.py` compares the two texts of each value.
"""

import pytest

from changelog.connectors.sources.mysql.values.catalog_columns import CatalogColumn, column_of
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.selected import selected
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, codec_for
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, Primitive
from tests.unit.mysql.value_columns import UTF8MB4, bit_meta, column


@pytest.mark.parametrize(
    ("of", "sent", "printed"),
    [
        (column(TypeCode.LONG, declared="int(8) unsigned zerofill"), b"00000420", b"420"),
        (column(TypeCode.LONG, declared="int(8) unsigned zerofill"), b"00000000", b"0"),
        (column(TypeCode.NEWDECIMAL, declared="decimal(5,2) unsigned zerofill"), b"000.50", b"0.50"),
        (column(TypeCode.YEAR, declared="year(4)"), b"0000", b"0"),
        (column(TypeCode.YEAR, declared="year(2)"), b"69", b"2069"),
        (column(TypeCode.YEAR, declared="year(2)"), b"70", b"1970"),
        (column(TypeCode.FLOAT, 4), b"0.10000000149011612", b"0.1"),
        (column(TypeCode.DOUBLE, 8), b"-0", b"-0"),
        (column(TypeCode.BIT, bit_meta(10)), b"\x02\x03", b"1000000011"),
        (column(TypeCode.TIMESTAMP2, 1), b"2024-01-31 10:00:00.5", b"2024-01-31 10:00:00.5+00"),
        (column(TypeCode.TIMESTAMP2, 1), b"0000-00-00 00:00:00.0", b"0000-00-00 00:00:00.0"),
        (column(TypeCode.VARCHAR, 9, collation=UTF8MB4), b"a\xed\xa0\x80", b"a?"),
        (column(TypeCode.VARCHAR, 8, collation=BINARY, declared="vector(2)"), b"\0\0\x80\x3f\0\0\0\0", b"[1,0]"),
    ],
)
def test_a_value_that_the_server_sends_in_another_form_is_converted(of: LogColumn, sent: bytes, printed: bytes) -> None:
    convert = selected(of).convert
    assert convert is not None
    assert convert(sent) == printed


@pytest.mark.parametrize(
    ("of", "sent"),
    [
        (column(TypeCode.FLOAT, 4), b"a"),
        (column(TypeCode.DOUBLE, 8), b"inf"),
        (column(TypeCode.YEAR, declared="year(2)"), b"a"),
        (column(TypeCode.BIT, bit_meta(10)), b"\x04\x03"),
        (column(TypeCode.VARCHAR, 9, collation=UTF8MB4), b"\xff"),
    ],
)
def test_values_that_no_server_sends_are_malformed(of: LogColumn, sent: bytes) -> None:
    convert = selected(of).convert
    assert convert is not None
    with pytest.raises(ChangelogError) as raised:
        convert(sent)
    assert raised.value.kind is Kind.MALFORMED


def test_a_hidden_column_cannot_be_selected() -> None:
    with pytest.raises(ChangelogError) as raised:
        selected(column(TypeCode.TYPED_ARRAY))
    assert raised.value.kind is Kind.PRECONDITION


def row(data_type: str, column_type: str) -> CatalogColumn:
    return CatalogColumn("c", data_type, column_type, "NO", None, None, None, None, None)


def test_a_vector_is_published_as_an_array_of_floats() -> None:
    assert codec_for(column_of(row("vector", "vector(2)"), {})).column_type == Array(element=Primitive.FLOAT)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ChangelogError, match="column c has the type xmltype") as raised:
        column_of(row("xmltype", "xmltype"), {})
    assert raised.value.kind is Kind.PRECONDITION
