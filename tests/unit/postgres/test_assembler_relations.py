"""Tests how the assembler uses *relations*: the descriptions of tables that the server sends.

Also tests how the assembler calls its listener, and which columns its batches declare for each entity (their *shapes*).
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.assembly.assembled import Assembled
from changelog.connectors.capture.rows.row_change import Delete, Insert
from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.sources.postgres.decode.messages import (
    Decoded,
    LogicalMessage,
)
from changelog.envelope.columnar import batch
from changelog.envelope.position import Position, commit_text
from changelog.schemas.types import Array, Primitive, Struct
from tests.unit.postgres.messages import (
    INT,
    TEXT,
    TRUNCATE,
    UNBOUND,
    assembler,
    entity,
    frames,
    insert,
    ops,
    positions,
    relation,
    table,
    transaction,
    update,
)


def test_transactions_that_are_already_published_cause_no_stop_and_no_signal() -> None:
    listener = _Listener()
    signal = LogicalMessage(transactional=True, lsn=0, prefix="changelog", content=b"0" * 32)
    sent = [*transaction(100, [relation(), TRUNCATE]), *transaction(200, [signal])]
    stream = assembler(published=Position(1, 200, 2), listener=listener)
    assert stream.feed(frames(sent)).through == commit_text(201)
    assert stream.stop is None
    assert listener.calls == []


# Relations


def test_a_row_is_decoded_by_the_last_relation_before_it() -> None:
    wider = relation(columns={"id": INT, "status": TEXT, "note": TEXT})
    messages: list[Decoded] = [insert(1), wider, Insert(relid=20_000, new=(b"2", b"NEW", b"!")), relation(), insert(3)]
    assembled = assembler().feed(frames(transaction(100, [relation(), *messages])))
    assert table(assembled)["current"].to_pylist() == [
        '{"id":1,"status":"NEW"}',
        '{"id":2,"status":"NEW","note":"!"}',
        '{"id":3,"status":"NEW"}',
    ]
    assert positions(assembled) == ["100/0", "100/2", "100/4"]
    assert [
        (alteration.added, alteration.dropped, str(alteration.position)[-8:]) for alteration in assembled.altered
    ] == [
        (("note",), (), "00000002"),
        ((), ("note",), "00000004"),
    ]


def test_a_column_that_gets_another_type_is_reported() -> None:
    retyped = relation(columns={"id": INT, "status": 3802})
    assembled = assembler().feed(frames(transaction(100, [relation(), insert(1), retyped])))
    assert [alteration.retyped for alteration in assembled.altered] == [("status",)]


def test_a_relation_that_is_sent_again_changes_nothing() -> None:
    listener = _Listener()
    assembled = assembler(listener=listener).feed(
        frames(transaction(100, [relation(), insert(1), relation(), insert(2)]))
    )
    assert (assembled.altered, listener.calls) == ([], [("touched", ["1", "2"], [700, 700])])


# The listener


@dataclass(slots=True)
class _Listener:
    """A listener that records the calls of its methods. Its method `signal` returns the rows in `brings`."""

    calls: list[object] = field(default_factory=list)
    brings: pa.RecordBatch | None = None

    def touched(self, rows: pa.RecordBatch, xids: npt.NDArray[np.int64]) -> None:
        self.calls.append(("touched", rows.column("key").to_pylist(), xids.tolist()))

    def discard(self, table: tuple[str, str]) -> None:
        self.calls.append(("discard", table))

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        self.calls.append(("signal", payload, str(change.position())[-8:]))
        return self.brings

    def withdraw(self) -> None:
        self.calls.append("withdraw")


def test_the_listener_is_called_in_the_order_of_the_stream() -> None:
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
    assembled = assembler(listener=listener).feed(frames(sent))
    assert listener.calls == [
        ("touched", ["1", "1", "2"], [701, 701, 701]),
        ("signal", b"0" * 32, "00000000"),
        ("discard", ("public", "orders")),
        ("touched", ["2"], [703]),
    ]
    assert ops(assembled) == ["create 1", "delete 1", "create 2", "create 9", "delete 2"]
    assert [rows.schema for rows in assembled.rows] == [batch.SCHEMA] * 3


# Shapes


def _keys_and_columns(assembled: Assembled) -> list[tuple[list[str], list[str]]]:
    """Returns, for each batch, the keys in it and the columns that it declares for the entity `order`."""
    return [
        (rows["key"].to_pylist(), [name for name, _ in batch.shapes(rows)["order"].fields]) for rows in assembled.rows
    ]


def test_every_batch_declares_the_columns_of_its_rows() -> None:
    wider = relation(columns={"id": INT, "status": TEXT, "note": TEXT})
    row = Insert(relid=20_000, new=(b"3", b"NEW", None))
    assembled = assembler().feed(frames(transaction(100, [UNBOUND, relation(), insert(1), insert(2), wider, row])))
    assert _keys_and_columns(assembled) == [(["1", "2"], ["id", "status"]), (["3"], ["id", "status", "note"])]
    assert batch.shapes(assembled.rows[0]) == {
        "order": Struct(fields=(("id", Primitive.INT), ("status", Primitive.STRING)))
    }


def test_a_batch_with_rows_of_several_entities_declares_the_columns_of_each() -> None:
    entities = [entity(), entity("refund", "refunds", masks={"note": "sha256", "secret": "drop", "gone": "null"})]
    columns = {"id": INT, "note": 3802, "secret": TEXT, "gone": 1007}
    refund = Insert(relid=20_001, new=(b"1", None, None, None))
    sent: list[Decoded] = [relation(), relation(20_001, "refunds", columns), insert(1), refund]
    [rows] = assembler(entities).feed(frames(transaction(100, sent))).rows
    shape = batch.shapes(rows)["refund"]
    assert shape.fields == (
        ("id", Primitive.INT),
        ("note", Primitive.STRING),
        ("gone", Array(element=Primitive.INT)),
    )
    assert batch.shapes(rows).keys() == {"order", "refund"}


def test_a_batch_declares_no_columns_of_entities_that_have_no_rows_in_it() -> None:
    """The columns of 1,000 tables take a megabyte, which is too much for a batch of a few rows."""
    stream = assembler([entity(), entity("refund", "refunds")])
    sent: list[Decoded] = [relation(), relation(20_001, "refunds"), insert(1)]
    for commit, changes in ((100, sent), (200, [insert(2)])):
        [rows] = stream.feed(frames(transaction(commit, changes))).rows
        assert batch.shapes(rows).keys() == {"order"}


def test_a_table_that_takes_the_name_of_another_table_has_its_own_columns() -> None:
    """One transaction has rows of both tables. The new table has another OID, and no batch has rows of both."""
    recreated = relation(20_001, columns={"id": INT})
    sent: list[Decoded] = [relation(), insert(1), recreated, Insert(relid=20_001, new=(b"2",))]
    assembled = assembler().feed(frames(transaction(100, sent)))
    assert _keys_and_columns(assembled) == [(["1"], ["id", "status"]), (["2"], ["id"])]


def test_batches_before_a_stop_declare_their_columns() -> None:
    stream = assembler([entity(immutable=True)])
    assembled = stream.feed(frames([*transaction(100, [relation(), insert(1)]), *transaction(200, [update(1, 1)])]))
    assert stream.stop is not None
    assert _keys_and_columns(assembled) == [(["1"], ["id", "status"])]
