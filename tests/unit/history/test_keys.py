"""Tests the history of one row, and its blame, which says who set each attribute. Both come from a file log and its
archive.

The blame must be the same as if it were computed from all records of the changelog.
"""

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.history.key_blame import key_blame
from changelog.connectors.history.key_history import key_history
from changelog.connectors.history.key_records import KEYS_MAX
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text
from changelog.envelope.model import Op, Place, Record, position_of
from changelog.envelope.position import Position
from tests.unit.blame.world import KEYS, World, folded, worlds
from tests.unit.history.stored import COMMITS, store
from tests.unit.records import BEGIN, record


@settings(max_examples=25)
@given(worlds(), st.data())
def test_the_blame_of_a_key_includes_all_changes_up_to_the_moment(world: World, data: st.DataObject) -> None:
    records = world.records
    with tempfile.TemporaryDirectory() as folder:
        log = store(Path(folder), records, archived=data.draw(st.integers(0, COMMITS)))
        ends = [position_of(item) for item in records]
        for end in (data.draw(st.sampled_from(ends)), ends[-1]):
            blames = folded([item for item in records if position_of(item) <= end])
            for key in KEYS:
                first = next((item for item in records if item.place.key == key), None)
                if first is None or position_of(first) > end:
                    with pytest.raises(ChangelogError, match=f"has no change of order {key}"):
                        key_blame(log, "order", key, at=end)
                    continue
                assert key_blame(log, "order", key, at=end) == blames[key]
                if end == ends[-1]:
                    assert key_blame(log, "order", key) == blames[key]
                last_of_transaction = position_of(
                    [item for item in records if position_of(item).commit == end.commit][-1]
                )
                if end == last_of_transaction:
                    assert key_blame(log, "order", key, at=BEGIN + timedelta(seconds=end.commit)) == blames[key]


def move(commit: int, key: str, to: str) -> list[Record]:
    here, there = Place(key=key, partition=0), Place(key=to, partition=0)
    return [
        record(Op.DELETE, None, commit=commit, ordinal=0, key=key, moved_to=there),
        record(Op.CREATE, f'{{"id":{to},"a":1}}', commit=commit, ordinal=1, key=to, moved_from=here),
    ]


BACK_AND_FORTH = [
    record(Op.CREATE, '{"id":1,"a":0}', commit=1, key="1"),
    record(Op.DELETE, commit=2, key="1"),
    record(Op.CREATE, '{"id":1,"a":1}', commit=3, key="1"),
    *move(4, "1", "2"),
    *move(5, "2", "1"),
    record(Op.CREATE, '{"id":2,"a":9}', commit=6, key="2"),
    *move(7, "1", "3"),
    record(Op.TRUNCATE, None, None, commit=8, key=TRUNCATE_KEY, partition=0),
    record(Op.TRUNCATE, None, None, commit=8, key=TRUNCATE_KEY, partition=1),
    record(Op.CREATE, '{"id":3,"a":5}', commit=9, key="3"),
]


def steps(records: list[Record]) -> list[tuple[int, str, Op]]:
    return [(position_of(item).commit, item.place.key, item.envelope.provenance.source.op) for item in records]


def test_a_history_follows_the_row_to_the_keys_that_it_had_before(tmp_path: Path) -> None:
    log = store(tmp_path, BACK_AND_FORTH, archived=2)
    first_life = [(3, "1", Op.CREATE), (4, "1", Op.DELETE)]
    assert steps(key_history(log, "order", "3")) == [
        *first_life,
        (4, "2", Op.CREATE),
        (5, "2", Op.DELETE),
        (5, "1", Op.CREATE),
        (7, "1", Op.DELETE),
        (7, "3", Op.CREATE),
        (8, TRUNCATE_KEY, Op.TRUNCATE),
        (9, "3", Op.CREATE),
    ]
    assert steps(key_history(log, "order", "2")) == [
        *first_life,
        (4, "2", Op.CREATE),
        (5, "2", Op.DELETE),
        (6, "2", Op.CREATE),
        (8, TRUNCATE_KEY, Op.TRUNCATE),
    ]
    assert steps(key_history(log, "order", "1"))[:3] == [(1, "1", Op.CREATE), (2, "1", Op.DELETE), (3, "1", Op.CREATE)]


def test_a_history_can_be_limited_to_a_span(tmp_path: Path) -> None:
    log = store(tmp_path, BACK_AND_FORTH)
    since, until = Position(1, 5, 0), BEGIN + timedelta(seconds=7)
    span = key_history(log, "order", "3", since=since, until=until)
    assert [position_of(item).commit for item in span] == [5, 5, 7, 7]
    assert key_history(log, "order", "3", since=BEGIN + timedelta(days=1)) == []
    assert key_history(log, "order", "3", until=Position(1, 1, 0)) == []


def test_a_row_that_moved_very_often_is_followed_only_up_to_a_limit(tmp_path: Path) -> None:
    count = KEYS_MAX + 5
    moves = [item for number in range(count) for item in move(number + 2, str(number), str(number + 1))]
    log = store(tmp_path, [record(Op.CREATE, '{"id":0,"a":1}', key="0"), *moves])
    blame = key_blame(log, "order", str(count))
    [identity, attribute] = blame.attributes
    assert identity.writer.stamp is not None
    assert (attribute.pointer, attribute.writer.stamp) == ("/a", None)
    assert len(key_history(log, "order", str(count))) == 2 * KEYS_MAX + 1


def test_the_error_for_a_question_without_an_answer_is_one_line(tmp_path: Path) -> None:
    log = store(tmp_path / "log", BACK_AND_FORTH)
    where = f"the changelog in {tmp_path / 'log'}"
    for question in (key_blame, key_history):
        with pytest.raises(ChangelogError) as caught:
            question(log, "order", "7\x1b")
        assert str(caught.value) == f"{where} has no change of order 7\\u001b"
        assert caught.value.kind is Kind.USAGE
        with pytest.raises(ChangelogError, match="has no entity parcel; it has: guest, order"):
            question(log, "parcel", "7")
    with pytest.raises(ChangelogError) as caught:
        key_blame(log, "order", "3", at=Position(1, 6, 0))
    began = "its first change is at 00000001/0000000000000007/00000001, 2026-11-21T03:10:09.886044Z"
    assert str(caught.value) == f"{where} has no change of order 3 up to 00000001/0000000000000006/00000000; {began}"
    with pytest.raises(ChangelogError, match=r"no change of order 1 up to 2026-11-21T03:10:02\.886044Z; its first"):
        key_blame(log, "order", "1", at=BEGIN)
    with pytest.raises(
        ChangelogError, match="the key of the entity guest has 2 columns, not 1; give the values of region, id"
    ):
        key_blame(log, "guest", "1")
    with pytest.raises(ChangelogError, match=r"no change of guest .*EU"):
        key_blame(log, "guest", key_text(["EU", "1"]))
    with pytest.raises(ChangelogError, match="the key of the entity order has 1 column, not 2"):
        key_history(log, "order", key_text(["1", "2"]))
