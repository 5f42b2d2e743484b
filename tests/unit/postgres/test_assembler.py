"""Tests the assembler, which makes rows of the changelog from a replication stream.

These tests are about positions, transaction ids, stamps, rows that move between partitions, and malformed streams.
"""

import gc
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.rows.row_change import Update
from changelog.connectors.sources.postgres.decode.frames import Frames
from changelog.connectors.sources.postgres.decode.messages import (
    Begin,
    Commit,
    Decoded,
    LogicalMessage,
    Prepare,
    ReplicationOrigin,
    StreamAbort,
    TypeName,
)
from changelog.connectors.sources.postgres.decode.xids import Xids
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.postgres.messages import (
    FOREIGN,
    TRUNCATE,
    UNBOUND,
    assembler,
    delete,
    entity,
    frames,
    insert,
    ops,
    positions,
    relation,
    stamp,
    table,
    transaction,
    update,
)

# Positions


def test_every_log_record_takes_an_ordinal_and_a_move_takes_two() -> None:
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
    assembled = assembler([entity(on_truncate="publish")]).feed(frames(transaction(100, changes)))
    assert ops(assembled) == ["create 1", "delete 1", "create 2", "truncate \0truncate", "delete 2"]
    assert positions(assembled) == ["100/2", "100/6", "100/7", "100/10", "100/12"]


def test_a_truncate_gives_one_row_for_each_partition() -> None:
    partitioned = entity(on_truncate="publish", partitions=3)
    assembled = assembler([partitioned]).feed(frames(transaction(100, [relation(), TRUNCATE])))
    assert table(assembled)["partition"].to_pylist() == [0, 1, 2]
    assert positions(assembled) == ["100/0"] * 3


def test_every_row_has_its_position_and_commit_time() -> None:
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
def test_transaction_ids_are_extended_to_64_bits(reference: int, xid: int, full: int) -> None:
    assembled = assembler(xid=reference).feed(frames(transaction(100, [relation(), insert(1)], xid=xid)))
    assert table(assembled)["transaction"].to_pylist() == [str(full)]


@given(st.integers(2**33, 2**40), st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=20))
def test_of_all_possible_transaction_ids_the_one_nearest_to_the_last_is_taken(
    reference: int, steps: Sequence[int]
) -> None:
    xids, last = Xids(reference), reference
    for step in steps:
        last = max(last + step, 2**33)
        assert xids.full(last & 0xFFFFFFFF) == last or abs(step) >= 2**31


# Stamps


def test_a_stamp_applies_until_the_next_one_or_the_end_of_its_transaction() -> None:
    other = stamp(b'{"serviceName":"job"}')
    first = transaction(100, [relation(), insert(1), stamp(), insert(2), insert(3), other, insert(4)])
    assembled = assembler().feed(frames([*first, *transaction(200, [insert(5)])]))
    assert table(assembled)["service_name"].to_pylist() == ["nobody", "order-api", "order-api", "job", "nobody"]


def test_an_invalid_stamp_does_not_replace_the_one_before() -> None:
    sent: list[Decoded] = [relation(), insert(1), stamp(b"no"), insert(2), stamp(), insert(3), stamp(b"no"), insert(4)]
    assembled = assembler().feed(frames(transaction(100, sent, xid=743)))
    assert table(assembled)["service_name"].to_pylist() == ["nobody", "nobody", "order-api", "order-api"]
    assert [problem for problem, _ in assembled.invalid_stamps] == ["it is not a JSON object"] * 2
    assert {xid & 0xFFFFFFFF for _, xid in assembled.invalid_stamps} == {743}


def test_missing_stamps_are_counted_if_missing_stamp_is_warn() -> None:
    sent: list[Decoded] = [relation(), insert(1), update(1, 1), stamp(), insert(2)]
    assembled = assembler([entity(missing_stamp="warn")]).feed(frames(transaction(100, sent)))
    assert assembled.unstamped == {"order": 2}


# A row that crosses partitions


@pytest.mark.parametrize("between", [[], [relation(), relation(20_001, "orders_2027", identity="d")]])
@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_a_delete_and_an_insert_of_the_same_key_become_one_update(between: list[Decoded], rows_max: int) -> None:
    """If the server has not yet described the partition to which the row moves, it does so between the delete and the
    insert.
    """
    sent = frames(transaction(100, [relation(), insert(9), delete(1), *between, insert(1, "MOVED"), insert(8)]))
    for cut in range(len(sent)):
        stream = assembler(partitioned=["orders"], rows_max=rows_max)
        pieces = [stream.feed(sent[:cut]), stream.feed(sent[cut:])]
        assert ops(*pieces) == ["create 9", "update 1", "create 8"]
        assert positions(*pieces) == ["100/0", "100/4", "100/6"]
        update_ = table(*pieces).to_pylist()[1]
        assert json.loads(update_["original"]) == {"id": 1, "status": "PAID"}
        assert json.loads(update_["current"]) == {"id": 1, "status": "MOVED"}


def test_a_delete_and_an_insert_stay_two_rows_if_a_message_is_between_or_the_keys_differ() -> None:
    stream = assembler(partitioned=["orders"])
    assembled = stream.feed(frames(transaction(100, [relation(), delete(1), FOREIGN, insert(1), delete(2), insert(3)])))
    assert ops(assembled) == ["delete 1", "create 1", "delete 2", "create 3"]


def test_a_delete_and_an_insert_in_a_table_without_partitions_stay_two_rows() -> None:
    assembled = assembler().feed(frames(transaction(100, [relation(), delete(1), insert(1)])))
    assert ops(assembled) == ["delete 1", "create 1"]


# Streams that no server sends


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


def test_a_stray_stream_abort_is_ignored() -> None:
    sent = [*transaction(100, [relation(), insert(1)]), StreamAbort(xid=1, subxid=1), *transaction(200, [insert(2)])]
    assert ops(assembler().feed(frames(sent))) == ["create 1", "create 2"]


def test_an_update_that_has_only_the_old_key_lacks_the_other_old_values() -> None:
    """The other old values are not available. They must not be taken from the new row."""
    keyed = relation(identity="d")
    row = Update(relid=20_000, old_kind="K", old=(b"1", None), new=(b"2", b"PAID"))
    rows = table(assembler().feed(frames(transaction(100, [keyed, row])))).to_pylist()
    assert [(published["op"], published["key"], published["original"]) for published in rows] == [
        ("delete", "1", '{"id":1}'),
        ("create", "2", None),
    ]
    assert json.loads(rows[0]["provenance"])["source"]["unavailableOriginal"] == ["status"]


# Memory


def test_a_block_of_the_stream_is_freed_once_its_rows_are_returned() -> None:
    """A block has the frames that one call of `feed` handles, which may be many MiB. A reference cycle would keep it in
    memory until the garbage collector runs.
    """
    stream = assembler()
    gc.collect()
    gc.disable()
    try:
        assembled = stream.feed(frames(transaction(100, [relation(), stamp(), insert(1)])))
        assert ops(assembled) == ["create 1"]
        assert [block for block in gc.get_objects() if isinstance(block, Frames)] == []
    finally:
        gc.enable()
