"""Tests how table maps are read. A table map is an event of the binary log that describes a table.

Table maps of random tables are encoded and read back. Table maps that no server writes must be refused.
"""

from functools import partial

import pytest
from hypothesis import given

from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.table_maps.table_description import describe
from changelog.connectors.sources.mysql.decode.rows.value_framing import framing
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.reading import attempt
from tests.unit.mysql.table_encoder import NAMED, SIGNED, Table, table_body, table_map, table_of, tables


@given(table=tables())
def test_every_table_is_read_back(table: Table) -> None:
    description = table_map(table_body(table), table.dialect).description
    assert (description.schema, description.table) == (table.schema, table.name)
    assert description.columns == table.columns
    assert description.width == len(table.columns)
    assert description.primary_key == table.primary_key
    assert description.invisible == table.invisible
    assert description.geometry_types == table.geometry_types


@given(table=tables())
def test_a_table_map_that_lacks_its_last_bytes_is_refused_or_has_fewer_optional_fields(table: Table) -> None:
    content = table_body(table)
    for length in range(len(content)):
        description = attempt(partial(describe, content[:length], table.dialect))
        assert description is None or description.columns in (None, table.columns)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (table_of((TypeCode.DECIMAL, b"")), "a column of the unknown type 0"),
        (table_of((TypeCode.DOUBLE, b"\4")), "the metadata 4 for a column of the type DOUBLE"),
        (table_of((TypeCode.NEWDECIMAL, b"\5\6")), "for a column of the type NEWDECIMAL"),
        (table_of((TypeCode.NEWDECIMAL, b"\x42\0")), "for a column of the type NEWDECIMAL"),
        (table_of((TypeCode.BIT, b"\0\0")), "for a column of the type BIT"),
        (table_of((TypeCode.BIT, b"\1\x08")), "for a column of the type BIT"),
        (table_of((TypeCode.TIME2, b"\7")), "for a column of the type TIME2"),
        (table_of((TypeCode.BLOB, b"\5")), "for a column of the type BLOB"),
        (table_of((TypeCode.STRING, b"\xf7\3")), "a string column of the type 247 and the length 3"),
        (table_of((TypeCode.STRING, b"\xf8\5")), "a string column of the type 248 and the length 5"),
        (table_of((TypeCode.STRING, b"\x01\1")), "a string column of the type 1 and the length 1"),
        (table_of((TypeCode.LONG, b"?")), "1 extra bytes after the metadata of the columns"),
        (NAMED, "a table map with names, but without the optional field 1"),
        (NAMED + b"\1\2\0\0", "1 extra bytes after the signs of the numeric columns"),
        (NAMED + SIGNED + SIGNED, "the optional field 1 twice (byte 44"),
        (NAMED + SIGNED + b"\x08\1\1", "the column index 1 of only 1 columns"),
        (NAMED + SIGNED + b"\x0c\2\0\0", "1 extra bytes after the visibility of the columns"),
        (NAMED[:-2] + b"\2ab", "too few bytes for a field"),
        (NAMED[:-3] + b"\3\1ab" + SIGNED, "1 extra bytes after the names of the columns"),
        (table_of((TypeCode.BLOB, b"\1")) + b"\4\2\1a", "without the optional field 3"),
        (table_of((TypeCode.BLOB, b"\1")) + b"\4\2\1a\2\3\x08\1\x09", "the column index 1 of only 1 columns"),
        (table_of((TypeCode.BLOB, b"\1")) + b"\4\2\1a\3\2\x08\x08", "1 extra bytes after the collations"),
        (table_of((TypeCode.STRING, b"\xf7\1")) + b"\4\2\1a\x0a\1\x08", "without the optional field 6"),
        (table_of((TypeCode.STRING, b"\xf8\1")) + b"\4\2\1a\x0a\1\x08\5\3\1\1ab", "too few bytes for a field"),
    ],
)
def test_a_table_that_no_server_writes_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ChangelogError) as caught:
        table_map(content).columns  # noqa: B018
    assert caught.value.kind is Kind.MALFORMED
    assert problem in caught.value.message


def test_a_hidden_array_of_an_index_is_known_but_has_no_values() -> None:
    content = table_of((TypeCode.TYPED_ARRAY, b"\x0f\x20\0\0"), (TypeCode.TYPED_ARRAY, b"\xf6\x0a\2")) + b"\4\4\1a\1b"
    columns = table_map(content).columns
    assert columns is not None
    assert {column.type for column in columns} == {TypeCode.TYPED_ARRAY}
    with pytest.raises(ChangelogError) as caught:
        framing(columns[0])
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize(
    ("version", "geometry_has_collation", "year_has_sign"),
    [
        ("8.0.15", False, False),
        ("8.0.20-11", False, False),
        ("8.0.22", False, None),
        ("8.0.36-28", False, True),
        ("9.7.4-2", False, True),
        ("10.11.6-MariaDB-log", True, True),
        ("unknown", False, None),
    ],
)
def test_the_version_of_a_server_decides_the_format_of_its_table_maps(
    version: str, geometry_has_collation: bool, year_has_sign: bool | None
) -> None:
    expected = Dialect(geometry_has_collation=geometry_has_collation, year_has_sign=year_has_sign)
    assert Dialect.of(version) == expected


UNKNOWN = Dialect(geometry_has_collation=False, year_has_sign=None)
YEAR_AND_INT = table_of((TypeCode.YEAR, b""), (TypeCode.LONG, b"")) + b"\4\4\1a\1b"


@pytest.mark.parametrize("signs", [b"\1\1\0", b"\1\1\xc0"])
def test_signs_are_read_if_it_does_not_matter_whether_years_have_signs(signs: bytes) -> None:
    columns = table_map(YEAR_AND_INT + signs, UNKNOWN).columns
    assert columns is not None
    assert columns[1].unsigned is (signs[2] > 0)


@pytest.mark.parametrize("signs", [b"\1\1\x40", b"\1\1\x80", b"\1\2\0\0", b""])
def test_signs_that_can_be_read_in_two_ways_are_refused(signs: bytes) -> None:
    with pytest.raises(ChangelogError, match="does not show whether a YEAR column has one"):
        table_map(YEAR_AND_INT + signs, UNKNOWN).columns  # noqa: B018


def test_signs_are_read_if_no_column_is_a_year() -> None:
    columns = table_map(table_of((TypeCode.LONG, b"")) + b"\4\2\1a\1\1\x80", UNKNOWN).columns
    assert columns is not None
    assert columns[0].unsigned
