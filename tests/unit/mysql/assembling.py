"""Makes assemblers for tests with simulated binary logs. An assembler makes rows of the changelog from events of the
log.

Each block of events gives a new `Stored`: what a service would store after this block. From it, a new assembler can
continue, as after a restart of the service.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

import msgspec
import numpy as np
import pyarrow as pa

from changelog.connectors.capture.assembly.assembled import Assembled, Ints
from changelog.connectors.capture.rows.row_records import Change, Origin
from changelog.connectors.sources.mysql.decode.assembler import Assembler
from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.events.events import Operation
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.decode.rows.tables import Declarations, Tables
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source
from changelog.envelope.position import Position
from tests.unit.mysql.binlog_world import ITEM, Expected, World, is_stamped
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
    """The part of a checkpoint from which the next assembler continues. `LogState` explains `gtids` (which it gets as
    `received`), `resume`, `half` and `dropped`.
    """

    gtids: Gtids
    resume: Gtids
    position: Position | None = None
    partial: bool = False
    through: int = 0
    half: tuple[str, int, int] | None = None
    dropped: frozenset[str] = frozenset()


class Reads:
    """Simulates table reads. Each read has a place in the log and one row. The row is published when the log is read up
    to this place.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.discarded: list[tuple[str, str]] = []

    def add(self, end: int) -> None:
        self._waiting.append(end)

    def next_due(self) -> int | None:
        return min(self._waiting, default=None)

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


class Catalogue:
    """Simulates the catalogue of a database. It adds nothing to the columns of the log, which already have their types.

    If `fails` returns true, the call of `declare` fails.
    """

    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        self._fails = fails

    def declare(self, _entity: Entity, columns: Sequence[LogColumn]) -> tuple[LogColumn, ...]:
        if self._fails():
            raise ChangelogError(Kind.CONNECTION, "the connection was lost")
        return tuple(columns)

    def forget(self, entity: Entity) -> None:
        assert entity.name == ENTITY.name


CATALOGUE = Catalogue()


def assembler(
    stored: Stored,
    reads: Reads,
    *,
    epoch: int = 1,
    catalogue: Declarations = CATALOGUE,
    origin: Origin = ORIGIN,
    entity: Entity = ENTITY,
) -> Assembler:
    state = LogState(
        epoch=epoch,
        received=stored.gtids,
        resume=stored.resume,
        database="shop",
        half=stored.half,
        dropped=stored.dropped,
    )
    tables = Tables(
        Binder(hmac_key=b""),
        {entity.table: entity},
        declarations=catalogue,
        look_up=lambda _: ITEM.columns,
        charsets={},
    )
    return Assembler(
        origin=origin,
        tables=tables,
        entities={entity.table: entity},
        state=state,
        published=stored.position,
        partial=stored.partial,
        through=stored.through,
        listener=reads,
        reads=reads,
    )


def after(stored: Stored, assembled: Assembled, reader: Assembler) -> Stored:
    """Returns what a service stores after a block. `stored` is what it had stored before."""
    rows = [row for rows in assembled.rows for row in rows.column("position").to_pylist()]
    through = stored.through if assembled.through is None else max(stored.through, int(assembled.through, 16))
    partial = assembled.partial if rows or assembled.through is not None else stored.partial
    return Stored(
        gtids=reader.state.gtids,
        resume=reader.state.resume,
        position=Position.parse(rows[-1]) if rows else stored.position,
        partial=partial,
        through=through,
        half=reader.state.half if partial else None,
        dropped=reader.state.dropped,
    )


def published(rows: Sequence[pa.RecordBatch]) -> list[Expected]:
    """Returns the changes in these rows, in the form of `World.expected`. Leaves out the rows of table reads."""
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
NEW = Stored(NOTHING, NOTHING)


def check(rows: Sequence[pa.RecordBatch], server: World) -> None:
    """Checks that each change in the server's log was delivered once, in the order of the log, and that changes of the
    same transaction have the same commit.
    """
    changes = [(change.operation, change.key, change.text) for change in published(rows)]
    assert changes == [(change.operation, change.key, change.text) for change in server.expected]
    positions = [Position.parse(text) for item in rows for text in item.column("position").to_pylist()]
    assert positions == sorted(set(positions))
    assert transactions(published(rows)) == transactions(server.expected)


def transactions(changes: Sequence[Expected]) -> list[int]:
    """Returns how many changes each commit has, in the order of the changes."""
    return [len([*group]) for _, group in groupby(changes, key=lambda change: change.commit)]


def read(
    stored: Stored,
    reader: Assembler,
    server: World,
    rows: list[pa.RecordBatch],
    *,
    size: int,
    crashes: Callable[[Stored], bool] = lambda _: False,
) -> Stored:
    """Reads the log until it ends, until the assembler stops, or until `crashes` returns true. Adds the rows to `rows`.
    Returns what is stored then.
    """
    packets = list(server.sent(stored.resume))
    while (packets or reader.busy) and reader.stop is None:
        block, packets = ([], packets) if reader.busy else (packets[:size], packets[size:])
        assembled = reader.feed(EventBlock.of(block))
        rows += assembled.rows
        stored = after(stored, assembled, reader)
        assert not reader.state.unlogged  # no table must be read again: the rows of all prepared transactions are known
        if crashes(stored):
            break
    return stored
