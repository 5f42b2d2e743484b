"""Draws texts that PostgreSQL prints for values. `SERVER_TEXTS` has a strategy for each type in `messages.TYPES`."""

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from tests.unit.postgres.messages import INT, TEXT, TYPES

words = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=6)
hard_words = st.sampled_from(
    ['say "no"', "back\\slash", "tab\t", "new\nline", "\x7f", "Zürich 🏨", "", "null", '["', "\x1f"]
)
whole_days = st.sampled_from(
    ["2026-11-21 03:10:02", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "10000-01-01 00:00:00"]
)
fractions = st.sampled_from(["", ".5", ".88", ".886044", ".000001"])
moments = st.builds(str.__add__, whole_days, fractions)


def _texts(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values)


_PLAIN: Mapping[int, st.SearchStrategy[str]] = {
    INT: st.integers(-3, 12).map(str),
    20: st.integers(-(2**63), 2**63 - 1).map(str),
    TEXT: words | hard_words,
    16: _texts("t", "f"),
    17: _texts("\\x", "\\x00ff10"),
    114: _texts("null", " null\n", '{"a": null}', '"null"', "false", "[1,  2]", "12"),
    3802: _texts("null", '{"b": "é", "a": [1.0, 2]}', '"null"', "true", '{"b": 1, "a": 2}'),
    50_000: _texts("null", '{"b": 1, "a": 2}', '"x"', "7"),
    701: _texts("1.5", "-0", "NaN", "Infinity", "-Infinity", "1e+300", "3"),
    1114: moments | st.builds(str.__add__, moments, _texts(" BC")) | _texts("infinity", "-infinity"),
    1184: st.builds(str.__add__, moments, _texts("+00", "+00 BC")) | _texts("infinity", "-infinity"),
    1700: _texts("12.50", "NaN", "-0.001", "Infinity"),
    2950: _texts("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    1007: _texts("{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={1,2}"),
}


def _escaped(text: str, quote: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', quote) + '"'


def _record(values: Sequence[str | None]) -> str:
    """Prints the value of a composite type like the server's function record_out, but with all attributes in quotes.
    The server puts only those into quotes that need them.
    """
    return "(" + ",".join("" if value is None else _escaped(value, '""') for value in values) + ")"


# PostgreSQL sends no message if a composite type is altered. So some of these records do not fit the type's attributes.
_whole = st.tuples(*(st.none() | _PLAIN[attribute.type.oid] for attribute in TYPES[50_001].fields))
_foreign = st.lists(
    st.none() | st.sampled_from(["hello", "7", "t", "{1}", "{", "01", "2026-11-21"]) | words, max_size=10
)
_records = (_whole | _foreign).map(_record)
_arrays = st.lists(_records.map(lambda text: _escaped(text, '\\"')), max_size=3).map(
    lambda all_: "{" + ",".join(all_) + "}"
)

SERVER_TEXTS: Mapping[int, st.SearchStrategy[str]] = {**_PLAIN, 50_001: _records, 50_003: _arrays, 50_004: _arrays}
