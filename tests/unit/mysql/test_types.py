"""Tests which JSON is published for a value of each type. The JSON is made from the text that is printed for the value
(see `test_printed.py`).
"""

import pytest

from changelog.connectors.capture.rows.codec import Shape
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.spatial import GEOMETRY_TYPE
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, codec_for
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, ColumnType, Decimal, Primitive
from tests.unit.mysql.value_columns import UTF8MB4, column, decimal_meta

VALUES: list[tuple[LogColumn, str, str, ColumnType]] = [  # column, printed text, JSON, type
    (column(TypeCode.TINY), "1", "1", Primitive.INT),
    (column(TypeCode.INT24, unsigned=True), "1", "1", Primitive.INT),
    (column(TypeCode.LONG), "-1", "-1", Primitive.INT),
    (column(TypeCode.LONG, unsigned=True), "4294967295", "4294967295", Primitive.LONG),
    (column(TypeCode.LONGLONG), "7", "7", Primitive.LONG),
    (column(TypeCode.LONGLONG, unsigned=True), "7", '"7"', Decimal(precision=20, scale=0)),
    (column(TypeCode.YEAR), "0", "0", Primitive.INT),
    (column(TypeCode.FLOAT, 4), "-0", "-0", Primitive.FLOAT),
    (column(TypeCode.DOUBLE, 8), "1e+16", "1e+16", Primitive.DOUBLE),
    (column(TypeCode.NEWDECIMAL, decimal_meta(9, 2)), "1.50", '"1.50"', Decimal(precision=9, scale=2)),
    (column(TypeCode.BIT, 3), "101", '"101"', Primitive.STRING),
    (column(TypeCode.DATE), "0000-00-00", '"0000-00-00"', Primitive.DATE),
    (column(TypeCode.TIME2, 1), "-838:59:59.0", '"-838:59:59.0"', Primitive.TIME),
    (column(TypeCode.DATETIME2), "2024-01-31 10:00:00", '"2024-01-31T10:00:00.000000"', Primitive.TIMESTAMP),
    (column(TypeCode.DATETIME2, 2), "2024-01-31 10:00:00.25", '"2024-01-31T10:00:00.250000"', Primitive.TIMESTAMP),
    (column(TypeCode.DATETIME2), "2024-01-00 10:00:00", '"2024-01-00 10:00:00"', Primitive.TIMESTAMP),
    (column(TypeCode.DATETIME), "0000-01-01 10:00:00", '"0000-01-01 10:00:00"', Primitive.TIMESTAMP),
    (column(TypeCode.TIMESTAMP2), "2024-01-31 10:00:00+00", '"2024-01-31T10:00:00.000000Z"', Primitive.TIMESTAMP_TZ),
    (column(TypeCode.TIMESTAMP), "0000-00-00 00:00:00", '"0000-00-00 00:00:00"', Primitive.TIMESTAMP_TZ),
    (column(TypeCode.STRING, 9, collation=UTF8MB4), 'a"', '"a\\""', Primitive.STRING),
    (column(TypeCode.BLOB, 2, collation=UTF8MB4), "a\n", '"a\\n"', Primitive.STRING),
    (column(TypeCode.BLOB, 2, collation=BINARY), "ab", '"YWI="', Primitive.BYTES),
    (column(TypeCode.ENUM, 1, collation=UTF8MB4), "", '""', Primitive.STRING),
    (column(TypeCode.SET, 1, collation=UTF8MB4), "a,b", '"a,b"', Primitive.STRING),
    (column(TypeCode.JSON, 4, declared="json"), '{"a": 1}', '{"a": 1}', Primitive.JSON),
    (column(TypeCode.GEOMETRY, 4), '{"srid":0,"wkb":""}', '{"srid":0,"wkb":""}', GEOMETRY_TYPE),
    (column(TypeCode.VECTOR, 4), "[1.5]", "[1.5]", Array(element=Primitive.FLOAT)),
    (column(TypeCode.BLOB, 4, collation=46, declared="json"), '{"a": 1}', '{"a": 1}', Primitive.JSON),
    (column(TypeCode.BLOB, 4, collation=46, declared="json"), '{"a": NaN}', '"{\\"a\\": NaN}"', Primitive.JSON),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="uuid"), "0-1", '"0-1"', Primitive.UUID),
    (column(TypeCode.STRING, 16, collation=BINARY, declared="inet6"), "::", '"::"', Primitive.STRING),
    (
        column(TypeCode.VARCHAR, 8, collation=BINARY, declared="vector(2)"),
        "[1,2]",
        "[1,2]",
        Array(element=Primitive.FLOAT),
    ),
    (column(TypeCode.STRING, 4, collation=BINARY, declared="inet4"), "0.0.0.0", '"0.0.0.0"', Primitive.STRING),
]


@pytest.mark.parametrize(("of", "text", "json", "type_"), VALUES)
def test_each_type_has_its_json_and_its_neutral_type(of: LogColumn, text: str, json: str, type_: ColumnType) -> None:
    codec = codec_for(of)
    assert codec.to_json(text.encode()).decode() == json
    assert codec.column_type == type_
    assert (codec.shape is Shape.RAW) <= (json == text)
    assert (codec.shape is Shape.PLAIN) <= (json == f'"{text}"')


def test_a_type_that_no_table_has_is_refused() -> None:
    with pytest.raises(ChangelogError, match="column c has the type 20") as raised:
        codec_for(column(TypeCode.TYPED_ARRAY))
    assert raised.value.kind is Kind.PRECONDITION


def test_a_time_whose_size_is_not_in_the_log_is_refused() -> None:
    old = "time /* mariadb-5.3 */"
    assert codec_for(column(TypeCode.TIME, declared=old)).column_type is Primitive.TIME
    with pytest.raises(ChangelogError, match="cannot be published"):
        codec_for(column(TypeCode.TIME, declared="time(3) /* mariadb-5.3 */"))
