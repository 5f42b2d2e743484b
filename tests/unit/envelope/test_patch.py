"""Tests the JSON Patches that turn one state of a row into another."""

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope.canonical import text_of
from changelog.envelope.delta.patch import EDITS_MAX, MISSING, apply, diff, dumps, invert, parse
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.envelope.strategies import objects, values

arrays = st.lists(st.integers(0, 3), max_size=12)
sides = values | objects | arrays | st.lists(st.fixed_dictionaries({"id": st.integers(0, 3), "v": arrays}), max_size=6)
documents = st.just(MISSING) | sides


def same(a: Any, b: Any) -> bool:
    return (a is MISSING and b is MISSING) or (MISSING not in (a, b) and text_of(a) == text_of(b))


@given(documents, documents)
def test_a_patch_makes_current_from_original_and_back(original: Any, current: Any) -> None:
    before = copy.deepcopy((original, current))
    patch = diff(original, current)
    assert same(apply(patch, original), current)
    assert same(apply(invert(patch), current), original)
    assert invert(invert(patch)) == patch
    assert (original, current) == before


@given(sides, sides)
def test_the_package_jsonpatch_applies_our_patches(original: Any, current: Any) -> None:
    patch = diff(original, current)
    assert same(jsonpatch.apply_patch(copy.deepcopy(original), copy.deepcopy(patch)), current)


@given(sides, sides)
def test_patches_of_jsonpatch_apply(original: Any, current: Any) -> None:
    theirs = list(jsonpatch.make_patch(original, current))
    assume(all(operation["op"] in ("add", "replace", "remove") for operation in theirs))
    assert apply(theirs, original) == jsonpatch.apply_patch(copy.deepcopy(original), theirs)


@given(sides, sides)
def test_a_patch_survives_serialization(original: Any, current: Any) -> None:
    a, b = parse(dumps(original)), parse(dumps(current))
    patch = parse(dumps(diff(a, b)))
    assert same(apply(patch, a), b)
    assert dumps(patch) == dumps(diff(original, current))


@given(documents, documents)
def test_a_value_is_tested_before_it_is_replaced_or_removed(original: Any, current: Any) -> None:
    patch = diff(original, current)
    for before, operation in zip([{}, *patch], patch, strict=False):
        assert operation["op"] in ("test", "add", "replace", "remove")
        if operation["op"] in ("replace", "remove"):
            assert before == {"op": "test", "path": operation["path"], "value": before["value"]}


@pytest.mark.parametrize(
    ("original", "current", "patch"),
    [
        (MISSING, {"a": 1}, [{"op": "add", "path": "", "value": {"a": 1}}]),
        ({"a": 1}, MISSING, [{"op": "test", "path": "", "value": {"a": 1}}, {"op": "remove", "path": ""}]),
        (MISSING, MISSING, []),
        ({"a": 1, "b": [{}]}, {"b": [{}], "a": 1}, []),
        (
            {"a/b": 1, "m~n": {"x": None, "y": 2}},
            {"a/b": 2, "m~n": {"y": 2}, "": 3},
            [
                {"op": "test", "path": "/a~1b", "value": 1},
                {"op": "replace", "path": "/a~1b", "value": 2},
                {"op": "test", "path": "/m~0n/x", "value": None},
                {"op": "remove", "path": "/m~0n/x"},
                {"op": "add", "path": "/", "value": 3},
            ],
        ),
        (
            [1, 2],
            {"0": 1},
            [{"op": "test", "path": "", "value": [1, 2]}, {"op": "replace", "path": "", "value": {"0": 1}}],
        ),
    ],
)
def test_a_patch_has_the_expected_operations(original: Any, current: Any, patch: list[dict[str, Any]]) -> None:
    assert diff(original, current) == patch


@pytest.mark.parametrize(
    "tokens", [("1", "1.0"), ("1", "true"), ("0", "false"), ("-0.0", "0.0"), ("1e1", "10"), ("0", "-0")]
)
def test_numbers_are_equal_by_token(tokens: tuple[str, str]) -> None:
    for form in ("%s", '{"a":%s}', "[%s]"):
        a, b = (parse(form % token) for token in tokens)
        assert diff(a, b)
        assert not diff(a, parse(form % tokens[0]))
        with pytest.raises(ChangelogError):
            apply([{"op": "test", "path": "", "value": a}], b)


def test_python_numbers_are_compared_as_json_tokens() -> None:
    assert not diff({"a": 1, "b": [1.5]}, parse('{"a":1,"b":[1.5]}'))
    assert diff({"a": -0.0}, {"a": 0.0})
    assert diff({"a": 1}, {"a": True})


def test_numbers_keep_their_tokens() -> None:
    a, b = parse('{"n":1.50}'), parse('{"n":123456789012345678901234567890.10}')
    assert dumps(diff(a, b)) == (
        b'[{"op":"test","path":"/n","value":1.50},'
        b'{"op":"replace","path":"/n","value":123456789012345678901234567890.10}]'
    )


def test_arrays_give_small_patches() -> None:
    items = [{"id": n, "name": f"item {n}"} for n in range(1000)]
    front = [{"id": -1, "name": "new"}, *items]
    assert diff(items, front) == [{"op": "add", "path": "/0", "value": front[0]}]
    ends = [*items[1:400], {"id": 400, "name": "other"}, *items[401:], items[0]]
    assert diff(items, ends) == [
        {"op": "test", "path": "/0", "value": items[0]},
        {"op": "remove", "path": "/0"},
        {"op": "test", "path": "/399/name", "value": "item 400"},
        {"op": "replace", "path": "/399/name", "value": "other"},
        {"op": "add", "path": "/999", "value": items[0]},
    ]


def test_an_array_that_changed_throughout_is_replaced_as_a_whole() -> None:
    a, b = list(range(1000)), list(range(1000, 2000))
    assert diff({"a": a}, {"a": b}) == [
        {"op": "test", "path": "/a", "value": a},
        {"op": "replace", "path": "/a", "value": b},
    ]


def test_elements_of_an_array_with_too_many_edits_are_compared_by_index() -> None:
    a = [{"id": n, "text": "x" * 100, "n": 0} for n in range(EDITS_MAX)]
    b = [{**item, "n": 1} for item in a]
    patch = diff(a, b)
    assert len(patch) == 2 * EDITS_MAX
    assert same(apply(patch, a), b)


@given(st.lists(st.integers(), min_size=3, max_size=40, unique=True), st.data())
def test_one_moved_element_costs_one_removal_and_one_insertion(items: list[int], data: st.DataObject) -> None:
    texts = [f"element {item}" * 3 for item in items]
    start, end = data.draw(st.permutations(range(len(texts))))[:2]
    moved = texts.copy()
    moved.insert(end, moved.pop(start))
    assert len(diff(texts, moved)) <= 3 + (abs(start - end) == 1)


def test_a_deeply_nested_value_is_replaced_as_a_whole() -> None:
    a, b = (parse('{"a":' * 400 + leaf + "}" * 400) for leaf in "12")
    patch = diff(a, b)
    assert len(patch) == 2
    assert same(apply(patch, a), b)
    assert not diff(a, a)


def test_an_unpaired_surrogate_is_preserved() -> None:
    a, b = parse('{"a":"\\ud800","\\udc00":1}'), parse('{"a":"x"}')
    patch = parse(dumps(diff(a, b)))
    assert same(apply(patch, a), b)


@pytest.mark.parametrize(
    "operation",
    [
        {},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/s/0", "value": "t"},
        {"op": "test", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/l/2", "value": 1},
        {"op": "add", "path": "/l/01", "value": 1},
        {"op": "add", "path": "/l/-1", "value": 1},
        {"op": "add", "path": "/l/\u0661", "value": 1},
        {"op": "add", "path": "/a/b", "value": 1},
        {"op": "add", "path": "/x~2", "value": 1},
        {"op": "add", "path": "/x"},
        {"op": "add", "path": 1, "value": 1},
        {"op": "replace", "path": "/x", "value": 1},
        {"op": "replace", "path": "/l/-", "value": 1},
        {"op": "remove", "path": "/x"},
        {"op": "remove", "path": "/l/1"},
        {"op": "move", "path": "/x", "from": "/a"},
        {"op": "copy", "path": "/x", "from": "/a"},
    ],
)
def test_a_patch_that_does_not_apply_is_refused_without_the_values(operation: dict[str, Any]) -> None:
    document = {"a": 1, "s": "text", "l": [0]}
    first = {"op": "add", "path": "/l/-", "value": 1}
    with pytest.raises(ChangelogError) as caught:
        apply([first, {"op": "remove", "path": "/l/1"}, operation], document)
    assert caught.value.kind is Kind.MALFORMED
    assert str(caught.value) == "a patch does not apply: operation 3 of 3 fails"
    assert document == {"a": 1, "s": "text", "l": [0]}


def test_a_missing_document_accepts_only_a_new_root() -> None:
    for operation in (
        {"op": "remove", "path": ""},
        {"op": "test", "path": "", "value": None},
        {"op": "add", "path": "/a", "value": 1},
    ):
        with pytest.raises(ChangelogError):
            apply([operation], MISSING)
    assert apply([], MISSING) is MISSING
    assert apply([{"op": "add", "path": "", "value": [], "reset": True}], {"a": 1}) == []


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "remove", "path": "/a"}],
        [{"op": "test", "path": "/b", "value": 1}, {"op": "replace", "path": "/a", "value": 1}],
        [{"op": "add", "path": "", "value": {}, "reset": True}],
        [{"op": "move", "path": "/a", "from": "/b"}],
        [{}],
    ],
)
def test_a_patch_without_the_removed_values_cannot_be_inverted(patch: list[dict[str, Any]]) -> None:
    with pytest.raises(ChangelogError, match="lacks the value that it removes") as caught:
        invert(patch)
    assert caught.value.kind is Kind.MALFORMED


def test_a_single_test_operation_stays_in_the_inverse() -> None:
    test = {"op": "test", "path": "/a", "value": 1}
    assert invert([test]) == [test]


def test_a_patch_may_add_raw_json() -> None:
    result = apply([{"op": "add", "path": "/r", "value": Raw("1.0")}], {"a": "b"})
    assert json.loads(dumps(result)) == {"a": "b", "r": 1.0}
