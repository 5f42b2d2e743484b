"""What stops a stream, where it stops, and the decisions that pass a stop."""

from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.rows.row_change import Insert
from changelog.connectors.sources.postgres.decode.messages import (
    Decoded,
)
from changelog.envelope.entity import DEAD
from changelog.envelope.errors import Kind
from changelog.envelope.position import Position, commit_text
from tests.unit.postgres.messages import (
    TEXT,
    TRUNCATE,
    assembler,
    delete,
    entity,
    frames,
    insert,
    ops,
    relation,
    stamp,
    stopped_at,
    table,
    transaction,
    update,
)

STOPPING = [
    *transaction(100, [relation(), insert(1)]),
    *transaction(200, [insert(2), TRUNCATE, insert(3)]),
    *transaction(300, [insert(4)]),
]


def test_a_stop_gives_all_before_its_transaction_and_nothing_behind() -> None:
    fed = assembler()
    given_ = fed.feed(frames(STOPPING))
    assert ops(given_) == ["create 1"]
    assert (given_.through, given_.partial) == (commit_text(101), False)
    assert stopped_at(fed.stop) == "200/2"
    assert fed.stop is not None
    assert fed.stop.kind is Kind.STOP
    assert "accept 00000001/00000000000000C8/00000002" in str(fed.stop)
    assert fed.feed(frames(transaction(400, [insert(5)]))) == Assembled()


def test_a_stop_with_nothing_before_it_ends_nowhere() -> None:
    fed = assembler()
    given_ = fed.feed(frames(transaction(200, [relation(), TRUNCATE])))
    assert (given_.rows, given_.through, given_.partial) == ([], None, False)


@given(st.integers(0, len(STOPPING)), st.sampled_from([1, 2, 100]))
def test_a_stop_is_the_same_however_the_frames_come(cut: int, rows_max: int) -> None:
    fed = assembler(rows_max=rows_max)
    pieces = [fed.feed(frames(STOPPING)[:cut]), fed.feed(frames(STOPPING)[cut:])]
    assert stopped_at(fed.stop) == "200/2"
    assert ops(*pieces) in (["create 1"], ["create 1", "create 2"])
    assert max(piece.through or "" for piece in pieces) == commit_text(101)
    resumed = assembler(
        published=Position.parse(table(*pieces)["position"][-1].as_py()),
        partial=any(piece.partial for piece in pieces),
        decisions={Position(1, 200, 2): "skip"},
    )
    assert ops(*pieces, resumed.feed(frames(STOPPING))) == ["create 1", "create 2", "create 3", "create 4"]


def test_a_skipped_stop_leaves_its_change_out_and_holds_to_the_end_of_its_transaction() -> None:
    sent = [*transaction(200, [relation(), TRUNCATE, insert(1), TRUNCATE]), *transaction(300, [TRUNCATE])]
    fed = assembler(decisions={Position(1, 200, 0): "skip"})
    assert ops(fed.feed(frames(sent))) == ["create 1"]
    assert stopped_at(fed.stop) == "300/0"


def test_a_decision_does_not_hold_before_its_position() -> None:
    fed = assembler(decisions={Position(1, 200, 4): "skip"})
    fed.feed(frames(transaction(200, [relation(), TRUNCATE, insert(1), TRUNCATE])))
    assert stopped_at(fed.stop) == "200/0"


def test_what_is_set_aside_stands_under_the_reserved_entity() -> None:
    made = entity(immutable=True)
    fed = assembler([made], decisions={Position(1, 200, 2): "dead-letter"})
    rows = table(fed.feed(frames(transaction(200, [relation(), insert(1), update(1, 1), delete(1)])))).to_pylist()
    assert [(row["entity"], row["key"], row["op"]) for row in rows] == [
        ("order", "1", "create"),
        (DEAD, "order", "update"),
        (DEAD, "order", "delete"),
    ]
    assert fed.stop is None


def test_a_change_without_a_stamp_stops_until_the_default_is_accepted() -> None:
    made = entity(missing_stamp="stop")
    sent = frames(transaction(200, [relation(), stamp(b"no"), insert(1), insert(2), stamp(), insert(3)]))
    fed = assembler([made])
    fed.feed(sent)
    assert stopped_at(fed.stop) == "200/2"
    fed = assembler([made], decisions={Position(1, 200, 2): "default"})
    assert table(fed.feed(sent))["service_name"].to_pylist() == ["nobody", "nobody", "order-api"]
    assert fed.stop is None


def test_a_decision_that_does_not_fit_its_stop_does_not_pass_it() -> None:
    fed = assembler([entity(immutable=True)], decisions={Position(1, 200, 0): "default"})
    fed.feed(frames(transaction(200, [relation(), delete(1)])))
    assert stopped_at(fed.stop) == "200/0"


def test_changes_of_an_immutable_entity_may_be_ignored() -> None:
    made = entity(immutable=True, on_change_of_immutable="ignore")
    fed = assembler([made])
    assert ops(fed.feed(frames(transaction(200, [relation(), insert(1), update(1, 2), delete(2)])))) == ["create 1"]
    assert fed.stop is None


def test_a_row_without_its_key_stops() -> None:
    sent: list[Decoded] = [relation(), Insert(relid=20_000, new=(None, b"NEW"))]
    fed = assembler()
    fed.feed(frames(transaction(200, sent)))
    assert stopped_at(fed.stop) == "200/0"
    fed = assembler(decisions={Position(1, 200, 0): "dead-letter"})
    [row] = table(fed.feed(frames(transaction(200, sent)))).to_pylist()
    assert (row["entity"], row["key"], row["current"]) == (DEAD, "order", '{"id":null,"status":"NEW"}')


def test_a_relation_that_lost_its_key_stops_behind_what_came_before() -> None:
    sent = [
        *transaction(100, [relation(), insert(1)]),
        *transaction(200, [insert(2), relation(columns={"status": TEXT}), Insert(relid=20_000, new=(b"NEW",))]),
    ]
    fed = assembler()
    given_ = fed.feed(frames(sent))
    assert (ops(given_), given_.through) == (["create 1"], commit_text(101))
    assert stopped_at(fed.stop) == "200/2"
