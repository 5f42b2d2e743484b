"""Tests which changes stop a stream, where the stream stops, and with which decisions it continues."""

from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.rows.row_change import Insert
from changelog.connectors.sources.postgres.decode.messages import (
    Decoded,
)
from changelog.connectors.sources.postgres.values.types import PgType
from changelog.envelope.entity import DEAD
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from tests.unit.postgres.messages import (
    TEXT,
    TRUNCATE,
    TYPES,
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


def test_a_stream_that_stops_returns_exactly_the_transactions_before_the_stop() -> None:
    stream = assembler()
    assembled = stream.feed(frames(STOPPING))
    assert ops(assembled) == ["create 1"]
    assert (assembled.through, assembled.partial) == (commit_text(101), False)
    assert stopped_at(stream.stop) == "200/2"
    assert stream.stop is not None
    assert stream.stop.kind is Kind.STOP
    assert "accept 00000001/00000000000000C8/00000002" in str(stream.stop)
    assert stream.feed(frames(transaction(400, [insert(5)]))) == Assembled()


def test_an_error_in_the_catalogue_loses_no_transaction_before_it() -> None:
    """When the error occurs, the rows of earlier transactions are decoded, but not yet encoded for the changelog."""
    sent = [*STOPPING[:4], *transaction(150, [insert(7), relation(20_001, "refunds", columns={"id": 99})])]
    entities = [entity(), entity("refund", "refunds")]
    stream = assembler(entities, resolve=_lost)
    assembled = stream.feed(frames([*sent, *transaction(160, [insert(8)])]))
    assert (ops(assembled), assembled.through) == (["create 1"], commit_text(101))
    assert stream.stop is not None
    assert stream.stop.kind is Kind.CONNECTION
    assert stopped_at(stream.stop) == "150/2"


def test_a_stop_before_an_error_in_the_catalogue_hides_the_error() -> None:
    lost = transaction(250, [relation(20_001, "refunds", columns={"id": 99})])
    stream = assembler([entity(), entity("refund", "refunds")], resolve=_lost)
    assembled = stream.feed(frames([*STOPPING, *lost]))
    assert (ops(assembled), assembled.through) == (["create 1"], commit_text(101))
    assert stopped_at(stream.stop) == "200/2"


def _lost(type_oid: int) -> PgType:
    if type_oid == 99:
        raise ChangelogError(Kind.CONNECTION, "the connection broke")
    return TYPES[type_oid]


def test_a_stop_in_the_first_transaction_returns_nothing() -> None:
    stream = assembler()
    assembled = stream.feed(frames(transaction(200, [relation(), TRUNCATE])))
    assert (assembled.rows, assembled.through, assembled.partial) == ([], None, False)


@given(st.integers(0, len(STOPPING)), st.sampled_from([1, 2, 100]))
def test_a_stop_does_not_depend_on_how_frames_are_divided(cut: int, rows_max: int) -> None:
    stream = assembler(rows_max=rows_max)
    pieces = [stream.feed(frames(STOPPING)[:cut]), stream.feed(frames(STOPPING)[cut:])]
    assert stopped_at(stream.stop) == "200/2"
    assert ops(*pieces) in (["create 1"], ["create 1", "create 2"])
    assert max(piece.through or "" for piece in pieces) == commit_text(101)
    resumed = assembler(
        published=Position.parse(table(*pieces)["position"][-1].as_py()),
        partial=any(piece.partial for piece in pieces),
        decisions={Position(1, 200, 2): "skip"},
    )
    assert ops(*pieces, resumed.feed(frames(STOPPING))) == ["create 1", "create 2", "create 3", "create 4"]


def test_a_decision_to_skip_holds_until_the_end_of_its_transaction() -> None:
    sent = [*transaction(200, [relation(), TRUNCATE, insert(1), TRUNCATE]), *transaction(300, [TRUNCATE])]
    stream = assembler(decisions={Position(1, 200, 0): "skip"})
    assert ops(stream.feed(frames(sent))) == ["create 1"]
    assert stopped_at(stream.stop) == "300/0"


def test_a_decision_does_not_hold_before_its_position() -> None:
    stream = assembler(decisions={Position(1, 200, 4): "skip"})
    stream.feed(frames(transaction(200, [relation(), TRUNCATE, insert(1), TRUNCATE])))
    assert stopped_at(stream.stop) == "200/0"


def test_changes_that_are_set_aside_belong_to_the_reserved_entity() -> None:
    immutable = entity(immutable=True)
    stream = assembler([immutable], decisions={Position(1, 200, 2): "dead-letter"})
    rows = table(stream.feed(frames(transaction(200, [relation(), insert(1), update(1, 1), delete(1)])))).to_pylist()
    assert [(row["entity"], row["key"], row["op"]) for row in rows] == [
        ("order", "1", "create"),
        (DEAD, "order", "update"),
        (DEAD, "order", "delete"),
    ]
    assert stream.stop is None


def test_a_change_without_a_stamp_stops_the_stream_until_the_default_is_accepted() -> None:
    stopping = entity(missing_stamp="stop")
    sent = frames(transaction(200, [relation(), stamp(b"no"), insert(1), insert(2), stamp(), insert(3)]))
    stream = assembler([stopping])
    stream.feed(sent)
    assert stopped_at(stream.stop) == "200/2"
    stream = assembler([stopping], decisions={Position(1, 200, 2): "default"})
    assert table(stream.feed(sent))["service_name"].to_pylist() == ["nobody", "nobody", "order-api"]
    assert stream.stop is None


def test_the_stream_stops_again_if_the_decision_does_not_fit_the_stop() -> None:
    stream = assembler([entity(immutable=True)], decisions={Position(1, 200, 0): "default"})
    stream.feed(frames(transaction(200, [relation(), delete(1)])))
    assert stopped_at(stream.stop) == "200/0"


def test_changes_of_an_immutable_entity_may_be_ignored() -> None:
    immutable = entity(immutable=True, on_change_of_immutable="ignore")
    stream = assembler([immutable])
    assert ops(stream.feed(frames(transaction(200, [relation(), insert(1), update(1, 2), delete(2)])))) == ["create 1"]
    assert stream.stop is None


def test_a_row_without_a_key_stops_the_stream() -> None:
    sent: list[Decoded] = [relation(), Insert(relid=20_000, new=(None, b"NEW"))]
    stream = assembler()
    stream.feed(frames(transaction(200, sent)))
    assert stopped_at(stream.stop) == "200/0"
    stream = assembler(decisions={Position(1, 200, 0): "dead-letter"})
    [row] = table(stream.feed(frames(transaction(200, sent)))).to_pylist()
    assert (row["entity"], row["key"], row["current"]) == (DEAD, "order", '{"id":null,"status":"NEW"}')


def test_a_table_that_loses_its_key_column_stops_the_stream_at_the_next_row() -> None:
    sent = [
        *transaction(100, [relation(), insert(1)]),
        *transaction(200, [insert(2), relation(columns={"status": TEXT}), Insert(relid=20_000, new=(b"NEW",))]),
    ]
    stream = assembler()
    assembled = stream.feed(frames(sent))
    assert (ops(assembled), assembled.through) == (["create 1"], commit_text(101))
    assert stopped_at(stream.stop) == "200/2"
