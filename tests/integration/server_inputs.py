"""For each type of PostgreSQL, a strategy of Hypothesis that draws valid values of the type, as text."""

import datetime
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st


def quoted(text: str) -> str:
    """Quotes a string as an element of an array, a composite, a range or an hstore."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def signed(bits: int) -> st.SearchStrategy[str]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)


def hexadecimal(nbytes: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=nbytes, max_size=nbytes).map(bytes.hex)


def moment(kind: Callable[..., str], years: int) -> st.SearchStrategy[str]:
    """Draws dates or timestamps from all years that a type allows, also years BC. `years` is the last allowed year.
    `kind` formats a value as SQL text.
    """
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
# JSONS never draws the JSON null: as an element of an array, it is published like an SQL NULL. Unit tests cover this
# case.
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
    """Draws ranges, some of them empty or unbounded on one or both sides. `key` is the sort key that puts the lower of
    two bounds first.
    """

    def span(pair: list[str], open_: str, close: str, unbounded: int) -> str:
        lower, upper = sorted(pair, key=key)
        left, right = "" if unbounded & 1 else quoted(lower), "" if unbounded & 2 else quoted(upper)
        return f"{open_}{left},{right}{close}"

    pairs = st.lists(bounds, min_size=2, max_size=2)
    ranges = st.builds(span, pairs, st.sampled_from("[("), st.sampled_from("])"), st.integers(0, 3))
    return ranges | st.just("empty")


def several(ranges: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(ranges, max_size=4).map(lambda items: "{" + ",".join(items) + "}")


INT_SPANS = spans(signed(31), int)
TIME_SPANS = spans(st.datetimes().map(lambda at: at.isoformat(" ")))
TEXT_SPANS = spans(TEXTS, str.encode)  # the test servers sort by bytes
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


def arrays(elements: st.SearchStrategy[str], delimiter: str, *, flat: bool) -> st.SearchStrategy[str]:
    """Draws arrays, some of them with nulls. An array has one or two dimensions, or always one if `flat` is true."""

    def joined(items: Sequence[str]) -> str:
        return "{" + delimiter.join(items) + "}"

    one = elements.map(quoted) | st.just("NULL")
    rows = st.lists(one, max_size=4).map(joined)
    if flat:
        return rows
    return rows | st.lists(st.lists(one, min_size=2, max_size=2).map(joined), min_size=1, max_size=3).map(joined)
