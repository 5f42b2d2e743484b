"""The server is the oracle: it reads back the JSON value of every value it printed, and finds the same value."""

import base64
import datetime
import json
from collections.abc import Callable, Iterator, Sequence
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

# What an administrator may have set, and SETTINGS must win over.
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
    """A database to ask, and what its catalogue says of types."""

    connection: psycopg.Connection
    catalog: TypeCatalog

    def read(self, sql_type: str, inputs: Sequence[str]) -> tuple[PgType, int, list[bytes]]:
        """Type, modifier and the text that the server prints for each input."""
        cursor = self.connection.execute(
            f"SELECT i::{sql_type} FROM unnest(%s::text[]) WITH ORDINALITY AS t (i, n) ORDER BY n", [list(inputs)]
        )
        result = cursor.pgresult
        assert result is not None
        texts = [result.get_value(row, 0) for row in range(result.ntuples)]
        return self.catalog.resolve(result.ftype(0)), result.fmod(0), [text for text in texts if text is not None]

    def unequal(self, sql_type: str, left: Sequence[str], right: Sequence[str]) -> list[tuple[Any, ...]]:
        """The pairs that are not the same value, bit by bit."""
        return self.connection.execute(
            f"SELECT a, b FROM unnest(%s::text[], %s::text[]) AS t (a, b)"
            f" WHERE record_image_ne(ROW(a::{sql_type}), ROW(b::{sql_type}))",
            [list(left), list(right)],
        ).fetchall()

    def supports(self, sql_type: str, text: str) -> bool:
        """Whether this server, as it was built, reads `text`."""
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
        pinned = {**SETTINGS, "search_path": "pg_catalog,public"}  # so that this file need not qualify its types
        options = " ".join(f"-c {name}={value}" for name, value in pinned.items())
        with psycopg.connect(make_conninfo(dsn, options=options), autocommit=True) as connection:

            def query(sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
                return connection.execute(sql.encode(), parameters).fetchall()

            yield Oracle(connection=connection, catalog=TypeCatalog(query))


def quoted(text: str) -> str:
    """A string as an element of an array, a composite, a range or an hstore."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_list(type_: PgType | None) -> bool:
    """Whether one value of the type is a JSON array, or may be one."""
    while type_ and type_.kind == "domain":
        type_ = type_.base
    return type_ is not None and (type_.kind in ("array", "multirange") or type_.name in ("json", "jsonb"))


def literal(value: bytes, type_: PgType) -> str:
    """The server's input text for a published value: the way back, written independently of the way there."""
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
    type_, typmod, texts = oracle.read(sql_type, inputs)
    codec = codec_for(type_, typmod)
    values = [codec.to_json(text) for text in texts]
    assert oracle.unequal(sql_type, inputs, [literal(value, type_) for value in values]) == []
    for text, value in zip(texts, values, strict=True):
        msgspec.json.decode(value)
        assert (canonical(text, codec) == canonical(texts[0], codec)) == (value == values[0])


def signed(bits: int) -> st.SearchStrategy[str]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)


def hexadecimal(nbytes: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=nbytes, max_size=nbytes).map(bytes.hex)


def moment(kind: Callable[..., str], years: int) -> st.SearchStrategy[str]:
    """Days, or times of days, of all the years that a type has; `kind` prints one in SQL."""
    common = st.datetimes().map(lambda at: kind(f"{at:%m-%d}", at.time(), f"{at.year:04d}", ""))
    before = st.builds(lambda y, at: kind(f"{at:%m-%d}", at.time(), f"{y:04d}", " BC"), st.integers(1, 4712), DAYS)
    after = st.builds(lambda y, at: kind(f"{at:%m-%d}", at.time(), str(y), ""), st.integers(9999, years), DAYS)
    return st.one_of(common, before, after, st.sampled_from(["infinity", "-infinity"]))


def day(date: str, time: datetime.time, year: str, era: str) -> str:
    return f"{year}-{date}{era}"


def instant(date: str, time: datetime.time, year: str, era: str) -> str:
    return f"{year}-{date} {time}{era}"


DAYS = st.datetimes().map(lambda at: at.replace(year=2001, day=min(at.day, 28)))
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.sampled_from(
    ["", "NULL", "null", '"', "\\", "{}", "a,b", " ", "\n\t\b\x7f\x01", "(),[]", "é\u2028🐘"]
)
DOUBLES = st.floats().map(repr)
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "0.00", "1e-30", "-0.000", "12345678901234567890.123456789"]
)
# A json null is left to the unit tests: in an array it is published as NULL is.
JSONS = (
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=6,
    )
    .filter(lambda value: value is not None)
    .map(lambda value: json.dumps(value, indent=1, ensure_ascii=False))
)
POINTS = st.tuples(DOUBLES, DOUBLES).map(lambda point: "({},{})".format(*point))
ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.builds(lambda ip, n: f"{ip}/{n}", st.ip_addresses(v=4), st.integers(0, 32)),
    st.builds(lambda ip, n: f"{ip}/{n}", st.ip_addresses(v=6), st.integers(0, 128)),
)
LEXEMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5).map(
    lambda word: "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"
)
PAIRS = st.dictionaries(TEXTS, st.none() | TEXTS, max_size=4).map(
    lambda pairs: ",".join(f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in pairs.items())
)
XML = st.text("ab<>&\"'é \n", max_size=10).map(
    lambda text: "<a b='1'>" + text.replace("&", "&amp;").replace("<", "&lt;") + "</a>"
)
INNER = st.builds(lambda n, t: f"({n},{'' if t is None else quoted(t)})", signed(32), st.none() | TEXTS)


def spans(bounds: st.SearchStrategy[str], key: Callable[[str], Any] = str) -> st.SearchStrategy[str]:
    """Ranges whose bounds are in the order of `key`; one side, both or neither unbounded; empty ones."""

    def span(pair: list[str], open_: str, close: str, unbounded: int) -> str:
        lower, upper = sorted(pair, key=key)
        left, right = "" if unbounded & 1 else quoted(lower), "" if unbounded & 2 else quoted(upper)
        return f"{open_}{left},{right}{close}"

    pairs = st.lists(bounds, min_size=2, max_size=2)
    made = st.builds(span, pairs, st.sampled_from("[("), st.sampled_from("])"), st.integers(0, 3))
    return made | st.just("empty")


def several(ranges: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(ranges, max_size=4).map(lambda items: "{" + ",".join(items) + "}")


INT_SPANS = spans(signed(31), int)
TIME_SPANS = spans(st.datetimes().map(lambda at: at.isoformat(" ")))
TEXT_SPANS = spans(TEXTS, str.encode)  # the servers of tests sort by bytes
NUMBER_SPANS = spans(st.decimals(-1000, 1000, places=3).map(str), float)

CASES: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["t", "f"]),
    "int2": signed(16),
    "int4": signed(32),
    "int8": signed(64),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "float4": st.floats(width=32).map(repr),
    "float8": DOUBLES,
    "numeric": NUMERICS,
    "numeric(10,2)": st.decimals(-99999999, 99999999, places=2).map(str) | st.just("NaN"),
    "numeric(3,-2)": st.integers(-90000, 90000).map(str),
    "money": st.integers(-(2**62), 2**62).map(lambda cents: f"{cents // 100}.{cents % 100:02d}"),
    "text": TEXTS,
    "varchar(7)": TEXTS,
    "char(5)": TEXTS,
    "bpchar": TEXTS,
    '"char"': st.characters(min_codepoint=1, max_codepoint=127) | st.just(""),
    "name": TEXTS,
    "citext": TEXTS,
    "ltree": st.from_regex(r"[a-z]{1,4}(\.[a-z0-9]{1,3}){0,3}", fullmatch=True),
    "bytea": st.binary().map(lambda data: "\\x" + data.hex()),
    "date": moment(day, 5874897),
    "time": st.times().map(str) | st.just("24:00:00"),
    "time(0)": st.times().map(str),
    "timetz": st.builds(lambda at, h: f"{at}{h:+03d}:30", st.times(), st.integers(-15, 14)),
    "timestamp": moment(instant, 294275),
    "timestamp(2)": moment(instant, 294275),
    "timestamptz": moment(instant, 294275),
    "interval": st.builds(
        lambda m, d, us: f"{m} months {d} days {us} microseconds",
        st.integers(-9999, 9999), st.integers(-99999, 99999), st.integers(-(2**53), 2**53),
    ),
    "uuid": st.uuids().map(str),
    "inet": ADDRESSES,
    "cidr": st.ip_addresses().map(str),
    "macaddr": hexadecimal(6),
    "macaddr8": hexadecimal(8),
    "bit(5)": st.text("01", max_size=9),
    "varbit": st.text("01", max_size=40),
    "json": JSONS,
    "jsonb": JSONS,
    "jsonpath": st.just('$."a\\"b" ? (@ > 1)'),
    "xml": XML,
    "tsvector": st.lists(LEXEMES, max_size=4).map(lambda words: " ".join(f"{word}:3A,7" for word in words)),
    "tsquery": st.lists(LEXEMES, min_size=1, max_size=3).map(" & !".join),
    "point": POINTS,
    "line": st.builds("{{1,{},{}}}".format, DOUBLES, DOUBLES),
    "lseg": st.tuples(POINTS, POINTS).map(lambda ends: "[{},{}]".format(*ends)),
    "box": st.tuples(POINTS, POINTS).map(lambda ends: "{},{}".format(*ends)),
    "path": st.lists(POINTS, min_size=1, max_size=3).map(lambda points: "[" + ",".join(points) + "]"),
    "polygon": st.lists(POINTS, min_size=1, max_size=3).map(lambda points: "(" + ",".join(points) + ")"),
    "circle": st.builds(lambda centre, r: f"<{centre},{r}>", POINTS, st.integers(0, 99)),
    "pg_lsn": st.just("16/B374D848"),
    "pg_snapshot": st.just("10:20:10,14,15"),
    "xid": st.integers(0, 2**32 - 1).map(str),
    "xid8": st.integers(0, 2**64 - 1).map(str),
    "tid": st.just("(1,2)"),
    "int2vector": st.lists(signed(16), max_size=4).map(" ".join),
    "regclass": st.sampled_from(["pg_catalog.pg_class", "public.inner_row"]),
    "regtype": st.sampled_from(["int4", '"odd ""mood"']),
    '"odd ""mood"': st.sampled_from(["ok", 'a"b', "x, y", "", "NULL", "ü\\"]),
    "price": st.decimals(-1000, 1000, places=2).map(str),
    "bag": st.lists(signed(32) | st.just("NULL"), max_size=4).map(lambda items: "{" + ",".join(items) + "}"),
    "hstore": PAIRS,
    "inner_row": INNER,
    "outer_row": st.builds(
        lambda n, sub, h: f'({n},"{{NaN,1.50,NULL}}",{quoted(sub)},{quoted(f"{{{quoted(sub)},NULL}}")},{quoted(h)},t)',
        signed(64), INNER, PAIRS,
    )
    | st.just("(,,,,,)"),
    "int4range": INT_SPANS,
    "numrange": NUMBER_SPANS,
    "tsrange": TIME_SPANS,
    "tstzrange": TIME_SPANS,
    "daterange": spans(st.dates().map(str)) | st.just("[2020-01-01,infinity]"),
    "textrange": TEXT_SPANS,
    "int8multirange": several(INT_SPANS),
    "tstzmultirange": several(TIME_SPANS),
    "textspan": several(TEXT_SPANS),
}  # fmt: skip

ARRAYS = [name for name in CASES if not name.startswith("int2vector")]


def arrays(elements: st.SearchStrategy[str], delimiter: str, *, flat: bool) -> st.SearchStrategy[str]:
    """Arrays of one and of two dimensions, with nulls."""

    def joined(items: Sequence[str]) -> str:
        return "{" + delimiter.join(items) + "}"

    one = elements.map(quoted) | st.just("NULL")
    rows = st.lists(one, max_size=4).map(joined)
    if flat:
        return rows
    return rows | st.lists(st.lists(one, min_size=2, max_size=2).map(joined), min_size=1, max_size=3).map(joined)


few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("sql_type", CASES)
@few
@given(data=st.data())
def test_the_server_reads_back_an_equal_value(oracle: Oracle, sql_type: str, data: st.DataObject) -> None:
    if sql_type == "xml" and not oracle.supports("xml", "<a/>"):
        pytest.skip("this server was built without XML")
    check(oracle, sql_type, data.draw(st.lists(CASES[sql_type], min_size=1, max_size=20)))


@pytest.mark.parametrize("sql_type", ARRAYS)
@few
@given(data=st.data())
def test_the_server_reads_back_an_equal_array(oracle: Oracle, sql_type: str, data: st.DataObject) -> None:
    if sql_type == "xml" and not oracle.supports("xml", "<a/>"):
        pytest.skip("this server was built without XML")
    flat = sql_type in ("json", "jsonb", "bag") or "multirange" in sql_type or sql_type == "textspan"
    elements = arrays(CASES[sql_type], ";" if sql_type == "box" else ",", flat=flat)
    check(oracle, f"{sql_type}[]", data.draw(st.lists(elements, min_size=1, max_size=5)))


@pytest.mark.parametrize(
    "sql_type", ["boolean[]", "int4[]", "text[]", "varchar(7)[]", '"odd ""mood"[]', "jsonb[]", "inner_row", "hstore"]
)
@few
@given(data=st.data())
def test_the_servers_own_json_is_the_same(oracle: Oracle, sql_type: str, data: st.DataObject) -> None:
    one = CASES[sql_type.removesuffix("[]")]
    strategy = arrays(one, ",", flat="json" in sql_type) if sql_type.endswith("[]") else one
    inputs = data.draw(st.lists(strategy, min_size=1, max_size=10))
    type_, typmod, texts = oracle.read(sql_type, inputs)
    convert = "hstore_to_json" if sql_type == "hstore" else "to_json"
    _, _, theirs = oracle.read("text", [row[0] for row in oracle.connection.execute(
        f"SELECT {convert}(i::{sql_type})::text FROM unnest(%s::text[]) WITH ORDINALITY AS t (i, n) ORDER BY n",
        [inputs],
    )])  # fmt: skip
    to_json = codec_for(type_, typmod).to_json
    assert [json.loads(to_json(text)) for text in texts] == [json.loads(text) for text in theirs]


def test_infinite_intervals(oracle: Oracle) -> None:
    if not oracle.supports("interval", "infinity"):
        pytest.skip("intervals are finite before PostgreSQL 17")
    check(oracle, "interval", ["infinity", "-infinity"])


def test_arrays_with_bounds_of_their_own_stay_text(oracle: Oracle) -> None:
    check(oracle, "int[]", ["[0:2]={1,2,NULL}", "[-1:0][2:2]={{1},{2}}", "{}", "{{{{{{1}}}}}}"])


def test_a_quoted_char_above_ascii(oracle: Oracle) -> None:
    type_, typmod, texts = oracle.read('"char"', ["é"])  # its first byte, 0xc3
    assert codec_for(type_, typmod).to_json(texts[0]) == b'"\\\\303"'


def test_a_type_that_is_gone_is_unknown(oracle: Oracle) -> None:
    oracle.connection.execute("CREATE TYPE public.gone AS ENUM ('a')")
    oid = oracle.read("gone", ["a"])[0].oid
    oracle.connection.execute("DROP TYPE public.gone")
    assert oracle.catalog.resolve(oid).kind == "enum"
    later = TypeCatalog(lambda query, values: oracle.connection.execute(query.encode(), values).fetchall())
    assert later.resolve(oid) == PgType(oid=oid, name=str(oid), kind="unknown")


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
def test_what_a_type_prints_is_known_for_its_own(oracle: Oracle, name: str) -> None:
    """As an attribute of a composite, where texts are proved to be of their types."""
    oracle.connection.execute(f"CREATE TYPE public.one_{name} AS (a {name})")
    type_, typmod, texts = oracle.read(f"one_{name}", [f"({quoted(text)})" for text in ATTRIBUTES[name]])
    codec = codec_for(type_, typmod)
    assert [text for text in texts if not codec.to_json(text).startswith(b'{"a":')] == []
    assert len(texts) == len(ATTRIBUTES[name])
