"""Tests errors that stop the assembler. It must first deliver all transactions that come before the error."""

from random import Random

import pyarrow as pa

from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Rotate
from changelog.connectors.sources.mysql.decode.prepared import PreparedTransactions
from changelog.connectors.sources.mysql.values.positions.coordinates import COORDINATE_BITS, OFFSET_BITS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from tests.unit.mysql.assembling import NEW, NOTHING, Reads, assembler, check, published, read
from tests.unit.mysql.binlog_encoder import encode
from tests.unit.mysql.binlog_world import World
from tests.unit.mysql.reading import header


def test_an_error_without_a_position_gets_the_position_of_its_transaction(seed: int) -> None:
    world, rows = World(Random(seed)), list[pa.RecordBatch]()
    world.commit(40)
    prepared = world.end
    world.prepare(5)
    world.settle()
    reader = assembler(NEW, Reads())
    reader.state.prepared = PreparedTransactions(bytes_max=1)
    stored = read(NEW, reader, world, rows, size=1000)
    assert reader.stop is not None
    assert (reader.stop.kind, reader.stop.position) == (Kind.LIMIT, Position(1, prepared, 0))
    assert "--over-gap" in str(reader.stop)
    assert len(published(rows)) == 40
    read(stored, assembler(stored, Reads()), world, rows, size=1000)
    check(rows, world)


class Failing(Reads):
    """Table reads that fail when the log is read up to `place`."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    def due(self, end: int) -> list[bytes]:
        if end >= self._place:
            raise ChangelogError(Kind.CONNECTION, "the connection was lost")
        return super().due(end)


def test_an_error_of_table_reads_between_two_transactions_loses_nothing(seed: int) -> None:
    world, rows = World(Random(seed)), list[pa.RecordBatch]()
    world.commit(5)
    world.commit(5)
    reader = assembler(NEW, Failing(world.end))
    world.commit(5)
    stored = read(NEW, reader, world, rows, size=1000)
    assert reader.stop is not None
    assert reader.stop.kind is Kind.CONNECTION
    assert len(published(rows)) == 10
    read(stored, assembler(stored, Reads()), world, rows, size=1000)
    check(rows, world)


def test_a_log_file_whose_number_is_too_large_is_reported(seed: int) -> None:
    world = World(Random(seed))
    world.commit(5)
    number = 1 << COORDINATE_BITS - OFFSET_BITS
    rotate = Rotate(header=header(EventType.ROTATE, flags=0x20), file=f"binlog.{number}", position=4)
    reader = assembler(NEW, Reads())
    assembled = reader.feed(EventBlock.of([*world.sent(NOTHING), encode(rotate)]))
    assert reader.stop is not None
    assert reader.stop.kind is Kind.LIMIT
    assert f"binary log file {number} has a number with more than" in str(reader.stop)
    assert published(assembled.rows) == world.expected
    assert reader.state.gtids.contains(world.log[0].gtid)
