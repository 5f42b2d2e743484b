"""Tests, with a PostgreSQL server as the oracle, that the conversion of values to JSON loses nothing.

The server prints each value as text, and our codec converts this text to JSON. The test converts the JSON back to a
text for the server. The server must read this text as the same value.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from changelog.connectors.capture.rows.codec import canonical
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS, codec_for
from changelog.connectors.sources.postgres.values.types import PgType, TypeCatalog
from tests.integration.server_inputs import CASES, arrays, quoted
from tests.servers import fresh_database

DEFINITIONS = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE "odd ""mood" AS ENUM ('ok', 'a"b', 'x, y', '', 'NULL', 'ü\\');
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN bag AS int[];
CREATE TYPE inner_row AS (n int, "quoted "" name" text);
CREATE TYPE outer_row AS (id bigint, "größe" numeric[], sub inner_row, subs inner_row[], h hstore, gone int,
  ok boolean);
ALTER TYPE outer_row DROP ATTRIBUTE gone;
CREATE TYPE textrange AS RANGE (subtype = text, multirange_type_name = textspan);
"""

# An administrator may have changed these settings. SETTINGS must override them.
HOSTILE = {
    "DateStyle": "German",
    "TimeZone": "Asia/Kolkata",
    "IntervalStyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "search_path": "public",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """A connection to a server, and the types of the server's catalogue."""

    connection: psycopg.Connection
    catalog: TypeCatalog

    def read(self, sql_type: str, inputs: Sequence[str]) -> tuple[PgType, int, list[bytes]]:
        """Returns the type, its modifier, and the text that the server prints for each input."""
        cursor = self.connection.execute(
            f"SELECT i::{sql_type} FROM unnest(%s::text[]) WITH ORDINALITY AS t (i, n) ORDER BY n", [list(inputs)]
        )
        result = cursor.pgresult
        assert result is not None
        texts = [result.get_value(row, 0) for row in range(result.ntuples)]
        return self.catalog.resolve(result.ftype(0)), result.fmod(0), [text for text in texts if text is not None]

    def unequal(self, sql_type: str, left: Sequence[str], right: Sequence[str]) -> list[tuple[Any, ...]]:
        """Pairs each text in `left` with the text in `right` at the same place. Returns the pairs whose values differ
        in any bit.
        """
        return self.connection.execute(
            f"SELECT a, b FROM unnest(%s::text[], %s::text[]) AS t (a, b)"
            f" WHERE record_image_ne(ROW(a::{sql_type}), ROW(b::{sql_type}))",
            [list(left), list(right)],
        ).fetchall()

    def supports(self, sql_type: str, text: str) -> bool:
        """Returns whether this build of the server accepts `text` as a value of the type."""
        try:
            self.connection.execute(f"SELECT %s::{sql_type}", [text])
        except psycopg.Error:
            return False
        return True


@pytest.fixture(scope="module", params=["server", "server_15"])
def oracle(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[Oracle]:
    with fresh_database(request.getfixturevalue(request.param)) as dsn:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(DEFINITIONS.encode())
            for name, value in HOSTILE.items():
                admin.execute(f"ALTER DATABASE {admin.info.dbname} SET {name} = '{value}'".encode())
        # With this search path, the names of types in this file need no schema.
        session_settings = {**SETTINGS, "search_path": "pg_catalog,public"}
        options = " ".join(f"-c {name}={value}" for name, value in session_settings.items())
        with psycopg.connect(make_conninfo(dsn, options=options), autocommit=True) as connection:

            def query(sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
                return connection.execute(sql.encode(), parameters).fetchall()

            yield Oracle(connection=connection, catalog=TypeCatalog(query))


def is_list(type_: PgType | None) -> bool:
    """Returns whether a value of the type is, or may be, a JSON array."""
    while type_ and type_.kind == "domain":
        type_ = type_.base
    return type_ is not None and (type_.kind in ("array", "multirange") or type_.name in ("json", "jsonb"))


def literal(value: bytes, type_: PgType) -> str:
    """Returns the server's input text for a published value.

    This function is the inverse of the conversion under test, and was written independently of that conversion.
    """
    if type_.kind == "domain" and type_.base:
        return literal(value, type_.base)
    if type_.name in ("json", "jsonb"):
        return value.decode()
    if value.startswith(b'"'):
        text = msgspec.json.decode(value, type=str)
        return "\\x" + base64.b64decode(text).hex() if type_.name == "bytea" else text
    if value.startswith(b"["):
        return sequence(msgspec.json.decode(value, type=list[msgspec.Raw]), type_)
    if value.startswith(b"{"):
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        return mapping({name: bytes(member) for name, member in members.items()}, type_)
    return value.decode()


def sequence(items: Sequence[msgspec.Raw], type_: PgType) -> str:
    """Returns the server's input text for the items of an array or a multirange."""
    element = type_.element
    assert element is not None
    if type_.kind == "multirange":
        return "{" + ",".join(literal(bytes(item), element) for item in items) + "}"
    texts = []
    for item in map(bytes, items):
        if item == b"null":
            texts.append("NULL")
        elif item.startswith(b"[") and not is_list(element):
            texts.append(literal(item, type_))
        else:
            texts.append(quoted(literal(item, element)))
    return "{" + type_.delimiter.decode().join(texts) + "}"


def mapping(members: dict[str, bytes], type_: PgType) -> str:
    """Returns the server's input text for an hstore, a composite or a range."""
    if type_.name == "hstore":
        pairs = {key: msgspec.json.decode(value, type=str | None) for key, value in members.items()}
        return ",".join(f"{quoted(key)}=>{'NULL' if v is None else quoted(v)}" for key, v in pairs.items())
    if type_.kind == "composite":
        assert list(members) == [attribute.name for attribute in type_.fields]
        types = [attribute.type for attribute in type_.fields]
        values = zip(members.values(), types, strict=True)
        return "(" + ",".join("" if v == b"null" else quoted(literal(v, t)) for v, t in values) + ")"
    bounds = msgspec.json.decode(members["bounds"], type=str)
    if bounds == "empty":
        return bounds
    assert type_.element is not None
    sides = [members["lower"], members["upper"]]
    lower, upper = ("" if side == b"null" else quoted(literal(side, type_.element)) for side in sides)
    return f"{bounds[0]}{lower},{upper}{bounds[1]}"


def check(oracle: Oracle, sql_type: str, inputs: Sequence[str]) -> None:
    """Checks that the server reads each published value as the value of its input.

    Also compares the first input with each input: if both are published as the same value, they must have the same
    canonical text, and otherwise different ones.
    """
    type_, typmod, texts = oracle.read(sql_type, inputs)
    codec = codec_for(type_, typmod)
    values = [codec.to_json(text) for text in texts]
    assert oracle.unequal(sql_type, inputs, [literal(value, type_) for value in values]) == []
    for text, value in zip(texts, values, strict=True):
        msgspec.json.decode(value)
        assert (canonical(text, codec) == canonical(texts[0], codec)) == (value == values[0])


ARRAYS = [name for name in CASES if not name.startswith("int2vector")]


few_examples = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("sql_type", CASES)
@few_examples
@given(data=st.data())
def test_the_server_reads_back_an_equal_value(oracle: Oracle, sql_type: str, data: st.DataObject) -> None:
    if sql_type == "xml" and not oracle.supports("xml", "<a/>"):
        pytest.skip("this server was built without XML")
    check(oracle, sql_type, data.draw(st.lists(CASES[sql_type], min_size=1, max_size=20)))


@pytest.mark.parametrize("sql_type", ARRAYS)
@few_examples
@given(data=st.data())
def test_the_server_reads_back_an_equal_array(oracle: Oracle, sql_type: str, data: st.DataObject) -> None:
    if sql_type == "xml" and not oracle.supports("xml", "<a/>"):
        pytest.skip("this server was built without XML")
    one_dimensional = sql_type in ("json", "jsonb", "bag") or "multirange" in sql_type or sql_type == "textspan"
    elements = arrays(CASES[sql_type], ";" if sql_type == "box" else ",", flat=one_dimensional)
    check(oracle, f"{sql_type}[]", data.draw(st.lists(elements, min_size=1, max_size=5)))


@pytest.mark.parametrize(
    "sql_type", ["boolean[]", "int4[]", "text[]", "varchar(7)[]", '"odd ""mood"[]', "jsonb[]", "inner_row", "hstore"]
)
@few_examples
@given(data=st.data())
def test_the_server_converts_a_value_to_the_same_json(oracle: Oracle, sql_type: str, data: st.DataObject) -> None:
    element = CASES[sql_type.removesuffix("[]")]
    strategy = arrays(element, ",", flat="json" in sql_type) if sql_type.endswith("[]") else element
    inputs = data.draw(st.lists(strategy, min_size=1, max_size=10))
    type_, typmod, texts = oracle.read(sql_type, inputs)
    convert = "hstore_to_json" if sql_type == "hstore" else "to_json"
    _, _, server_json = oracle.read("text", [row[0] for row in oracle.connection.execute(
        f"SELECT {convert}(i::{sql_type})::text FROM unnest(%s::text[]) WITH ORDINALITY AS t (i, n) ORDER BY n",
        [inputs],
    )])  # fmt: skip
    to_json = codec_for(type_, typmod).to_json
    assert [json.loads(to_json(text)) for text in texts] == [json.loads(text) for text in server_json]


def test_the_server_reads_back_infinite_intervals(oracle: Oracle) -> None:
    if not oracle.supports("interval", "infinity"):
        pytest.skip("intervals are finite before PostgreSQL 17")
    check(oracle, "interval", ["infinity", "-infinity"])


def test_arrays_with_explicit_bounds_are_published_as_text(oracle: Oracle) -> None:
    check(oracle, "int[]", ["[0:2]={1,2,NULL}", "[-1:0][2:2]={{1},{2}}", "{}", "{{{{{{1}}}}}}"])


def test_a_quoted_char_above_ascii_is_published_as_octal_digits(oracle: Oracle) -> None:
    type_, typmod, texts = oracle.read('"char"', ["é"])  # the value is the first byte of é, 0xc3
    assert codec_for(type_, typmod).to_json(texts[0]) == b'"\\\\303"'


def test_a_dropped_type_is_unknown(oracle: Oracle) -> None:
    oracle.connection.execute("CREATE TYPE public.gone AS ENUM ('a')")
    oid = oracle.read("gone", ["a"])[0].oid
    oracle.connection.execute("DROP TYPE public.gone")
    assert oracle.catalog.resolve(oid).kind == "enum"
    new_catalog = TypeCatalog(lambda query, values: oracle.connection.execute(query.encode(), values).fetchall())
    assert new_catalog.resolve(oid) == PgType(oid=oid, name=str(oid), kind="unknown")


def test_every_type_of_the_catalogue_resolves(oracle: Oracle) -> None:
    rows = oracle.connection.execute("SELECT oid::bigint FROM pg_type WHERE typtype <> 'p'").fetchall()
    kinds = {oracle.catalog.resolve(oid).kind for (oid,) in rows}
    assert kinds == {"base", "enum", "domain", "composite", "array", "range", "multirange"}
    for (oid,) in rows:
        codec_for(oracle.catalog.resolve(oid), -1)


ATTRIBUTES = {
    "bool": ["t", "f"],
    "int2": ["-32768"],
    "int8": ["-9223372036854775808", "0"],
    "oid": ["4294967295"],
    "float4": ["1e-45", "-0", "NaN", "-Infinity"],
    "float8": ["1e300", "0.1", "-1.7976931348623157e308"],
    "numeric": ["-0.00001", "1e40", "NaN"],
    "json": ['{"a": "\\ud800", "b": 1e400}', " null "],
    "jsonb": ['[1.50, {"a": []}]'],
    "date": ["0044-03-15 BC", "5874897-12-31", "-infinity"],
    "time": ["24:00:00", "03:10:02.000001"],
    "timetz": ["03:10:02.5+05:30:15", "00:00:00-15:59:59"],
    "timestamp": ["4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "infinity"],
    "timestamptz": ["2026-11-21 03:10:02.5+02", "0001-01-01 BC", "-infinity"],
    "interval": ["-1 year 2 mons -3 days 04:05:06.789", "0", "-00:00:00.5"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "inet": ["10.0.0.0/8", "::ffff:1.2.3.4", "fe80::1/64"],
    "cidr": ["10.0.0.0/8"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "varbit": ["", "0101"],
    "point": ["(1,-2.5e+100)", "(NaN,Infinity)"],
    "line": ["{1,-2,3e-10}"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "circle": ["<(1,2),3>"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14,15", "10:10:"],
    "xid8": ["18446744073709551615"],
    "tid": ["(4294967295,65535)"],
    "int2vector": ["1 -2", ""],
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_texts_that_a_type_prints_are_recognised_as_its_values(oracle: Oracle, name: str) -> None:
    """The texts are attributes of a composite, because the codec checks only there that a text belongs to its type."""
    oracle.connection.execute(f"CREATE TYPE public.one_{name} AS (a {name})")
    type_, typmod, texts = oracle.read(f"one_{name}", [f"({quoted(text)})" for text in ATTRIBUTES[name]])
    codec = codec_for(type_, typmod)
    assert [text for text in texts if not codec.to_json(text).startswith(b'{"a":')] == []
    assert len(texts) == len(ATTRIBUTES[name])
