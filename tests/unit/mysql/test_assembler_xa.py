"""Tests statements inside XA transactions, and the memory that XA transactions take: their rows wait in memory until
the commit.
"""

from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from changelog.connectors.sources.mysql.decode import cutting
from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.prepared import PreparedTransactions
from changelog.envelope.checkpoint import Decisions
from changelog.envelope.errors import Kind
from changelog.envelope.position import Position
from tests.unit.mysql.assembling import NEW, NOTHING, ORIGIN, Reads, assembler, check, read
from tests.unit.mysql.binlog_world import World


@pytest.mark.parametrize("one_phase", [True, False])
def test_a_statement_inside_an_xa_transaction_does_not_end_the_transaction(seed: int, *, one_phase: bool) -> None:
    world, rows = World(Random(seed)), list[pa.RecordBatch]()
    world.prepare(5, one_phase=one_phase, statement="INSERT INTO other VALUES (1)")
    world.commit(1)
    world.settle()
    reader = assembler(NEW, Reads())
    read(NEW, reader, world, rows, size=3)
    assert reader.stop is None
    check(rows, world)


def test_a_commit_in_one_phase_is_delivered_as_such(seed: int) -> None:
    world, delivered = World(Random(seed)), list[bool]()
    world.commit(1)
    world.prepare(2)
    world.prepare(3, one_phase=True)
    world.settle()
    reader = assembler(NEW, Reads())
    reader.state.on_delivery = lambda _commit, _gtid, one_phase: delivered.append(one_phase)
    read(NEW, reader, world, [], size=3)
    assert delivered == [False, True, False]


def test_a_statement_in_an_xa_transaction_stops_the_service_if_it_changed_a_published_table(seed: int) -> None:
    world, rows = World(Random(seed)), list[pa.RecordBatch]()
    world.commit(1)
    prepared = Position(1, world.end, 0)
    world.prepare(5, statement="INSERT INTO item VALUES (1)")
    world.settle()
    reader = assembler(NEW, Reads())
    stored = read(NEW, reader, world, rows, size=1000)
    stop = reader.stop
    assert stop is not None
    assert (stop.kind, stop.position) == (Kind.STOP, prepared)
    assert "has a statement that changed shop.item" in stop.message
    origin = replace(ORIGIN, decisions=Decisions({prepared: "skip"}))
    reader = assembler(stored, Reads(), origin=origin)
    read(stored, reader, world, rows, size=1000)
    assert reader.stop is None
    check(rows, world)


@pytest.mark.parametrize("one_phase", [True, False])
def test_the_service_stops_before_xa_transactions_take_too_much_memory(
    seed: int, monkeypatch: pytest.MonkeyPatch, *, one_phase: bool
) -> None:
    """The limit applies to the rows of both transactions together. It is reached before the second one is complete."""
    monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 1)
    world = World(Random(seed))
    world.prepare(5)
    second = Position(1, world.end, 0)
    world.prepare(40, one_phase=one_phase)
    reader = assembler(NEW, Reads())
    reader.state.prepared = PreparedTransactions(bytes_max=sum(map(len, world.log[0].packets)) + 500)
    *packets, _, _ = world.sent(NOTHING)
    for packet in packets:
        reader.feed(EventBlock.of([packet]))
    assert reader.stop is not None
    assert (reader.stop.kind, reader.stop.position) == (Kind.LIMIT, second)
