"""Tests `BlameFold`, which finds the change that set each attribute of a row.

`BlameFold` must find the same changes as a search through all versions of the row.
"""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope.blame import Attribute, Blame, BlameFold
from changelog.envelope.blame.leaves import NESTING_MAX
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Op, Place, Record, position_of
from tests.unit.blame.search import sorted_text, true_blame, versions_in
from tests.unit.blame.world import World, folded, worlds
from tests.unit.records import record

HERE, THERE = Place(key="42", partition=0), Place(key="43", partition=0)


@given(worlds())
def test_every_attribute_is_blamed_on_the_change_that_set_it(world: World) -> None:
    for key, blame in folded(world.records).items():
        state = world.state(key)
        assert blame.current == state if state is None else json.loads(bytes(blame.current or b"")) == state
        true_attributes = true_blame(world.versions.get(key, []))
        assert {attribute.pointer for attribute in blame.attributes} == true_attributes.keys()
        for attribute in blame.attributes:
            expected = true_attributes[attribute.pointer]
            assert attribute.writer.stamp is not None
            assert attribute.writer.position.commit == expected.change
            assert attribute.writer.stamp.identifier == f"req-{expected.change}"
            assert (sorted_text(attribute.value), sorted_text(attribute.before)) == (expected.value, expected.before)


@given(worlds())
def test_all_versions_can_be_derived_from_the_messages(world: World) -> None:
    """`tests.integration.blame_check` relies on this: it has only the messages, and derives the versions from them."""
    versions_by_key = versions_in(world.records)
    for key, versions in world.versions.items():
        by_message, by_truth = true_blame(versions_by_key[key]), true_blame(versions)
        assert by_message.keys() == by_truth.keys()
        for pointer, attribute in by_message.items():
            expected = by_truth[pointer]
            assert position_of(world.records[attribute.change]).commit == expected.change
            assert (attribute.value, attribute.before) == (expected.value, expected.before)


@st.composite
def broken_logs(draw: st.DrawFn) -> tuple[list[Record], dict[str, int]]:
    """Draws a changelog that has lost some changes. Returns its records, and for each column the number of the change
    that set the column's last value.

    A change never writes a value that the column had before. Each update has the old row.
    """
    names = ("a", "b", "c")
    writers, state, records = dict.fromkeys(names, 0), dict.fromkeys(names, 0), []
    records.append(record(Op.CREATE, json.dumps(state), commit=0))
    for change in range(1, draw(st.integers(1, 8)) + 1):
        before = json.dumps(state)
        for name in draw(st.sets(st.sampled_from(names))):
            state[name] = writers[name] = change
        is_read = draw(st.booleans())
        if is_read:
            records.append(record(Op.READ, json.dumps(state), commit=change))
        else:
            records.append(record(Op.UPDATE, json.dumps(state), before, commit=change))
    records_left = [item for item in records[:-1] if draw(st.booleans())]
    return [*records_left, records[-1]], writers


@given(broken_logs())
def test_no_change_is_blamed_for_what_a_lost_change_wrote(broken_log: tuple[list[Record], dict[str, int]]) -> None:
    records, writers = broken_log
    fold = BlameFold()
    for item in records:
        fold.add(item)
    for attribute in fold.result().attributes:
        if attribute.writer.stamp is not None:
            assert attribute.writer.position.commit == writers[attribute.pointer[1:]]


def blame_of(*records: Record) -> dict[str, Attribute]:
    fold = BlameFold()
    for item in records:
        fold.add(item)
    return {attribute.pointer: attribute for attribute in fold.result().attributes}


def summary(attributes: dict[str, Attribute]) -> dict[str, tuple[object, object, int, bool]]:
    """Returns, by the pointer of each attribute: its value, the value before, the commit of the change that is blamed,
    and whether that change certainly set the value.
    """
    return {
        pointer: (
            sorted_text(attribute.value),
            sorted_text(attribute.before),
            attribute.writer.position.commit,
            attribute.writer.stamp is not None,
        )
        for pointer, attribute in attributes.items()
    }


def test_parts_of_json_have_their_own_writers() -> None:
    blame = blame_of(
        record(Op.CREATE, '{"doc":{"street":"A","tags":[1,2],"old":{"x":1}},"empty":{}}', commit=1),
        record(Op.UPDATE, '{"doc":{"street":"B","tags":[0,1,2],"old":5},"empty":{"k":[]}}', commit=2),
        record(Op.UPDATE, '{"doc":{"old":5,"street":"\\u0042","tags":[0,1,2]},"empty":{"k":[]}}', commit=3),
    )
    assert summary(blame) == {
        "/doc/street": ('"B"', '"A"', 2, True),
        "/doc/tags/0": ("0", "1", 2, True),
        "/doc/tags/1": ("1", "2", 2, True),
        "/doc/tags/2": ("2", MISSING, 2, True),
        "/doc/old": ("5", '{"x": 1}', 2, True),
        "/empty/k": ("[]", MISSING, 2, True),
    }
    assert list(blame)[:2] == ["/doc/old", "/doc/street"]


UNKNOWN_FROM_1 = {"/a": ("1", None, 1, False), "/b": ("2", None, 1, False)}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([record(Op.READ, '{"a":1,"b":2}')], UNKNOWN_FROM_1, id="a read"),
        pytest.param([record(Op.UPDATE, '{"a":1,"b":2}')], UNKNOWN_FROM_1, id="an update of a row that was never seen"),
        pytest.param(
            [record(Op.UPDATE, '{"a":1,"b":2}', '{"a":0,"b":2}')],
            {"/a": ("1", "0", 1, True), "/b": ("2", None, 1, False)},
            id="an update with its original, of a row that was never seen",
        ),
        pytest.param(
            [record(Op.UPDATE, '{"a":1,"b":2}', '{"a":0}', unavailable_original=("b",))],
            {"/a": ("1", "0", 1, True), "/b": ("2", None, 1, False)},
            id="an update with a part of its original, of a row that was never seen",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1,"b":2}', moved_from=THERE)],
            UNKNOWN_FROM_1,
            id="a move from a key without changes",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1,"b":2}'), record(Op.READ, '{"a":1,"b":3,"c":4}', commit=2)],
            {"/a": ("1", MISSING, 1, True), "/b": ("3", "2", 2, False), "/c": ("4", MISSING, 2, False)},
            id="a read of another value",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1}'), record(Op.DELETE, commit=2), record(Op.READ, '{"a":1}', commit=3)],
            {"/a": ("1", MISSING, 3, False)},
            id="a read after a delete",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1}'), record(Op.DELETE, commit=2), record(Op.UPDATE, '{"a":1}', commit=3)],
            {"/a": ("1", None, 3, False)},
            id="an update after a delete",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1,"b":2}'), record(Op.UPDATE, '{"a":6,"b":4}', '{"a":5,"b":4}', commit=2)],
            {"/a": ("6", "5", 2, True), "/b": ("4", "2", 2, False)},
            id="an original with another value",
        ),
        pytest.param(
            [record(Op.READ, '{"a":1}', unavailable=("b",)), record(Op.UPDATE, '{"a":1}', unavailable=("b",))],
            {"/a": ("1", None, 1, False), "/b": (None, None, 1, False)},
            id="a value that was never sent",
        ),
        pytest.param(
            [
                record(Op.UPDATE, '{"a":1}', unavailable=("b",)),
                record(Op.UPDATE, '{"a":1,"b":{"x":1}}', commit=2),
            ],
            {"/a": ("1", None, 1, False), "/b/x": ("1", None, 2, True)},
            id="a value that an update is the first to send",
        ),
        pytest.param(
            [
                record(Op.UPDATE, '{"a":1}', unavailable=("b",)),
                record(Op.UPDATE, '{"a":1,"b":2}', '{"a":1,"b":2}', commit=2),
            ],
            {"/a": ("1", None, 1, False), "/b": ("2", None, 1, False)},
            id="a value that an original is the first to send",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1}'), record(Op.UPDATE, '{"a":1,"b":null}', '{"a":1,"b":null}', commit=2)],
            {"/a": ("1", MISSING, 1, True), "/b": ("null", MISSING, 2, True)},
            id="a column that was added",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1,"b":2}'), record(Op.UPDATE, '{"b":2}', commit=2)],
            {"/b": ("2", MISSING, 1, True)},
            id="a column that was dropped",
        ),
        pytest.param(
            [record(Op.CREATE, '{"a":1}'), record(Op.CREATE, '{"a":1}', commit=2)],
            {"/a": ("1", MISSING, 2, True)},
            id="two creates",
        ),
    ],
)
def test_the_writer_is_unknown_if_the_changelog_lacks_the_change(
    records: Sequence[Record], expected: dict[str, object]
) -> None:
    assert summary(blame_of(*records)) == expected


def test_a_move_keeps_the_writers_of_what_it_does_not_change() -> None:
    there, here = BlameFold(), BlameFold()
    there.add(record(Op.CREATE, '{"id":43,"a":1,"b":2}', key="43"))
    there.add(record(Op.DELETE, None, '{"id":43,"b":9}', commit=2, key="43", moved_to=HERE))
    here.continue_from(there)
    here.add(record(Op.CREATE, '{"id":42,"b":9}', commit=2, ordinal=3, moved_from=THERE, unavailable=("a",)))
    blame = here.result()
    assert blame.current == Raw(b'{"id":42,"a":1,"b":9}')
    assert summary({attribute.pointer: attribute for attribute in blame.attributes}) == {
        "/id": ("42", "43", 2, True),
        "/a": ("1", MISSING, 1, True),
        "/b": ("9", "2", 2, False),
    }


def test_the_blame_of_a_deleted_row_has_only_the_last_change() -> None:
    for op in (Op.DELETE, Op.TRUNCATE):
        fold = BlameFold()
        assert fold.result() == Blame(current=None, last=None, attributes=())
        fold.add(record(Op.TRUNCATE, None, None, commit=1))
        assert fold.result() == Blame(current=None, last=None, attributes=())
        fold.add(record(Op.CREATE, '{"a":1}', commit=2))
        fold.add(record(op, commit=3))
        fold.add(record(Op.TRUNCATE, None, None, commit=4))
        blame = fold.result()
        assert blame.last is not None
        assert (blame.current, blame.last.op, blame.last.position.commit, blame.services) == (None, op, 3, ())


def test_services_are_named_in_the_order_of_the_attributes() -> None:
    fold = BlameFold()
    fold.add(record(Op.CREATE, '{"a":1,"b":2,"c":3}', service="x"))
    fold.add(record(Op.UPDATE, '{"a":9,"b":2,"c":3}', service="y", commit=2))
    fold.add(record(Op.READ, '{"a":9,"b":8,"c":3}', commit=3))
    assert fold.result().services == ("y", "x")


def test_a_state_that_is_no_object_is_an_error_with_its_position() -> None:
    with pytest.raises(ChangelogError, match=r"the state of a change \(create\) is not a JSON object at 0000"):
        BlameFold().add(record(Op.CREATE, "[1]"))
    with pytest.raises(ChangelogError) as caught:
        BlameFold().add(record(Op.UPDATE))
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize("depth", [NESTING_MAX + 5, 100_000])
def test_deep_json_is_blamed_as_a_whole(depth: int) -> None:
    states = [f'{{"n":{n},"deep":{"[" * depth}{n // 2}{"]" * depth}}}' for n in range(3)]
    blame = blame_of(
        record(Op.CREATE, states[0]),
        record(Op.UPDATE, states[1], commit=2),
        record(Op.UPDATE, states[2], commit=3),
    )
    assert [attribute.writer.position.commit for attribute in blame.values()] == [3, 3]
    assert [attribute.before for attribute in blame.values()][1] is not MISSING
