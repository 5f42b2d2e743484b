"""The assembler delivers each committed change once, in order, however the log is cut and whenever it starts again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from changelog.connectors.capture.assembly.assembled import Assembled, Ints
from changelog.connectors.capture.rows.row_records import Change, Origin
from changelog.connectors.sources.mysql.decode import cutting
from changelog.connectors.sources.mysql.decode.assembler import Assembler
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Operation
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.values.columns import Column
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source
from changelog.envelope.position import Position
from tests.unit.mysql.binlog_encoder import payload
from tests.unit.mysql.binlog_world import ITEM, Expected, Logged, World, is_stamped
from tests.unit.mysql.reading import header
from tests.unit.postgres.messages import DEFAULT_STAMP

ENTITY = Entity(
    name="item",
    table=("shop", "item"),
    key=("id",),
    partition_by=("id",),
    partitions=1,
    masks={},
    default_stamp=DEFAULT_STAMP,
)
ORIGIN = Origin(connector="mysql", name="test", database="shop")
OPERATIONS = {"create": Operation.INSERT, "update": Operation.UPDATE, "delete": Operation.DELETE}
READ = "read"


@dataclass(frozen=True, slots=True)
class Stored:
    """What a checkpoint keeps for the next start."""

    gtids: Gtids
    resume: Gtids
    position: Position | None = None
    partial: bool = False
    through: int = 0


class Reads:
    """Table reads. Each publishes one row once the log is read up to the coordinate at which the table was read."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.discarded: list[tuple[str, str]] = []

    def add(self, end: int) -> None:
        self._waiting.append(end)

    def due(self, end: int) -> list[bytes]:
        count = sum(needed <= end for needed in self._waiting)
        self._waiting = [needed for needed in self._waiting if needed > end]
        return [b"%032x" % number for number in range(count)]

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch:
        position = replace(change, ordinal=change.ordinal + 1).position()
        source = Source(
            connector="mysql", name="test", database="shop", table="shop.item", op=Op.READ, position=position,
            transaction=change.transaction.name, committed_at=EPOCH,
        )  # fmt: skip
        envelope = Envelope(
            provenance=Provenance(stamp=DEFAULT_STAMP, source=source),
            current=msgspec.Raw(b'{"id":0,"name":"read"}'),
            original=MISSING,
        )
        record = Record(entity="item", place=Place(key=READ, partition=0), envelope=envelope)
        shape = Binder(hmac_key=b"").bind(ENTITY, ITEM.columns).binding.shape
        return batch.with_shapes(batch.from_records([record]), {"item": shape}, relation=1)

    def touched(self, rows: pa.RecordBatch, xids: Ints) -> None:
        assert len(xids) == rows.num_rows
        assert not np.diff(xids).min(initial=0) < 0

    def discard(self, table: tuple[str, str]) -> None:
        self.discarded.append(table)

    def withdraw(self) -> None:
        raise AssertionError("no row is refused")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NoDeclarations:
    """The catalogue of a database whose log tells all types."""

    def declare(self, _entity: Entity, columns: Sequence[Column]) -> tuple[Column, ...]:
        return tuple(columns)

    def forget(self, entity: Entity) -> None:
        raise AssertionError(f"nothing alters {entity.name}")


def assembler(stored: Stored, reads: Reads, *, epoch: int = 1, half: tuple[str, int, int] | None = None) -> Assembler:
    tables = Tables(
        Binder(hmac_key=b""),
        {ENTITY.table: ENTITY},
        declarations=NoDeclarations(),
        look_up=lambda _: ITEM.columns,
        charsets={},
    )
    return Assembler(
        origin=ORIGIN,
        tables=tables,
        entities={ENTITY.table: ENTITY},
        state=LogState(epoch=epoch, received=stored.gtids, resume=stored.resume, database="shop", half=half),
        published=stored.position,
        partial=stored.partial,
        through=stored.through,
        listener=reads,
        due=reads.due,
    )


def after(stored: Stored, assembled: Assembled, reader: Assembler) -> Stored:
    """The checkpoint after a block."""
    rows = [row for rows in assembled.rows for row in rows.column("position").to_pylist()]
    through = stored.through if assembled.through is None else max(stored.through, int(assembled.through, 16))
    changed = bool(rows) or assembled.through is not None
    return Stored(
        gtids=reader.state.gtids,
        resume=reader.state.resume,
        position=Position.parse(rows[-1]) if rows else stored.position,
        partial=assembled.partial if changed else stored.partial,
        through=through,
    )


def published(rows: Sequence[pa.RecordBatch]) -> list[Expected]:
    """The changes among the rows, as the world describes them. Rows of table reads are left out."""
    return [
        Expected(
            record.envelope.provenance.source.position.commit,
            OPERATIONS[record.envelope.provenance.source.op],
            int(record.place.key),
            name(record),
        )
        for item in rows
        for record in batch.records(item)
        if record.place.key != READ
    ]


def name(record: Record) -> str:
    state = record.envelope.current or record.envelope.original
    assert isinstance(state, msgspec.Raw)
    text = str(msgspec.json.decode(state)["name"])
    stamp = record.envelope.provenance.stamp
    assert stamp.service_name == (text if is_stamped(text) else DEFAULT_STAMP.service_name)
    return text


NOTHING = GtidSet(intervals={})


@pytest.mark.parametrize("round_", range(16))
def test_each_committed_change_is_delivered_once_over_restarts(
    round_: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every second round, transactions with more than a few rows are divided."""
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
            assembled = reader.feed(packets[:size])
            assert reader.stop is None, reader.stop
            del packets[:size]
            if not done and random.random() < 0.03:
                break  # a crash: what this block delivered is not stored
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
        rows += reader.feed([packet]).rows
        while reader.busy:
            parts += 1
            assert not reader.between
            rows += reader.feed([]).rows
        assert reader.stop is None, reader.stop
    assert published(rows) == world.expected
    assert parts


def compressed(logged: Logged) -> Logged:
    """The transaction as one event after its GTID."""
    gtid, *packets = logged.packets
    end = int.from_bytes(packets[-1][13:17], "little")
    inner = [packet[:9] + (len(packet) - 4).to_bytes(4, "little") + packet[13:-4] for packet in packets]
    outer = header(EventType.TRANSACTION_PAYLOAD)._replace(end_log_pos=end)
    return replace(logged, packets=(gtid, payload(outer, inner)))


def test_a_commit_of_an_unknown_xa_transaction_lets_the_tables_be_read(seed: int) -> None:
    world = World(Random(seed))
    while not any(b"XA COMMIT" in logged.packets[-1] for logged in world.log):
        world.step()
    *_, last = world.log
    reads = Reads()
    reader = assembler(Stored(NOTHING, NOTHING), reads)
    packets = list(world.sent(NOTHING))[:2]
    assert not reader.feed([*packets, *last.packets]).rows
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
        reader.feed([*head, *last[:-1], *last])
    assert caught.value.kind is Kind.MALFORMED


def test_a_divided_transaction_keeps_its_position_on_another_server(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers have the same transactions, at different places in their logs."""
    monkeypatch.setattr(cutting, "BLOCK_BYTES_MAX", 700)
    primary, replica = World(Random(seed)), World(Random(seed), file=9)
    while len(primary.expected) < 200:
        primary.step()
        replica.step()
    stored, rows, half = Stored(NOTHING, NOTHING), list[pa.RecordBatch](), None
    reader = assembler(stored, Reads())
    packets = list(primary.sent(NOTHING))
    while not stored.partial:
        assembled = reader.feed(packets[:5])
        del packets[:5]
        rows += assembled.rows
        stored = after(stored, assembled, reader)
    assert reader.state.begun is not None
    assert stored.position is not None
    half = reader.state.begun.gtid, stored.position.epoch, stored.position.commit
    second = assembler(replace(stored, through=0), Reads(), epoch=2, half=half)
    for packet in replica.sent(stored.resume):
        rows += second.feed([packet]).rows
    changes = published(rows)
    assert [(change.operation, change.key, change.text) for change in changes] == [
        (change.operation, change.key, change.text) for change in primary.expected
    ]
    positions = [Position.parse(text) for item in rows for text in item.column("position").to_pylist()]
    assert positions == sorted(set(positions))
    continued = [change for change in changes if change.commit == stored.position.commit]
    assert continued == [change for change in primary.expected if change.commit == stored.position.commit]
    assert {position.epoch for position in positions} == {1, 2}
