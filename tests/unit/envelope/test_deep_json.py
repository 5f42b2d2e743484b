"""Tests `members`, which splits a JSON object without recursion.

If Python's `json` can read an object, `members` must find the same members as `json`.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope.codec import json_codec
from changelog.envelope.codec.deep_json import members
from changelog.envelope.model import MISSING, Envelope, Op
from tests.unit.records import record

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), VALUES), st.sampled_from([None, 2]), st.booleans())
def test_an_object_has_the_members_that_a_decoder_finds(value: object, indent: int | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode(errors="surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    values = {name: json.loads(part) for name, part in members(text).items()}
    assert values == value


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b'{"a":[}', b'{"a":1}}', b'"{}"'])
def test_any_text_but_an_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        members(text)


@pytest.mark.parametrize("depth", [10, 2_000, 100_000])
def test_members_of_any_depth_are_separated(depth: int) -> None:
    deep = b"[" * depth + b'"}"' + b"]" * depth
    text = b'{"id": 1, "half": "\\ud800", "deep": %b, "last":{}}' % deep
    expected = {"id": b"1", "half": b'"\\ud800"', "deep": deep, "last": b"{}"}
    assert members(text) == expected
    assert json_codec.members(text) == expected


def test_a_message_of_any_depth_is_read_as_it_was_written() -> None:
    deep = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    sent = record(op=Op.CREATE, current=deep.decode()).envelope
    for envelope in (sent, Envelope(provenance=sent.provenance, current=sent.current, original=MISSING)):
        assert json_codec.decode(json_codec.encode(envelope)) == envelope
