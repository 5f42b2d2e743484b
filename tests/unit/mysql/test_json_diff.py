"""Tests how partial updates of JSON documents are applied. For such an update, the log has only the document's changes.

The integration tests compare the resulting documents with those of a server.
"""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.values.documents.json_binary import DEPTH_MAX, Json
from changelog.connectors.sources.mysql.values.documents.json_diff import JsonOperation, apply_diffs
from changelog.connectors.sources.mysql.values.documents.json_text import print_json
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.json_encoder import change, encode
from tests.unit.mysql.test_json import DOCUMENTS, mutated

REPLACE, INSERT, REMOVE = JsonOperation
OLD: Json = {"b": [1, 2, 3], "é": None, "aaa": {"x": [[], {"y": 1.5}]}}


@pytest.mark.parametrize(
    ("operation", "path", "value", "text"),
    [
        (REPLACE, "$.b", 7, '{"b": 7, "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (REPLACE, "$.b[1]", "z", '{"b": [1, "z", 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (REPLACE, "$.b[last-2]", {}, '{"b": [{}, 2, 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (REPLACE, '$."é"', "x" * 300, '{"b": [1, 2, 3], "é": "' + "x" * 300 + '", "aaa": {"x": [[], {"y": 1.5}]}}'),
        (REPLACE, "$.aaa.x[1].y", [True], '{"b": [1, 2, 3], "é": null, "aaa": {"x": [[], {"y": [true]}]}}'),
        (INSERT, "$.c", 1, '{"b": [1, 2, 3], "c": 1, "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (INSERT, '$.""', 1, '{"": 1, "b": [1, 2, 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (INSERT, r'$."\"\u00e9\\"', 1, r'{"b": [1, 2, 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}, "\"é\\": 1}'),
        (INSERT, "$.b[0]", 0, '{"b": [0, 1, 2, 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (INSERT, "$.b[9]", 4, '{"b": [1, 2, 3, 4], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (INSERT, "$.b[last]", 9, '{"b": [1, 2, 9, 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (INSERT, "$.b[last-7]", 0, '{"b": [0, 1, 2, 3], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
        (REMOVE, "$.aaa", None, '{"b": [1, 2, 3], "é": null}'),
        (REMOVE, "$.b[last]", None, '{"b": [1, 2], "é": null, "aaa": {"x": [[], {"y": 1.5}]}}'),
    ],
)
def test_a_change_is_applied_to_a_document(operation: JsonOperation, path: str, value: Json, text: str) -> None:
    assert apply_diffs(encode(OLD), change(operation, path, value)).decode() == text


def test_changes_are_applied_in_their_order() -> None:
    diffs = change(INSERT, "$.c", [1]) + change(INSERT, "$.c[1]", 2) + change(REMOVE, "$.aaa") + change(REMOVE, "$.b")
    assert apply_diffs(memoryview(encode(OLD)), memoryview(diffs)).decode() == '{"c": [1, 2], "é": null}'


@given(DOCUMENTS)
def test_a_partial_update_without_changes_leaves_the_document_as_it_is(document: Json) -> None:
    assert apply_diffs(encode(document), b"") == print_json(document)


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        *[(REPLACE, path) for path in ("$.c", "$.b[3]", "$.b[last-3]", "$.b.a", "$.é[0]", "$[0]", "$.aaa.x[0][0]")],
        *[(INSERT, path) for path in ("$.b", "$.é.a", "$.b.a", "$.c.a", "$[0]")],
        *[(REMOVE, path) for path in ("$.c", "$.b[3]", "$.é[0]")],
        *[
            (REMOVE, path)
            for path in ("$", "", ".b", "$b", "$.b[*]", "$.*", "$**.y", "$.b[0 to 1]", "$.b ", "$.", '$."')
        ],
        *[(REMOVE, path) for path in (r'$."\ud800"', r'$."\x"', "$.b[٣]", "$" + "[0]" * (DEPTH_MAX + 1))],
    ],
)
def test_a_change_that_does_not_fit_the_document_is_malformed(operation: JsonOperation, path: str) -> None:
    with pytest.raises(ChangelogError, match=r"a partial update of a JSON value is not valid: .* offset") as raised:
        apply_diffs(encode(OLD), change(operation, path, 1))
    assert raised.value.kind is Kind.MALFORMED


@pytest.mark.parametrize(
    ("diffs", "offset"),
    [
        (b"\x03", 0),
        (b"\x00", 1),
        (b"\x02\xfb", 1),
        (b"\x02\xff", 1),
        (b"\x02\x05$.b", 1),
        (b"\x02\xfc\x03", 1),
        (b"\x02\x03$.\xff", 1),
        (b"\x00\x03$.b", 5),
        (b"\x00\x03$.b\x02\x04", 5),
        (change(REMOVE, "$.b") + change(REMOVE, "$.b"), 5),
    ],
)
def test_bytes_that_are_no_partial_update_are_malformed(diffs: bytes, offset: int) -> None:
    with pytest.raises(ChangelogError, match=rf"at offset {offset}$") as raised:
        apply_diffs(encode(OLD), diffs)
    assert raised.value.kind is Kind.MALFORMED


@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_mutated_bytes_give_another_update_or_are_malformed(value: Json, random: Random) -> None:
    diffs = change(INSERT, "$.c", value) + change(REPLACE, "$.b[1]", value) + change(REMOVE, '$."aaa".x[last-1]')
    for _ in range(20):
        changed = mutated(diffs, random)
        try:
            text = apply_diffs(encode(OLD), changed)
        except ChangelogError as error:
            if error.kind is not Kind.MALFORMED:
                raise
        else:
            json.loads(text)
