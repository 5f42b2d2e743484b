"""Tests the canonical text of JSON, which is the same for all spellings of a value."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope import canonical
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.envelope.strategies import values


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (' { "b" : 1.50 , "a" : [ null , true ] } ', '{"a":[null,true],"b":1.50}'),
        ('{"b":{"d":1,"c":2}}', '{"b":{"c":2,"d":1}}'),
        ('"\\u00e9\\/\\u0041\\n\\u0000"', '"é/A\\n\\u0000"'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1E+2", "1E+2"),
        ("-0", "-0"),
        ('"\\uD83D\\uDE00"', '"😀"'),
        ('{"\\ud800":["\\udc00",1.0],"a":0}', '{"a":0,"\\ud800":["\\udc00",1.0]}'),
    ],
)
def test_all_spellings_of_a_value_have_the_same_text(raw: str, text: str) -> None:
    assert canonical.text(raw) == canonical.text(raw.encode()) == canonical.text(Raw(raw)) == text
    assert canonical.text(text) == text
    assert canonical.equal(raw, text)


@pytest.mark.parametrize(
    ("a", "b"),
    [("1", "1.0"), ("1", "true"), ("1", '"1"'), ("0", "-0"), ("1e0", "1"), ("null", '"null"'), ("[1,2]", "[2,1]")],
)
def test_different_values_are_not_equal(a: str, b: str) -> None:
    assert not canonical.equal(a, b)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_differently_spelled_values_are_equal(value: object, ascii_: bool, indent: int | None) -> None:
    shuffled = json.dumps(value, ensure_ascii=ascii_, indent=indent, sort_keys=ascii_)
    assert canonical.equal(shuffled, json.dumps(value))
    assert json.loads(canonical.text(shuffled)) == value


@given(values)
def test_members_keep_their_order_unless_sorted(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert json.dumps(json.loads(canonical.dumps(canonical.parse(text)))) == json.dumps(value)


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b"-Infinity", b"01", b'"\n"', b'"\xff"', b"1 2", b"\xef\xbb\xbf1"])
def test_invalid_json_is_malformed(raw: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        canonical.parse(raw)
    assert caught.value.kind is Kind.MALFORMED


def test_a_value_that_nests_too_deep_is_refused() -> None:
    with pytest.raises(ChangelogError) as caught:
        canonical.parse("[" * 200_000 + "]" * 200_000)
    assert caught.value.kind is Kind.LIMIT
