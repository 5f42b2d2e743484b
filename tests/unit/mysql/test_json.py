"""Tests how JSON in MySQL's binary format is parsed and printed, with encoded documents and with malformed bytes."""

import json
import struct
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.documents.json_binary import DEPTH_MAX, Json, parse_json
from changelog.connectors.sources.mysql.values.documents.json_opaque import Number
from changelog.connectors.sources.mysql.values.documents.json_text import json_text, print_json
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.json_encoder import counted, encode

INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-40_000, 70_000)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5), max_leaves=20
)


def exactly(value: Any) -> Any:
    """Converts a document so that two results are equal only if the documents are exactly the same: 1 differs from 1.0
    and from true, 0.0 differs from -0.0, and the order of members matters.
    """
    if isinstance(value, dict):
        return [(name, exactly(member)) for name, member in value.items()]
    if isinstance(value, list):
        return ["array", *map(exactly, value)]
    return type(value).__name__, repr(value)


@given(DOCUMENTS, st.booleans())
def test_a_document_is_read_back_from_its_bytes_and_its_text(document: Json, large: bool) -> None:
    data = encode(document, large=large)
    assert exactly(parse_json(data)) == exactly(parse_json(memoryview(data))) == exactly(document)
    assert exactly(json.loads(json_text(data))) == exactly(document)


@given(DOCUMENTS)
def test_a_decimal_in_a_document_does_not_change_how_the_rest_is_printed(document: Json) -> None:
    assert print_json([document, Number(text="1.50")]) == b"[%b, 1.50]" % print_json(document)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"a": 1, "b": [True, None, False]}, '{"a": 1, "b": [true, null, false]}'),
        ({}, "{}"),
        ([], "[]"),
        ([[], {}], "[[], {}]"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e16, "1e16"),
        (1e15, "1e15"),
        (999999999999999.9, "999999999999999.9"),
        (-2412673892051202.5, "-2412673892051202.5"),
        (-2412673892051202.0, "-2.412673892051202e15"),
        (-1.25e20, "-1.25e20"),
        (1.5e-7, "0.00000015"),
        (1.5e-15, "0.0000000000000015"),
        (1.5e-16, "1.5e-16"),
        ([1e16, "1e+16"], '[1e16, "1e+16"]'),
        (18446744073709551615, "18446744073709551615"),
        ('\x00\x1f\b\t\n\f\r"\\/\x7fé😀', '"\\u0000\\u001f\\b\\t\\n\\f\\r\\"\\\\/\x7fé😀"'),
    ],
)
def test_a_document_is_printed_as_the_server_prints_it(document: Json, text: str) -> None:
    assert json_text(encode(document)) == print_json(document) == text.encode()


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (246, bytes([5, 2, 0x80, 123, 45]), "123.45"),
        (246, bytes([5, 2, 0x7F, 132, 210]), "-123.45"),
        (10, (((2024 * 13 + 2) << 5 | 29) << 41).to_bytes(8, "little"), '"2024-02-29"'),
        (12, (((2024 * 13 + 2) << 5 | 29) << 41 | 7).to_bytes(8, "little"), '"2024-02-29 00:00:00.000007"'),
        (11, ((838 << 12 | 59 << 6 | 58) << 24 | 5).to_bytes(8, "little"), '"838:59:58.000005"'),
        (11, (-(1 << 24)).to_bytes(8, "little", signed=True), '"-00:00:01.000000"'),
        (252, b"", '"base64:type252:"'),
        (15, b"\0" * 58, '"base64:type15:' + "A" * 76 + '\\nAA=="'),
    ],
)
def test_values_of_sql_types_in_a_document_are_printed(kind: int, data: bytes, text: str) -> None:
    assert json_text(bytes([15, kind]) + counted(data)) == text.encode()


def test_a_document_without_bytes_is_null() -> None:
    assert json_text(b"") == b"null"


def test_bytes_that_an_update_in_place_left_are_ignored() -> None:
    assert json_text(encode("abc") + b"rest") == b'"abc"'


def nested(depth: int) -> Json:
    document: Json = []
    for level in range(depth - 1):
        document = [document] if level % 2 else {"a": document}
    return document


def test_the_depth_is_limited_as_in_the_server() -> None:
    assert parse_json(encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(ChangelogError, match="not valid binary JSON: unexpected bytes at offset") as raised:
        parse_json(encode(nested(DEPTH_MAX + 1)))
    assert raised.value.kind is Kind.MALFORMED


def test_a_value_that_many_offsets_name_does_not_make_a_huge_document() -> None:
    data = b"".join(struct.pack("<HHBHBH", 2, 1000 - 10 * level, 2, 10, 2, 10) for level in range(90))
    with pytest.raises(ChangelogError, match="unexpected bytes at offset"):
        parse_json((b"\x02" + data).ljust(1001, b"\0"))


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"\x0d", 1),
        (b"\x04\x03", 1),
        (b"\x04", 1),
        (b"\x09" + bytes(7), 1),
        (b"\x0b" + struct.pack("<d", float("inf")), 1),
        (b"\x0b" + struct.pack("<d", float("nan")), 1),
        (b"\x0c\x03ab", 2),
        (b"\x0c\x02a\xff", 3),
        (b"\x0c" + b"\x80" * 5 + b"\x00", 1),
        (b"\x00" + struct.pack("<HH", 0, 5), 1),
        (b"\x00" + struct.pack("<HH", 9, 4), 5),
        (b"\x00" + struct.pack("<HHHHHHBHBH", 2, 19, 18, 1, 18, 1, 4, 0, 4, 0) + b"a", 13),
        (b"\x00" + struct.pack("<HHHHHHBHBH", 2, 20, 18, 1, 19, 1, 4, 0, 4, 0) + b"aa", 1),
        (b"\x02" + struct.pack("<HHBH", 1, 7, 12, 7), 8),
        (b"\x02" + struct.pack("<HHBH", 1, 7, 4, 3), 6),
        (b"\x0f\xf6" + counted(bytes([5, 6, 0x80, 123, 45])), 1),
        (b"\x0f\xf6" + counted(bytes([5, 2, 0x80, 123])), 1),
        (b"\x0f\xf6" + counted(b""), 1),
        (b"\x0f\x0c" + counted(bytes(7)), 1),
        (b"\x0f\x0c" + counted(b"\xff" * 8), 1),
        (b"\x0f\x0b" + counted((60 << 24).to_bytes(8, "little")), 1),
        (b"\x0f\x0b" + counted((1 << 46).to_bytes(8, "little")), 1),
    ],
)
def test_bytes_that_are_no_document_are_malformed(data: bytes, offset: int) -> None:
    with pytest.raises(ChangelogError, match=rf"at offset {offset}$") as raised:
        parse_json(data)
    assert raised.value.kind is Kind.MALFORMED


@given(DOCUMENTS, st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=250)
def test_mutated_bytes_give_another_document_or_are_malformed(document: Json, large: bool, random: Random) -> None:
    data = bytearray(encode(document, large=large))
    for _ in range(20):
        changed = mutated(data, random)
        try:
            text = json_text(changed)
        except ChangelogError as error:
            if error.kind is not Kind.MALFORMED:
                raise
        else:
            json.loads(text)


def mutated(data: bytes | bytearray, random: Random) -> bytes:
    """Replaces one to three bytes. Often also removes bytes from the end."""
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        changed[random.randrange(len(data))] = random.choice([0, 1, 2, 15, 127, 128, 255, random.randrange(256)])
    return bytes(changed[: random.choice([len(changed), random.randrange(len(changed))])])
