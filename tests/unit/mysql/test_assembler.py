"""Tests the assembler, which makes rows of the changelog from events of the binary log.

It must deliver each committed change once, in the order of the log. This must not depend on where blocks of the log
end, or on when the assembler starts again.
"""

from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from changelog.connectors.sources.mysql.decode import cutting
from changelog.connectors.sources.mysql.decode.events.event_block import EMPTY, EventBlock
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.assembling import ENTITY, NOTHING, Reads, Stored, after, assembler, published
from tests.unit.mysql.binlog_encoder import payload
from tests.unit.mysql.binlog_world import Logged, World
from tests.unit.mysql.reading import header


@pytest.mark.parametrize("round_", range(16))
def test_each_committed_change_is_delivered_once_over_restarts(
    round_: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every second round, `BLOCK_BYTES_MAX` is so low that only small transactions are published in one piece."""
    random = Random(f"{seed} {round_}")
    if round_ % 2:
        monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 700)
    world, rows = World(random), list[pa.RecordBatch]()
    stored = Stored(NOTHING, NOTHING)
    done = False
    while not done:
        reads = Reads()
        reader = assembler(stored, reads)
        if len(world.log) < 120:
            for _ in range(random.randrange(30)):
                world.step()
        else:
            world.settle()
            done = True
        packets = list(world.sent(stored.resume))
        while packets:
            if random.random() < 0.3:
                reads.add(world.end)
            size = random.choice([1, 2, 3, 7, 30, 400])
            assembled = reader.feed(EventBlock.of(packets[:size]))
            assert reader.stop is None, reader.stop
            del packets[:size]
            if not done and random.random() < 0.03:
                break  # the service crashes, and stores nothing of what this block delivered
            rows += assembled.rows
            stored = after(stored, assembled, reader)
    assert published(rows) == world.expected
    positions = [position for item in rows for position in item.column("position").to_pylist()]
    assert positions == sorted(set(positions))


def test_a_compressed_transaction_is_delivered_in_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 40)
    world = World(Random(seed))
    while len(world.expected) < 200:
        world.step()
    world.log = [compressed(logged) if b"BEGIN" in logged.packets[1] else logged for logged in world.log]
    rows, parts = list[pa.RecordBatch](), 0
    reader = assembler(Stored(NOTHING, NOTHING), Reads())
    for packet in world.sent(NOTHING):
        rows += reader.feed(EventBlock.of([packet])).rows
        while reader.busy:
            parts += 1
            assert not reader.between
            rows += reader.feed(EMPTY).rows
        assert reader.stop is None, reader.stop
    assert published(rows) == world.expected
    assert parts


def compressed(logged: Logged) -> Logged:
    """Returns the transaction in its compressed form: the event with its GTID, and one event that holds all others."""
    gtid, *packets = logged.packets
    end = int.from_bytes(packets[-1][13:17], "little")
    inner = [packet[:9] + (len(packet) - 4).to_bytes(4, "little") + packet[13:-4] for packet in packets]
    outer = header(EventType.TRANSACTION_PAYLOAD)._replace(end_log_pos=end)
    return replace(logged, packets=(gtid, payload(outer, inner)))


def test_a_commit_of_an_unknown_xa_transaction_makes_the_service_read_the_tables(seed: int) -> None:
    world = World(Random(seed))
    while not any(b"XA COMMIT" in logged.packets[-1] for logged in world.log):
        world.step()
    *_, last = world.log
    reads = Reads()
    reader = assembler(Stored(NOTHING, NOTHING), reads)
    packets = list(world.sent(NOTHING))[:2]
    assert not reader.feed(EventBlock.of([*packets, *last.packets])).rows
    assert reader.stop is None
    assert reads.discarded == [ENTITY.table]
    assert reader.state.unlogged == [("item", "the log has only the commit of an XA transaction")]


def test_a_transaction_inside_another_is_malformed(seed: int) -> None:
    world = World(Random(seed))
    while len(world.log) < 2 or b"BEGIN" not in world.log[-1].packets[1]:
        world.step()
    reader = assembler(Stored(NOTHING, NOTHING), Reads())
    head, last = list(world.sent(NOTHING))[:2], world.log[-1].packets
    with pytest.raises(ChangelogError, match="inside another") as caught:
        reader.feed(EventBlock.of([*head, *last[:-1], *last]))
    assert caught.value.kind is Kind.MALFORMED


def test_each_signal_has_the_number_of_its_row(seed: int) -> None:
    """A transaction can have several signals. Each signal must come with the `id` of its row in the table of signals,
    because the signature covers this number.
    """
    world = World(Random(seed))
    world.commit(1)
    world.signal((11, "one"), (12, "two"))
    assembled = assembler(Stored(NOTHING, NOTHING), Reads()).feed(EventBlock.of(world.sent(NOTHING)))
    assert [(content, number) for content, _, number in assembled.signals] == [(b"one", 11), (b"two", 12)]
