"""Tests how values are converted to JSON from the text that the server prints. `test_values_oracle.py` tests this with
a server.
"""

import contextlib
import json
import re
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.rows import codec as codecs
from changelog.connectors.capture.rows.codec import Shape, canonical, string
from changelog.connectors.sources.postgres.values import literals
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS, codec_for
from changelog.connectors.sources.postgres.values.types import (
    CompositeAttribute,
    PgType,
    TypeCatalog,
    TypeKind,
    in_doubt,
)
from changelog.envelope.errors import ChangelogError
from changelog.envelope.errors import Kind as ErrorKind
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct


def base(name: str, kind: TypeKind = "base") -> PgType:
    return PgType(oid=1, name=name, kind=kind)


def array(element: PgType, delimiter: bytes = b",") -> PgType:
    return PgType(oid=2, name="_array", kind="array", element=element, delimiter=delimiter)


def range_(element: PgType) -> PgType:
    return PgType(oid=3, name="range", kind="range", element=element)


def multirange(element: PgType) -> PgType:
    return PgType(oid=4, name="multirange", kind="multirange", element=range_(element))


def composite(*attributes: tuple[str, PgType]) -> PgType:
    fields = tuple(CompositeAttribute(name=name, type=type_, typmod=-1) for name, type_ in attributes)
    return PgType(oid=5, name="public.pair", kind="composite", fields=fields)


def domain(over: PgType, typmod: int = -1) -> PgType:
    return PgType(oid=6, name="public.domain", kind="domain", base=over, typmod=typmod)


def numeric(precision: int, scale: int) -> int:
    """Returns the type modifier of numeric(precision, scale), as it is in PostgreSQL's catalogue."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


PAIR = composite(("a", base("int4")), ('b"', base("text")))

VALUES = [  # type, the server's text, the JSON value
    (base("bool"), "t", "true"),
    (base("bool"), "f", "false"),
    (base("int8"), "-9223372036854775808", "-9223372036854775808"),
    (base("float8"), "-0", "-0"),
    (base("float8"), "1e-07", "1e-07"),
    (base("float4"), "NaN", '"NaN"'),
    (base("float8"), "-Infinity", '"-Infinity"'),
    (base("numeric"), "1.50", '"1.50"'),
    (base("numeric"), "NaN", '"NaN"'),
    (base("text"), 'é"\\\n\x01', r'"é\"\\\n\u0001"'),
    (base("bpchar"), "a    ", '"a    "'),
    (base("char"), "\\303", r'"\\303"'),
    (base("char"), "", '""'),
    (base("bytea"), "\\x00ff10", '"AP8Q"'),
    (base("bytea"), "\\x", '""'),
    (base("date"), "0044-03-15 BC", '"0044-03-15 BC"'),
    (base("date"), "infinity", '"infinity"'),
    (base("time"), "24:00:00", '"24:00:00"'),
    (base("timestamp"), "2026-11-21 03:10:02.5", '"2026-11-21T03:10:02.500000"'),
    (base("timestamp"), "0044-03-15 00:00:00 BC", '"0044-03-15 00:00:00 BC"'),
    (base("timestamptz"), "9999-12-31 23:59:59+00", '"9999-12-31T23:59:59.000000Z"'),
    (base("timestamptz"), "10000-01-01 00:00:00+00", '"10000-01-01 00:00:00+00"'),
    (base("timestamptz"), "-infinity", '"-infinity"'),
    (base("interval"), "P1Y2M-3DT-4H", '"P1Y2M-3DT-4H"'),
    (base("money"), "-$1,234.50", '"-$1,234.50"'),
    (base("xid8"), "18446744073709551615", '"18446744073709551615"'),
    (base("int2vector"), "1 2", '"1 2"'),
    (base("json"), '{"b" : 1.0,\n"a":[]}', '{"b" : 1.0,\n"a":[]}'),
    (base("jsonb"), "null", "null"),
    (base("jsonb"), '"1"', '"1"'),
    (base("jsonb"), "1", "1"),
    (base("hstore"), '"a\\""=>"1, \\\\", "b"=>NULL', r'{"a\"":"1, \\","b":null}'),
    (base("hstore"), "", "{}"),
    (base("public.geometry"), 'any "text"', r'"any \"text\""'),
    (base("public.mood", "enum"), 'a"b', r'"a\"b"'),
    (base("99", "unknown"), "x", '"x"'),
    (domain(domain(base("int4"))), "7", "7"),
    (array(base("int4")), "{1,NULL,3}", "[1,null,3]"),
    (array(base("int4")), "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
    (array(base("int4")), "{}", "[]"),
    (array(base("int4")), "[0:1]={1,2}", '"[0:1]={1,2}"'),
    (array(base("text")), r'{"NULL",null,"",a b,"q\"\\,{}"}', r'["NULL","null","","a b","q\"\\,{}"]'),
    (array(base("box"), b";"), "{(2,2),(1,1);(4,4),(3,3)}", '["(2,2),(1,1)","(4,4),(3,3)"]'),
    (array(base("jsonb")), r'{"{\"b\": 1}",NULL}', '[{"b": 1},null]'),
    (array(PAIR), r'{"(1,\"x y\")",NULL}', r'[{"a":1,"b\"":"x y"},null]'),
    (array(domain(array(base("int4")))), '{"{1,2}"}', "[[1,2]]"),
    (PAIR, '(1,"a ""q"" \\\\")', r'{"a":1,"b\"":"a \"q\" \\"}'),
    (PAIR, "(,)", r'{"a":null,"b\"":null}'),
    (PAIR, '(,"")', r'{"a":null,"b\"":""}'),
    (PAIR, "(1,x,new)", '"(1,x,new)"'),
    (PAIR, "(hello,9)", '"(hello,9)"'),
    (composite(("deep", PAIR), ("n", base("int4"))), '("(hello,9)",7)', '{"deep":"(hello,9)","n":7}'),
    (composite(("many", array(base("int4")))), '("{1,x}")', '"(\\"{1,x}\\")"'),
    (composite(("r", range_(base("int4")))), '("[1,x)")', '"(\\"[1,x)\\")"'),
    (in_doubt(array(PAIR)), '{"(1,x)"}', '["(1,x)"]'),
    (range_(base("int4")), "[1,10)", '{"lower":1,"upper":10,"bounds":"[)"}'),
    (range_(base("int4")), "(,10)", '{"lower":null,"upper":10,"bounds":"()"}'),
    (range_(base("int4")), "empty", '{"lower":null,"upper":null,"bounds":"empty"}'),
    (range_(base("text")), '["","a"",]")', r'{"lower":"","upper":"a\",]","bounds":"[)"}'),
    (multirange(base("int4")), "{}", "[]"),
    (
        multirange(base("int4")),
        "{[1,2),[4,)}",
        '[{"lower":1,"upper":2,"bounds":"[)"},{"lower":4,"upper":null,"bounds":"[)"}]',
    ),
]

CANONICAL = [  # type, the server's text, the canonical text (the form that values have in keys)
    (base("bool"), "t", "true"),
    (base("int4"), "-7", "-7"),
    (base("float8"), "-0", "-0"),
    (base("float8"), "NaN", "NaN"),
    (base("numeric"), "1.50", "1.50"),
    (base("text"), 'é"\\\n', 'é"\\\n'),
    (base("bpchar"), "a    ", "a    "),
    (base("bytea"), "\\x00ff10", "AP8Q"),
    (base("timestamptz"), "2026-11-21 03:10:02+00", "2026-11-21T03:10:02.000000Z"),
    (base("jsonb"), "null", "null"),
    (base("jsonb"), '"1"', '"1"'),
    (base("jsonb"), "1", "1"),
    (base("jsonb"), '{"b": 1.0, "a": [1, 2]}', '{"a":[1,2],"b":1.0}'),
    (array(base("jsonb")), r'{"{\"b\": 1}",NULL}', '[{"b":1},null]'),
    (array(base("int4")), "[0:1]={1,2}", "[0:1]={1,2}"),
    (PAIR, "(1,x)", r'{"a":1,"b\"":"x"}'),
    (range_(base("int4")), "[1,10)", '{"bounds":"[)","lower":1,"upper":10}'),
]


@pytest.mark.parametrize(("type_", "text", "value"), VALUES)
def test_a_text_is_converted_to_json(type_: PgType, text: str, value: str) -> None:
    assert codec_for(type_, -1).to_json(text.encode()).decode() == value
    msgspec.json.decode(value)


@pytest.mark.parametrize(("type_", "text", "key"), CANONICAL)
def test_each_text_has_a_canonical_form(type_: PgType, text: str, key: str) -> None:
    assert canonical(text.encode(), codec_for(type_, -1)) == key


def test_a_char_from_an_older_server_is_written_as_newer_servers_print_it() -> None:
    assert codec_for(base("char"), -1).to_json(b"\xc3") == rb'"\\303"'


@pytest.mark.parametrize(
    ("type_", "typmod", "column_type"),
    [
        (base("int2"), -1, Primitive.INT),
        (base("oid"), -1, Primitive.LONG),
        (base("numeric"), -1, Primitive.STRING),
        (base("numeric"), numeric(10, 2), Decimal(precision=10, scale=2)),
        (base("numeric"), numeric(3, -2), Primitive.STRING),
        (base("numeric"), numeric(2, 5), Primitive.STRING),
        (base("numeric"), numeric(1000, 1000), Decimal(precision=1000, scale=1000)),
        (domain(base("numeric"), numeric(5, 0)), -1, Decimal(precision=5, scale=0)),
        (array(base("numeric")), numeric(5, 1), Array(element=Decimal(precision=5, scale=1))),
        (base("hstore"), -1, Map(value=Primitive.STRING)),
        (base("public.hstore"), -1, Primitive.STRING),
        (PAIR, -1, Struct(fields=(("a", Primitive.INT), ('b"', Primitive.STRING)))),
        (domain(base("jsonb")), -1, Primitive.JSON),
        (
            multirange(base("timestamptz")),
            -1,
            Array(
                element=Struct(
                    fields=(
                        ("lower", Primitive.TIMESTAMP_TZ),
                        ("upper", Primitive.TIMESTAMP_TZ),
                        ("bounds", Primitive.STRING),
                    )
                )
            ),
        ),
    ],
)
def test_a_column_has_a_neutral_type(type_: PgType, typmod: int, column_type: ColumnType) -> None:
    assert codec_for(type_, typmod).column_type == column_type


@pytest.mark.parametrize(
    ("type_", "text", "offset"),
    [
        (array(base("int4")), b"", 0),
        (array(base("int4")), b"{1,2", 4),
        (array(base("int4")), b"{1}x", 3),
        (array(base("int4")), b"{1,}", 3),
        (array(base("text")), b'{"a', 1),
        (array(base("int4")), b"{" * 7 + b"}" * 7, 6),
        (PAIR, b"1,2", 0),
        (PAIR, b'(1,"a', 3),
        (PAIR, b"(1,2)x", 5),
        (range_(base("int4")), b"[1,2", 0),
        (range_(base("int4")), b"[1,2)x", 5),
        (multirange(base("int4")), b"[1,2)", 0),
        (multirange(base("int4")), b"{[1,2),", 7),
        (multirange(base("int4")), b"{[1,2)}x", 6),
        (base("hstore"), b'"a"=>"b", ', 0),
        (base("hstore"), b'"a"=>"b", "c"', 10),
        (base("text"), b"ab\xff", 2),
        (base("bytea"), b"escape", None),
        (base("bytea"), b"\\x0", None),
    ],
)
def test_texts_that_no_server_prints_are_refused(type_: PgType, text: bytes, offset: int | None) -> None:
    with pytest.raises(ChangelogError) as caught:
        codec_for(type_, -1).to_json(text)
    assert caught.value.kind is ErrorKind.MALFORMED
    assert "\n" not in str(caught.value)
    if offset is not None:
        assert re.search(rf"at byte {offset}\b", caught.value.message)


FOREIGN = [  # the type of an attribute, texts of this type, and texts of other types
    ("bool", "t f", "true 1"),
    ("int4", "0 -7 2147483647", "hello 01 1.5 t"),
    ("int8", "-9223372036854775808", "-"),
    ("oid", "4294967295", "-1"),
    ("float8", "1.5 -0 1e-07 NaN -Infinity", "nan 1,5 hello"),
    ("numeric", "1.50 -3 NaN Infinity", "1e5 hello"),
    ("json", '{"a":"\\ud800"} 1e400 null', "hello {a} NaN 1]"),
    ("jsonb", '[1,"x"]', "[1"),
    ("date", "2026-11-21 10000-01-01 infinity", "21.11.2026 hello"),
    ("time", "24:00:00 03:10:02.5", "3:10"),
    ("timetz", "03:10:02+02 03:10:02.5-03:30", "03:10:02"),
    ("timestamp", "-infinity", "2026-11-21"),
    ("timestamptz", "infinity", "hello"),
    ("interval", "P1Y2M-3DT-4H5M6.5S PT0S infinity", "hello"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99"),
    ("inet", "10.0.0.0/8 ::1 fe80::1/64", 'hello"'),
    ("macaddr", "08:00:2b:01:02:03", "hello"),
    ("varbit", "0101", "2"),
    ("point", "(1,-2.5e+10) (NaN,Infinity)", "hello"),
    ("pg_lsn", "16/B374D848", "hello"),
    ("xid8", "18446744073709551615", "x"),
    ("tid", "(0,1)", "0"),
    ("pg_snapshot", "10:20:10,14 10:10:", "10"),
    ("bytea", "\\x00ff", "x00"),
    ("int2vector", "1", "x"),
]


@pytest.mark.parametrize(("name", "own", "foreign"), FOREIGN, ids=[name for name, _, _ in FOREIGN])
def test_a_composite_is_an_object_only_if_its_texts_fit_the_attributes(name: str, own: str, foreign: str) -> None:
    codec = codec_for(composite(("a", base(name))), -1)
    for text, is_own in [*((text, True) for text in own.split()), *((text, False) for text in foreign.split())]:
        value = json.loads(codec.to_json(b'("%b")' % _in_quotes(text)))
        assert isinstance(value, dict) == is_own, text


def _in_quotes(text: str) -> bytes:
    return text.replace("\\", "\\\\").replace('"', '""').encode()


STRUCTURED = [array(base("text")), PAIR, range_(base("text")), multirange(base("text")), base("hstore")]


@pytest.mark.parametrize("type_", STRUCTURED, ids=lambda type_: type_.name)
@given(text=st.text('{}[]()",\\=>aNUL é'))
def test_any_text_gives_json_or_an_error(type_: PgType, text: str) -> None:
    with contextlib.suppress(ChangelogError):
        msgspec.json.decode(codec_for(type_, -1).to_json(text.encode()))


@given(st.text(), st.text())
def test_the_pairs_of_an_hstore_are_found(key: str, value: str) -> None:
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"').encode() for text in (key, value)]
    assert literals.hstore(b'"%b"=>"%b"' % tuple(quoted)) == [(key.encode(), value.encode())]


def test_the_shape_of_a_codec_says_how_it_converts_texts() -> None:
    samples = {Shape.RAW: b"12", Shape.PLAIN: b"12:00:00", Shape.TEXT: b"abc"}
    names = {Shape.RAW: "int4 int8 json jsonb", Shape.PLAIN: "numeric date uuid inet", Shape.TEXT: "text varchar money"}
    for shape, sample in samples.items():
        for name in names[shape].split():
            codec = codec_for(base(name), -1)
            assert codec.shape is shape
            assert codec.to_json(sample) == (sample if shape is Shape.RAW else b'"%b"' % sample)


@given(st.text(), st.integers(4, 9))
def test_a_long_text_is_quoted_piece_by_piece(text: str, piece: int) -> None:
    with patch.object(codecs, "_PIECE_BYTES", piece):
        assert string(text.encode()) == msgspec.json.encode(text)
        assert string(memoryview(text.encode())) == msgspec.json.encode(text)


@given(st.text(), st.integers(4, 9))
def test_the_error_for_a_long_text_names_the_invalid_byte(text: str, piece: int) -> None:
    before = text.encode()
    with patch.object(codecs, "_PIECE_BYTES", piece), pytest.raises(ChangelogError) as caught:
        string(before + b"\xff" + before)
    assert f"at byte {len(before)}" in caught.value.message


def test_the_settings_need_no_quotes_in_a_connection_string() -> None:
    assert not any(" " in text or "\\" in text for item in SETTINGS.items() for text in item)


def test_a_type_is_queried_once() -> None:
    queries: list[object] = []

    def query(sql: str, parameters: object) -> list[tuple[object, ...]]:
        queries.append(parameters)
        return [("text", "b", False, 0, None, None, 0, -1, 0, ",")]

    catalog = TypeCatalog(query)
    assert catalog.resolve(25) == catalog.resolve(25) == PgType(oid=25, name="text", kind="base")
    assert queries == [[25]]
