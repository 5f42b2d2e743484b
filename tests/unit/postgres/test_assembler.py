"""Transactions, stamps, positions, resumption, stops: what stands between the frames and the rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    Commit,
    Decoded,
    LogicalMessage,
    Prepare,
    ReplicationOrigin,
    StreamAbort,
    Truncate,
    TypeName,
)
from changelog.connectors.sources.postgres.decode.xids import Xids
from changelog.envelope.columnar import batch
from changelog.envelope.entity import DEAD
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from changelog.schemas.types import Array, Primitive, Struct
from tests.unit.postgres.messages import (
    INT,
    TEXT,
    assembler,
    delete,
    entity,
    frames,
    insert,
    positions,
    relation,
    stamp,
    table,
    transaction,
    update,
)

TRUNCATE = Truncate(relids=(20_000,), cascade=False, restart_identity=False)
FOREIGN = LogicalMessage(transactional=True, lsn=0, prefix="someone", content=b"else")
UNBOUND = relation(30_000, "unbound")


def _ops(*pieces: Assembled) -> list[str]:
    """`op key` of each row."""
    rows = table(*pieces)
    return [f"{op} {key}" for op, key in zip(rows["op"].to_pylist(), rows["key"].to_pylist(), strict=True)]


def _stopped_at(error: ChangelogError | None) -> str:
    assert error is not None
    assert error.position is not None
    return f"{error.position.commit}/{error.position.ordinal}"


# Positions


def test_every_record_of_a_transaction_counts_and_a_move_takes_two() -> None:
    changes: list[Decoded] = [
        relation(),
        UNBOUND,
        stamp(),
        insert(1),
        insert(7, relid=30_000),
        TypeName(type_oid=1, namespace="public", name="mood"),
        ReplicationOrigin(commit_lsn=1, name="elsewhere"),
        update(1, 2),
        FOREIGN,
        LogicalMessage(transactional=False, lsn=0, prefix="someone", content=b"else"),
        TRUNCATE,
        delete(2),
    ]
    given_ = assembler([entity(on_truncate="publish")]).feed(frames(transaction(100, changes)))
    assert _ops(given_) == ["create 1", "delete 1", "create 2", "truncate \0truncate", "delete 2"]
    assert positions(given_) == ["100/2", "100/6", "100/7", "100/10", "100/12"]


def test_a_truncate_is_one_row_a_partition() -> None:
    made = entity(on_truncate="publish", partitions=3)
    given_ = assembler([made]).feed(frames(transaction(100, [relation(), TRUNCATE])))
    assert table(given_)["partition"].to_pylist() == [0, 1, 2]
    assert positions(given_) == ["100/0"] * 3


def test_every_row_says_where_and_when_it_was_committed() -> None:
    sent = transaction(0x1781838, [relation(), insert(1)], xid=765, at=848_459_402_886_044)
    [row] = table(assembler().feed(frames(sent))).to_pylist()
    assert row["position"] == "00000001/0000000001781838/00000000"
    assert row["transaction"] == "765"
    assert row["committed_at"].isoformat() == "2026-11-20T03:10:02.886044+00:00"
    assert json.loads(row["provenance"])["source"]["committedAt"] == "2026-11-20T03:10:02.886044Z"


@pytest.mark.parametrize(
    ("reference", "xid", "full"),
    [
        (700, 700, 700),
        (700, 650, 650),
        (0xFFFFFFF0, 5, 0x1_0000_0005),
        (0x3_0000_0005, 0xFFFFFFF0, 0x2_FFFF_FFF0),
        (0x3_0000_0005, 0x80000004, 0x3_8000_0004),
    ],
)
def test_transaction_ids_go_on_across_the_32_bit_wraparound(reference: int, xid: int, full: int) -> None:
    given_ = assembler(xid=reference).feed(frames(transaction(100, [relation(), insert(1)], xid=xid)))
    assert table(given_)["transaction"].to_pylist() == [str(full)]


@given(st.integers(2**33, 2**40), st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=20))
def test_transaction_ids_are_the_nearest_to_the_last(reference: int, steps: Sequence[int]) -> None:
    xids, last = Xids(reference), reference
    for step in steps:
        last = max(last + step, 2**33)
        assert xids.full(last & 0xFFFFFFFF) == last or abs(step) >= 2**31


# Stamps


def test_a_stamp_holds_from_its_place_until_the_next_or_the_end_of_its_transaction() -> None:
    other = stamp(b'{"serviceName":"job"}')
    first = transaction(100, [relation(), insert(1), stamp(), insert(2), insert(3), other, insert(4)])
    given_ = assembler().feed(frames([*first, *transaction(200, [insert(5)])]))
    assert table(given_)["service_name"].to_pylist() == ["nobody", "order-api", "order-api", "job", "nobody"]


def test_what_is_no_stamp_leaves_the_one_before_as_it_is() -> None:
    sent: list[Decoded] = [relation(), insert(1), stamp(b"no"), insert(2), stamp(), insert(3), stamp(b"no"), insert(4)]
    given_ = assembler().feed(frames(transaction(100, sent, xid=743)))
    assert table(given_)["service_name"].to_pylist() == ["nobody", "nobody", "order-api", "order-api"]
    assert [problem for problem, _ in given_.invalid_stamps] == ["it is not a JSON object"] * 2
    assert {xid & 0xFFFFFFFF for _, xid in given_.invalid_stamps} == {743}


def test_changes_without_a_stamp_are_counted_where_the_policy_is_to_warn() -> None:
    sent: list[Decoded] = [relation(), insert(1), update(1, 1), stamp(), insert(2)]
    given_ = assembler([entity(missing_stamp="warn")]).feed(frames(transaction(100, sent)))
    assert given_.unstamped == {"order": 2}


# Pieces and resumption


def test_only_whole_transactions_are_given_until_one_is_too_large() -> None:
    fed = assembler(rows_max=3)
    sent = frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [insert(key) for key in range(2, 8)])])
    assert fed.between
    pieces = [fed.feed(sent[at : at + 1]) for at in range(4)]
    assert _ops(*pieces) == ["create 1"]
    assert (pieces[3].through, pieces[3].partial) == (commit_text(101), False)
    assert fed.between
    pieces = [fed.feed(sent[at : at + 1]) for at in range(4, 8)]
    assert _ops(*pieces) == ["create 2", "create 3"]
    assert (pieces[3].through, pieces[3].partial) == (None, True)
    last = fed.feed(sent[8:])
    assert _ops(last) == ["create 4", "create 5", "create 6", "create 7"]
    assert (last.through, last.partial) == (commit_text(201), False)
    assert fed.between


def test_a_transaction_of_few_large_rows_comes_in_pieces_too() -> None:
    fed = assembler(bytes_max=1000)
    sent = frames(transaction(100, [relation(), *(insert(key, "x" * 400) for key in range(6))]))
    pieces = [fed.feed([each]) for each in sent]
    assert [len(table(piece)) for piece in pieces] == [0, 0, 0, 1, 0, 2, 0, 2, 1]
    assert pieces[-2].partial
    assert not pieces[-1].partial
    assert _ops(*pieces) == [f"create {key}" for key in range(6)]


def test_the_last_row_may_be_of_a_whole_transaction_though_another_has_begun() -> None:
    fed = assembler(rows_max=2)
    unheard: list[Decoded] = [insert(key, relid=30_000) for key in range(5)]
    sent = [*transaction(100, [relation(), UNBOUND, insert(1)]), *transaction(200, [*unheard, insert(2)])]
    begun = fed.feed(frames(sent)[:9])
    assert (_ops(begun), begun.through, begun.partial) == (["create 1"], commit_text(101), False)


def test_a_message_outside_any_transaction_leaves_none_open() -> None:
    """Else the position of an idle database stood still, and its slot kept log, from the first such message on."""
    outside = LogicalMessage(transactional=False, lsn=0, prefix="heartbeat", content=b"x")
    fed = assembler()
    [begin, *rest] = frames(transaction(200, [insert(2)]))
    sent = [
        frames([outside]),
        frames([*transaction(100, [relation(), insert(1)]), outside, outside]),
        [*frames([outside]), begin],
        rest,
    ]
    told = [(_ops(fed.feed(part)), fed.between) for part in sent]
    assert told == [([], True), (["create 1"], True), ([], False), (["create 2"], True)]


def test_nothing_is_between_transactions_while_frames_of_one_wait() -> None:
    fed = assembler()
    sent = frames(transaction(100, [relation(), insert(1)]))
    for each in sent[:-1]:
        fed.feed([each])
        assert not fed.between
    fed.feed(sent[-1:])
    assert fed.between


keys = st.integers(1, 4)
changes = st.one_of(
    st.builds(insert, keys),
    st.builds(update, keys, keys),
    st.builds(delete, keys),
    st.just(stamp()),
    st.just(FOREIGN),
    st.just(TRUNCATE),
    st.builds(insert, keys, relid=st.just(30_000)),
    st.builds(lambda key: (delete(key), insert(key)), keys),
    st.builds(lambda key: (delete(key), relation(), TypeName(type_oid=1, namespace="p", name="t"), insert(key)), keys),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Decoded]:
    sent = transaction(50, [relation(), UNBOUND], xid=650)
    for number in range(draw(st.integers(1, 4))):
        drawn = draw(st.lists(changes, max_size=7))
        flat = [each for change in drawn for each in (change if isinstance(change, tuple) else (change,))]
        sent += transaction(100 * (number + 1), flat, xid=701 + number)
    return sent


MADE = entity(on_truncate="publish", partitions=2)


@given(streams(), st.sampled_from([1, 2, 3, 100]), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_resumed_anywhere_goes_on_without_a_loss_or_a_repeat(
    sent: list[Decoded], rows_max: int, data: st.DataObject
) -> None:
    """Any piece may be the last one stored; the server then sends again from a transaction's begin."""
    whole = table(assembler([MADE], partitioned=["orders"]).feed(frames(sent)))
    fed = assembler([MADE], partitioned=["orders"], rows_max=rows_max)
    stored = table()
    published: Position | None = None
    partial = False
    lost_at = data.draw(st.sets(st.integers(0, len(sent) - 1), max_size=3))
    for number, each in enumerate(frames(sent)):
        piece = fed.feed([each])
        stored = pa.concat_tables([stored, table(piece)])
        if len(table(piece)):
            published, partial = Position.parse(stored["position"][-1].as_py()), piece.partial
        elif piece.through is not None:
            partial = piece.partial
        if number not in lost_at:
            continue
        again = _from_a_begin(data, sent, published)
        cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(again)), max_size=2))), len(again)]
        resumed = assembler(
            [MADE],
            partitioned=["orders"],
            published=published,
            partial=partial,
            rows_max=data.draw(st.sampled_from([1, 2, 100])),
        )
        rest = table(*(resumed.feed(frames(again, _lsns(again, sent))[begin:end]) for begin, end in pairwise(cuts)))
        assert pa.concat_tables([stored, rest]).equals(whole)
    assert stored.equals(whole)


def _from_a_begin(data: st.DataObject, sent: list[Decoded], published: Position | None) -> list[Decoded]:
    """What a new session sends: from some transaction not behind the one to go on with, relations first."""
    begins = [number for number, message in enumerate(sent) if isinstance(message, Begin)]
    wanted = [number for number in begins if published is None or _commit(sent[number]) <= published.commit]
    first = data.draw(st.sampled_from(wanted)) if wanted and published is not None else begins[0]
    described = [] if first == 0 else [relation(), UNBOUND]
    return [sent[first], *described, *sent[first + 1 :]]


def _commit(message: Decoded) -> int:
    assert isinstance(message, Begin)
    return message.final_lsn


def _lsns(again: list[Decoded], sent: list[Decoded]) -> list[int]:
    skipped = len(sent) - len(again)
    return list(range(1000 + skipped, 1000 + len(sent)))


def test_transactions_that_are_published_are_passed_over_whole() -> None:
    sent = [*transaction(100, [relation(), insert(1)]), *transaction(200, [insert(2)]), *transaction(300, [insert(3)])]
    given_ = assembler(published=Position(1, 200, 0)).feed(frames(sent))
    assert _ops(given_) == ["create 3"]
    assert given_.through == commit_text(301)


def test_what_is_passed_over_neither_stops_nor_signals() -> None:
    listener = _Listener()
    signal = LogicalMessage(transactional=True, lsn=0, prefix="changelog", content=b"0" * 32)
    sent = [*transaction(100, [relation(), TRUNCATE]), *transaction(200, [signal])]
    fed = assembler(published=Position(1, 200, 2), listener=listener)
    assert fed.feed(frames(sent)).through == commit_text(201)
    assert fed.stop is None
    assert listener.heard == []


# A row that crosses partitions


@pytest.mark.parametrize("between", [[], [relation(), relation(20_001, "orders_2027", identity="d")]])
@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_a_delete_and_insert_of_one_key_are_one_update_however_they_arrive(
    between: list[Decoded], rows_max: int
) -> None:
    """A partition that this session has not heard of is described between the two."""
    sent = frames(transaction(100, [relation(), insert(9), delete(1), *between, insert(1, "MOVED"), insert(8)]))
    for cut in range(len(sent)):
        fed = assembler(partitioned=["orders"], rows_max=rows_max)
        pieces = [fed.feed(sent[:cut]), fed.feed(sent[cut:])]
        assert _ops(*pieces) == ["create 9", "update 1", "create 8"]
        assert positions(*pieces) == ["100/0", "100/4", "100/6"]
        update_ = table(*pieces).to_pylist()[1]
        assert json.loads(update_["original"]) == {"id": 1, "status": "PAID"}
        assert json.loads(update_["current"]) == {"id": 1, "status": "MOVED"}


def test_what_stands_between_them_or_another_key_keeps_them_apart() -> None:
    fed = assembler(partitioned=["orders"])
    given_ = fed.feed(frames(transaction(100, [relation(), delete(1), FOREIGN, insert(1), delete(2), insert(3)])))
    assert _ops(given_) == ["delete 1", "create 1", "delete 2", "create 3"]


def test_in_a_table_without_partitions_they_are_what_they_are() -> None:
    given_ = assembler().feed(frames(transaction(100, [relation(), delete(1), insert(1)])))
    assert _ops(given_) == ["delete 1", "create 1"]


# Stops


STOPPING = [
    *transaction(100, [relation(), insert(1)]),
    *transaction(200, [insert(2), TRUNCATE, insert(3)]),
    *transaction(300, [insert(4)]),
]


def test_a_stop_gives_all_before_its_transaction_and_nothing_behind() -> None:
    fed = assembler()
    given_ = fed.feed(frames(STOPPING))
    assert _ops(given_) == ["create 1"]
    assert (given_.through, given_.partial) == (commit_text(101), False)
    assert _stopped_at(fed.stop) == "200/2"
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
    assert _stopped_at(fed.stop) == "200/2"
    assert _ops(*pieces) in (["create 1"], ["create 1", "create 2"])
    assert max(piece.through or "" for piece in pieces) == commit_text(101)
    resumed = assembler(
        published=Position.parse(table(*pieces)["position"][-1].as_py()),
        partial=any(piece.partial for piece in pieces),
        decisions={Position(1, 200, 2): "skip"},
    )
    assert _ops(*pieces, resumed.feed(frames(STOPPING))) == ["create 1", "create 2", "create 3", "create 4"]


def test_a_skipped_stop_leaves_its_change_out_and_holds_to_the_end_of_its_transaction() -> None:
    sent = [*transaction(200, [relation(), TRUNCATE, insert(1), TRUNCATE]), *transaction(300, [TRUNCATE])]
    fed = assembler(decisions={Position(1, 200, 0): "skip"})
    assert _ops(fed.feed(frames(sent))) == ["create 1"]
    assert _stopped_at(fed.stop) == "300/0"


def test_a_decision_does_not_hold_before_its_position() -> None:
    fed = assembler(decisions={Position(1, 200, 4): "skip"})
    fed.feed(frames(transaction(200, [relation(), TRUNCATE, insert(1), TRUNCATE])))
    assert _stopped_at(fed.stop) == "200/0"


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
    assert _stopped_at(fed.stop) == "200/2"
    fed = assembler([made], decisions={Position(1, 200, 2): "default"})
    assert table(fed.feed(sent))["service_name"].to_pylist() == ["nobody", "nobody", "order-api"]
    assert fed.stop is None


def test_a_decision_that_does_not_fit_its_stop_does_not_pass_it() -> None:
    fed = assembler([entity(immutable=True)], decisions={Position(1, 200, 0): "default"})
    fed.feed(frames(transaction(200, [relation(), delete(1)])))
    assert _stopped_at(fed.stop) == "200/0"


def test_changes_of_an_immutable_entity_may_be_ignored() -> None:
    made = entity(immutable=True, on_change_of_immutable="ignore")
    fed = assembler([made])
    assert _ops(fed.feed(frames(transaction(200, [relation(), insert(1), update(1, 2), delete(2)])))) == ["create 1"]
    assert fed.stop is None


def test_a_row_without_its_key_stops() -> None:
    sent: list[Decoded] = [relation(), Insert(relid=20_000, new=(None, b"NEW"))]
    fed = assembler()
    fed.feed(frames(transaction(200, sent)))
    assert _stopped_at(fed.stop) == "200/0"
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
    assert (_ops(given_), given_.through) == (["create 1"], commit_text(101))
    assert _stopped_at(fed.stop) == "200/2"


# Relations


def test_rows_are_read_with_the_relation_that_came_before_them() -> None:
    wider = relation(columns={"id": INT, "status": TEXT, "note": TEXT})
    changed: list[Decoded] = [insert(1), wider, Insert(relid=20_000, new=(b"2", b"NEW", b"!")), relation(), insert(3)]
    given_ = assembler().feed(frames(transaction(100, [relation(), *changed])))
    assert table(given_)["current"].to_pylist() == [
        '{"id":1,"status":"NEW"}',
        '{"id":2,"status":"NEW","note":"!"}',
        '{"id":3,"status":"NEW"}',
    ]
    assert positions(given_) == ["100/0", "100/2", "100/4"]
    assert [(each.added, each.dropped, str(each.position)[-8:]) for each in given_.altered] == [
        (("note",), (), "00000002"),
        ((), ("note",), "00000004"),
    ]


def test_a_retyped_column_is_said() -> None:
    retyped = relation(columns={"id": INT, "status": 3802})
    given_ = assembler().feed(frames(transaction(100, [relation(), insert(1), retyped])))
    assert [each.retyped for each in given_.altered] == [("status",)]


def test_a_relation_said_again_changes_nothing() -> None:
    listener = _Listener()
    given_ = assembler(listener=listener).feed(frames(transaction(100, [relation(), insert(1), relation(), insert(2)])))
    assert (given_.altered, listener.heard) == ([], [("touched", ["1", "2"], [700, 700])])


# The listener


@dataclass(slots=True)
class _Listener:
    """Writes down what it is told; a signal brings rows of its own."""

    heard: list[object] = field(default_factory=list)
    brings: pa.RecordBatch | None = None

    def touched(self, rows: pa.RecordBatch, xids: npt.NDArray[np.int64]) -> None:
        self.heard.append(("touched", rows.column("key").to_pylist(), xids.tolist()))

    def discard(self, table: tuple[str, str]) -> None:
        self.heard.append(("discard", table))

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        self.heard.append(("signal", payload, str(change.position())[-8:]))
        return self.brings

    def withdraw(self) -> None:
        self.heard.append("withdraw")


def test_the_listener_hears_everything_in_the_order_of_the_stream() -> None:
    wider = relation(columns={"id": INT, "status": TEXT, "note": TEXT})
    signal = LogicalMessage(transactional=True, lsn=0, prefix="changelog", content=b"0" * 32)
    brought = table(assembler().feed(frames(transaction(150, [relation(), insert(9)])))).to_batches()[0]
    listener = _Listener(brings=brought)
    sent = [
        *transaction(100, [relation(), insert(1), update(1, 2)], xid=701),
        *transaction(150, [signal], xid=702),
        *transaction(200, [wider, Delete(relid=20_000, old_kind="O", old=(b"2", b"NEW", None))], xid=703),
        *transaction(250, [replace(signal, transactional=False), replace(signal, prefix="other")], xid=704),
    ]
    given_ = assembler(listener=listener).feed(frames(sent))
    assert listener.heard == [
        ("touched", ["1", "1", "2"], [701, 701, 701]),
        ("signal", b"0" * 32, "00000000"),
        ("discard", ("public", "orders")),
        ("touched", ["2"], [703]),
    ]
    assert _ops(given_) == ["create 1", "delete 1", "create 2", "create 9", "delete 2"]
    assert [rows.schema for rows in given_.rows] == [batch.SCHEMA] * 3


# Shapes


def _told(given_: Assembled) -> list[tuple[list[str], list[str]]]:
    """Of each batch, its keys, and the columns that it says its orders have."""
    return [(rows["key"].to_pylist(), [name for name, _ in batch.shapes(rows)["order"].fields]) for rows in given_.rows]


def test_every_batch_says_which_columns_its_rows_have() -> None:
    wider = relation(columns={"id": INT, "status": TEXT, "note": TEXT})
    row = Insert(relid=20_000, new=(b"3", b"NEW", None))
    given_ = assembler().feed(frames(transaction(100, [UNBOUND, relation(), insert(1), insert(2), wider, row])))
    assert _told(given_) == [(["1", "2"], ["id", "status"]), (["3"], ["id", "status", "note"])]
    assert batch.shapes(given_.rows[0]) == {
        "order": Struct(fields=(("id", Primitive.INT), ("status", Primitive.STRING)))
    }


def test_the_shapes_of_several_entities_stand_beside_each_other() -> None:
    entities = [entity(), entity("refund", "refunds", masks={"note": "sha256", "secret": "drop", "gone": "null"})]
    columns = {"id": INT, "note": 3802, "secret": TEXT, "gone": 1007}
    sent: list[Decoded] = [relation(), relation(20_001, "refunds", columns), insert(1)]
    [rows] = assembler(entities).feed(frames(transaction(100, sent))).rows
    shape = batch.shapes(rows)["refund"]
    assert shape.fields == (
        ("id", Primitive.INT),
        ("note", Primitive.STRING),
        ("gone", Array(element=Primitive.INT)),
    )
    assert batch.shapes(rows).keys() == {"order", "refund"}


def test_a_table_that_takes_the_name_of_another_has_a_shape_of_its_own() -> None:
    """Made anew under another number, in the very transaction: there is no batch of both."""
    anew = relation(20_001, columns={"id": INT})
    sent: list[Decoded] = [relation(), insert(1), anew, Insert(relid=20_001, new=(b"2",))]
    given_ = assembler().feed(frames(transaction(100, sent)))
    assert _told(given_) == [(["1"], ["id", "status"]), (["2"], ["id"])]


def test_what_a_stop_leaves_keeps_its_shape() -> None:
    stopped = assembler([entity(immutable=True)])
    given_ = stopped.feed(frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [update(1, 1)])]))
    assert stopped.stop is not None
    assert _told(given_) == [(["1"], ["id", "status"])]


# What no server sends


@pytest.mark.parametrize(
    "messages",
    [
        [insert(1)],
        [Commit(flags=0, commit_lsn=1, end_lsn=2, committed_at=0)],
        [stamp()],
        [Begin(final_lsn=1, committed_at=0, xid=1), *transaction(100, [])],
        [Prepare(flags=0, lsn=1, end_lsn=2, at=0, xid=1, gid="gid")],
    ],
)
def test_messages_in_an_order_that_no_server_sends_are_malformed(messages: list[Decoded]) -> None:
    with pytest.raises(ChangelogError) as caught:
        assembler(rows_max=1).feed(frames([*messages, *transaction(100, [])]))
    assert caught.value.kind is Kind.MALFORMED


def test_a_stray_end_of_a_stream_is_passed_over() -> None:
    sent = [*transaction(100, [relation(), insert(1)]), StreamAbort(xid=1, subxid=1), *transaction(200, [insert(2)])]
    assert _ops(assembler().feed(frames(sent))) == ["create 1", "create 2"]


def test_an_update_of_part_of_its_key_and_an_unsent_value() -> None:
    """Only a whole old row may fill what was not sent."""
    keyed = relation(identity="d")
    row = Update(relid=20_000, old_kind="K", old=(b"1", None), new=(b"2", b"PAID"))
    rows = table(assembler().feed(frames(transaction(100, [keyed, row])))).to_pylist()
    assert [(each["op"], each["key"], each["original"]) for each in rows] == [
        ("delete", "1", '{"id":1}'),
        ("create", "2", None),
    ]
    assert json.loads(rows[0]["provenance"])["source"]["unavailableOriginal"] == ["status"]
