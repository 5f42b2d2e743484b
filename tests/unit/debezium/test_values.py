"""Tests how values are published. Debezium has *semantic types*, such as a number that counts days; each is tested."""

import base64
import struct as binary
from typing import Any

import pytest

from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.sources.debezium.values.declared_types import declared_type
from changelog.connectors.sources.debezium.values.semantics import SEMANTIC_TYPES
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from tests.unit.debezium.messages import Schema, changed, event, plain, scalar, source, struct, typed

TIME, DATA = "io.debezium.time", "io.debezium.data"
CONNECT = "org.apache.kafka.connect.data"
DECIMAL = f"{CONNECT}.Decimal"
WKB = base64.b64encode(binary.pack("<bIdd", 1, 1, 1.0, 2.5)).decode()
POINT = struct(
    f"{DATA}.geometry.Point",
    {"x": scalar("double"), "y": scalar("double"), "wkb": scalar("bytes"), "srid": scalar("int32")},
)
GEOMETRY = struct(f"{DATA}.geometry.Geometry", {"wkb": scalar("bytes"), "srid": scalar("int32")})
VARIABLE = struct(f"{DATA}.VariableScaleDecimal", {"scale": scalar("int32"), "value": scalar("bytes")})
SPARSE = struct(
    f"{DATA}.SparseVector",
    {
        "dimensions": scalar("int16"),
        "vector": {"type": "map", "keys": scalar("int16"), "values": scalar("double"), "optional": False},
    },
)


def array(items: Schema, name: str | None = None) -> Schema:
    return {"type": "array", "items": items, "optional": True, **({"name": name} if name else {})}


VALUES: list[tuple[Schema, Any, str, ColumnType]] = [
    (scalar("boolean"), True, "true", Primitive.BOOLEAN),
    (scalar("int8"), -128, "-128", Primitive.INT),
    (scalar("int16"), 7, "7", Primitive.INT),
    (scalar("int32"), -2147483648, "-2147483648", Primitive.INT),
    (scalar("int64"), -(1 << 63), "-9223372036854775808", Primitive.LONG),
    (scalar("float"), 1.1, "1.1", Primitive.FLOAT),
    (scalar("float"), 16777216.0, "1.6777216e+07", Primitive.FLOAT),
    (scalar("float"), 7.7894053e33, "7.7894053e+33", Primitive.FLOAT),
    (scalar("double"), 100.0, "100", Primitive.DOUBLE),
    (scalar("double"), -0.0, "-0", Primitive.DOUBLE),
    (scalar("double"), 1e-7, "1e-07", Primitive.DOUBLE),
    (scalar("double"), 1e23, "9.999999999999999e+22", Primitive.DOUBLE),
    (scalar("double"), "NaN", '"NaN"', Primitive.DOUBLE),
    (scalar("string"), 'a"\\ü\x1f', '"a\\"\\\\ü\\u001f"', Primitive.STRING),
    (scalar("bytes"), "AP8Q", '"AP8Q"', Primitive.BYTES),
    (scalar("int32", f"{TIME}.Date"), 20778, '"2026-11-21"', Primitive.DATE),
    (scalar("int32", f"{TIME}.Date"), -719163, '"0001-12-31 BC"', Primitive.DATE),
    (scalar("int32", f"{TIME}.Date"), 2932897, '"10000-01-01"', Primitive.DATE),
    (scalar("int32", f"{TIME}.Time"), 11402500, '"03:10:02.5"', Primitive.TIME),
    (scalar("int64", f"{TIME}.MicroTime"), -3020399000000, '"-838:59:59"', Primitive.TIME),
    (scalar("int64", f"{TIME}.NanoTime"), 1, '"00:00:00.000000001"', Primitive.TIME),
    (scalar("int64", f"{TIME}.Timestamp"), 1795230602123, '"2026-11-21T03:10:02.123000"', Primitive.TIMESTAMP),
    (scalar("int64", f"{TIME}.MicroTimestamp"), -1, '"1969-12-31T23:59:59.999999"', Primitive.TIMESTAMP),
    (scalar("int64", f"{TIME}.NanoTimestamp"), 1000, '"1970-01-01T00:00:00.000001"', Primitive.TIMESTAMP),
    (scalar("int64", f"{TIME}.NanoTimestamp"), 100, '"1970-01-01T00:00:00.000000100"', Primitive.TIMESTAMP),
    (scalar("string", f"{TIME}.ZonedTime"), "01:10:02.5Z", '"01:10:02.5+00"', Primitive.STRING),
    (scalar("string", f"{TIME}.ZonedTime"), "01:10:02+02:00", '"01:10:02+02:00"', Primitive.STRING),
    (
        scalar("string", f"{TIME}.ZonedTimestamp"),
        "2026-11-21T03:10:02.5+02:00",
        '"2026-11-21T01:10:02.500000Z"',
        Primitive.TIMESTAMP_TZ,
    ),
    (scalar("string", f"{TIME}.IsoDate"), "2026-11-21Z", '"2026-11-21"', Primitive.DATE),
    (scalar("string", f"{TIME}.IsoTime"), "03:10:02.50Z", '"03:10:02.5"', Primitive.TIME),
    (
        scalar("string", f"{TIME}.IsoTimestamp"),
        "-0043-03-15T01:02:03.25Z",
        '"0044-03-15 01:02:03.25 BC"',
        Primitive.TIMESTAMP,
    ),
    (scalar("string", f"{TIME}.Interval"), "P1Y2M-3DT4H5M6.500000S", '"P1Y2M-3DT4H5M6.5S"', Primitive.STRING),
    (scalar("string", f"{TIME}.Interval"), "P0Y0M0DT0H0M0S", '"PT0S"', Primitive.STRING),
    (scalar("int64", f"{TIME}.MicroDuration"), 14706500000, '"PT4H5M6.5S"', Primitive.STRING),
    (scalar("int64", f"{TIME}.NanoDuration"), -1, '"PT-0.000000001S"', Primitive.STRING),
    (scalar("int32", f"{TIME}.Year"), 2026, "2026", Primitive.INT),
    (scalar("int32", f"{CONNECT}.Date"), 0, '"1970-01-01"', Primitive.DATE),
    (scalar("int32", f"{CONNECT}.Time"), 86400000, '"24:00:00"', Primitive.TIME),
    (scalar("int64", f"{CONNECT}.Timestamp"), 0, '"1970-01-01T00:00:00.000000"', Primitive.TIMESTAMP),
    (
        {**scalar("bytes", DECIMAL), "parameters": {"scale": "2", "connect.decimal.precision": "12"}},
        "+w==",
        '"-0.05"',
        Decimal(precision=12, scale=2),
    ),
    (scalar("bytes", DECIMAL, scale="2"), "BUY=", '"13.50"', Primitive.STRING),
    (scalar("bytes", DECIMAL, scale="-2"), "AQ==", '"100"', Primitive.STRING),
    (scalar("bytes", DECIMAL, scale="2"), 13.5, '"13.50"', Primitive.STRING),
    (VARIABLE, {"scale": 1, "value": "/nEW8Ak8jB8RscD1KQ=="}, '"-12345678901234567890123456789.5"', Primitive.STRING),
    (scalar("bytes", f"{DATA}.Bits", length="10"), "AQE=", '"0100000001"', Primitive.STRING),
    (scalar("bytes", f"{DATA}.Bits", length="2147483647"), "DA==", '"1100"', Primitive.STRING),
    (scalar("string", f"{DATA}.Enum", allowed="a,b"), "a", '"a"', Primitive.STRING),
    (scalar("string", f"{DATA}.EnumSet", allowed="a,b"), "a,b", '"a,b"', Primitive.STRING),
    (scalar("string", f"{DATA}.Json"), '{"a": 1.0}', '{"a": 1.0}', Primitive.JSON),
    (scalar("string", f"{DATA}.Json"), "null", "null", Primitive.JSON),
    (scalar("string", f"{DATA}.Json"), "{broken", '"{broken"', Primitive.JSON),
    (scalar("string", f"{DATA}.Xml"), "<a/>", '"<a/>"', Primitive.STRING),
    (
        scalar("string", f"{DATA}.Uuid"),
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"',
        Primitive.UUID,
    ),
    (scalar("string", f"{DATA}.Ltree"), "a.b", '"a.b"', Primitive.STRING),
    (scalar("string", f"{DATA}.Tsvector"), "'cat':2", "\"'cat':2\"", Primitive.STRING),
    (POINT, {"x": 1.0, "y": 2.5, "wkb": WKB, "srid": None}, '"(1,2.5)"', Primitive.STRING),
    (
        GEOMETRY,
        {"wkb": WKB, "srid": 4326},
        f'{{"srid":4326,"wkb":"{WKB}"}}',
        Struct(fields=(("srid", Primitive.LONG), ("wkb", Primitive.BYTES))),
    ),
    (array(scalar("float"), f"{DATA}.FloatVector"), [1.0, 0.5], "[1,0.5]", Array(element=Primitive.FLOAT)),
    (array(scalar("double"), f"{DATA}.DoubleVector"), [], "[]", Array(element=Primitive.DOUBLE)),
    (
        SPARSE,
        {"dimensions": 5, "vector": [[1, 0.5], [4, 2.0]]},
        '{"dimensions":5,"vector":{"1":0.5,"4":2}}',
        Struct(fields=(("dimensions", Primitive.INT), ("vector", Map(value=Primitive.DOUBLE)))),
    ),
    (
        array(scalar("int32", f"{TIME}.Date")),
        [0, None],
        '["1970-01-01",null]',
        Array(element=Primitive.DATE),
    ),
    (
        {"type": "map", "keys": scalar("string"), "values": scalar("string"), "optional": True},
        {"a": "1", 'b"': None},
        '{"a":"1","b\\"":null}',
        Map(value=Primitive.STRING),
    ),
    (
        struct("shop.Address", {"zip": scalar("string"), "n": scalar("int32")}),
        {"zip": "x", "n": None},
        '{"zip":"x","n":null}',
        Struct(fields=(("zip", Primitive.STRING), ("n", Primitive.INT))),
    ),
    (scalar("int64", "com.example.Money"), 5, "5", Primitive.LONG),
]


@pytest.mark.parametrize(("schema", "value", "token", "type_"), VALUES)
def test_values_of_each_semantic_type_are_published(schema: Schema, value: Any, token: str, type_: ColumnType) -> None:
    row = changed(typed({"c": schema}, event("c", None, {"c": value})))
    assert row.after == (token.encode(),)
    assert row.table.columns[0].codec.column_type == type_
    assert row.table.columns[0].optional is schema["optional"]


@pytest.mark.parametrize("schema", [schema for schema, *_ in VALUES])
def test_null_is_published_as_null_for_each_type(schema: Schema) -> None:
    assert changed(typed({"c": schema}, event("c", None, {"c": None}))).after == (None,)


@pytest.mark.parametrize("schema", [schema for schema, *_ in VALUES if schema["type"] != "struct"])
@pytest.mark.parametrize("value", [{"a": {}}, ["x", {}], "\ud7ff*", 1.25, True, 1 << 70, "{broken", -5])
def test_a_value_of_another_type_is_refused(schema: Schema, value: Any) -> None:
    message = typed({"c": schema}, event("c", None, {"c": value}))
    try:
        changed(message)
    except ChangelogError as error:
        assert error.kind is Kind.MALFORMED  # noqa: PT017
        assert "a value of column c does not fit its type" in error.message  # noqa: PT017
        assert "shop.public.orders" in error.message  # noqa: PT017


def test_an_unknown_type_is_published_as_its_base_type_with_one_warning() -> None:
    warnings: list[str] = []
    message = typed({"c": scalar("string", "com.example.Money")}, event("c", None, {"c": "5 EUR"}))
    assert changed(message, warn=warnings.append).after == (b'"5 EUR"',)
    [warning] = warnings
    assert warning == (
        "column c of the table public.orders has the unknown type com.example.Money; "
        "values are published as its base type"
    )


def test_a_point_of_mysql_is_a_geometry() -> None:
    block = source("mysql", db="shop", table="orders", ts_ms=1)
    row = changed(typed({"c": POINT}, event("c", None, {"c": {"x": 1.0, "y": 2.5, "wkb": WKB, "srid": None}}, block)))
    assert row.after == (f'{{"srid":0,"wkb":"{WKB}"}}'.encode(),)


PLACEHOLDER = "__debezium_unavailable_value"
ENCODED = base64.b64encode(PLACEHOLDER.encode()).decode()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (scalar("string"), PLACEHOLDER),
        (scalar("string"), PLACEHOLDER.encode().hex()),
        (scalar("bytes"), ENCODED),
        (scalar("string", f"{DATA}.Json"), PLACEHOLDER),
        (scalar("string", f"{DATA}.Uuid"), "b68a35a7-17ad-35b3-af2a-ae46edb4545a"),
        (array(scalar("string")), [PLACEHOLDER]),
        (array(scalar("bytes")), [ENCODED]),
        (array(scalar("int32")), [*PLACEHOLDER.encode()]),
        (
            {"type": "map", "keys": scalar("string"), "values": scalar("string"), "optional": True},
            {PLACEHOLDER: PLACEHOLDER},
        ),
    ],
)
def test_placeholders_are_unavailable(schema: Schema, value: Any) -> None:
    row = changed(typed({"id": scalar("int32"), "c": schema}, event("u", None, {"id": 1, "c": value})))
    assert row.after == (b"1", UNCHANGED)


def test_a_placeholder_in_hexadecimal_is_unavailable() -> None:
    columns = {"c": scalar("bytes"), "d": array(scalar("int32"))}
    message = typed(columns, event("u", None, {"c": "AP8=", "d": [0, -1]}))
    assert changed(message, placeholder="hex:00ff").after == (UNCHANGED, UNCHANGED)


DECLARED: list[tuple[str, Any, str, ColumnType]] = [
    ("long", 5, "5", Primitive.LONG),
    ("string", "x", '"x"', Primitive.STRING),
    ("boolean", False, "false", Primitive.BOOLEAN),
    ("double", 2.0, "2", Primitive.DOUBLE),
    ("decimal(12,2)", "13.5", '"13.50"', Decimal(precision=12, scale=2)),
    ("decimal(12,2)", 13.5, '"13.50"', Decimal(precision=12, scale=2)),
    ("decimal(12,2)", "NaN", '"NaN"', Decimal(precision=12, scale=2)),
    ("Decimal(12,2)", "BUY=", '"13.50"', Decimal(precision=12, scale=2)),
    ("Decimal(2)", "BUY=", '"13.50"', Primitive.STRING),
    ("bytes", "AP8=", '"AP8="', Primitive.BYTES),
    ("bytes(hex)", "00ff", '"AP8="', Primitive.BYTES),
    ("bytes(base64-url-safe)", "_-8", '"/+8="', Primitive.BYTES),
    ("json", {"a": [1.50]}, '{"a":[1.5]}', Primitive.JSON),
    ("json", '{"a": 1}', '{"a": 1}', Primitive.JSON),
    ("date", 20778, '"2026-11-21"', Primitive.DATE),
    ("date", "2026-11-21", '"2026-11-21"', Primitive.DATE),
    ("time", "03:10:02.50", '"03:10:02.5"', Primitive.TIME),
    ("timestamp", "2026-11-21T03:10:02", '"2026-11-21T03:10:02.000000"', Primitive.TIMESTAMP),
    ("timestamp_tz", "2026-11-21T03:10:02Z", '"2026-11-21T03:10:02.000000Z"', Primitive.TIMESTAMP_TZ),
    ("io.debezium.time.MicroTimestamp", 1, '"1970-01-01T00:00:00.000001"', Primitive.TIMESTAMP),
    ("Timestamp", 1, '"1970-01-01T00:00:00.001000"', Primitive.TIMESTAMP),
    ("Bits(4)", "BQ==", '"0101"', Primitive.STRING),
    ("VariableScaleDecimal", {"scale": 1, "value": "BQ=="}, '"0.5"', Primitive.STRING),
    ("array(decimal(4,1))", ["1.5", None], '["1.5",null]', Array(element=Decimal(precision=4, scale=1))),
]


@pytest.mark.parametrize(("declared", "value", "token", "type_"), DECLARED)
def test_values_of_declared_types_are_published(declared: str, value: Any, token: str, type_: ColumnType) -> None:
    message = plain(event("c", None, {"id": 1, "c": value}), {"id": 1})
    row = changed(message, types={("public", "orders"): {"id": "int", "c": declared}})
    assert row.after == (b"1", token.encode())
    assert row.table.columns[1].codec.column_type == type_
    assert row.key == (b"1",)


@pytest.mark.parametrize("declared", ["time", "timestamp", "timestamp_tz"])
def test_a_number_needs_a_semantic_type_that_says_what_it_counts(declared: str) -> None:
    with pytest.raises(ChangelogError, match="column c does not fit") as caught:
        changed(plain(event("c", None, {"c": 1})), types={("public", "orders"): {"c": declared}})
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize(
    "declared", ["", "nothing", "decimal", "decimal(2,3)", "Decimal", "bytes(rot13)", "long(3)", "array(x)", "Json(1)"]
)
def test_a_declared_type_that_does_not_exist_is_refused(declared: str) -> None:
    with pytest.raises(ChangelogError, match="there is no type") as caught:
        declared_type(declared, "postgresql")
    assert caught.value.kind is Kind.USAGE


@pytest.mark.parametrize("name", sorted(SEMANTIC_TYPES))
def test_every_semantic_type_can_be_declared(name: str) -> None:
    arguments = "(12,2)" if name == DECIMAL else ""
    declared = declared_type(name + arguments, "mysql")
    assert declared_type(name.rpartition(".")[2] + arguments, "mysql").semantics.column_type == (
        declared.semantics.column_type
    )


def test_the_error_names_a_column_without_a_declared_type() -> None:
    with pytest.raises(ChangelogError, match=r"column note of the table public\.orders has no declared type") as caught:
        changed(plain(event("c", None, {"id": 1, "note": "x"})), types={("public", "orders"): {"id": "int"}})
    assert caught.value.kind is Kind.PRECONDITION
    assert caught.value.hint is not None
    assert "note = " in caught.value.hint
