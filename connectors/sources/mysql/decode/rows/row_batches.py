"""Converts the rows of many events of one table together, column by column.

The results must be the same as those of `row_texts`, which converts rows one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from changelog.connectors.capture.assembly.row_groups import RowGroup
from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.connectors.sources.mysql.decode.events.events import RowsEvent
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.row_layout import RawValues
from changelog.connectors.sources.mysql.values.batches.print_all import print_all
from changelog.connectors.sources.mysql.values.batches.raw_columns import Ints
from changelog.envelope.columnar.splice import Bytes, Pool, gather
from changelog.envelope.model import Op

BODY_BYTES_MAX = 1 << 20
"""If an event has this size or more, its rows are converted one by one, because that makes fewer copies."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows of some events.

    The *place* of a change is its number in the block (the events that are decoded together). `bodies` has the bytes of
    all rows, in one or several pieces. For each event, `counts` has the number of its changes, and `first_places` the
    place of its first change. For each row, `starts` has the offset at which the row begins in the joined bodies.
    """

    bodies: Sequence[bytes | pa.Buffer]
    counts: Ints
    first_places: Ints
    starts: Ints

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.bodies))


@dataclass(slots=True)
class RowBatch:
    """The rows of several events that have the same table and the same op. Each row contains all columns.

    `images` is how many rows the log has for each change: two for an update (the old row and the new one), else one.
    """

    table: BoundTable
    op: Op
    images: int = field(init=False)
    _parts: list[_Part] = field(init=False, default_factory=list)
    _bodies: list[bytes] = field(init=False, default_factory=list)
    _counts: list[int] = field(init=False, default_factory=list)
    _first_places: list[int] = field(init=False, default_factory=list)
    _starts: list[int] = field(init=False, default_factory=list)
    _nbytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.images = 2 if self.op is Op.UPDATE else 1

    def add(self, event: RowsEvent, first_place: int) -> int:
        """Adds the rows of an event, and returns the number of changes. If the rows are unusual, adds none."""
        if not is_whole(self.table, event):
            return 0
        body = bytes(event.body)
        assert self.table.layout is not None
        starts = self.table.layout.starts(body)
        count, rest = divmod(len(starts), self.images)
        if rest:
            return 0
        if count:
            self._starts += [self._nbytes + start for start in starts]
            self._nbytes += len(body)
            self._bodies.append(body)
            self._counts.append(count)
            self._first_places.append(first_place)
        return count

    def extend(self, statements: "RowEvents", first_place: int) -> None:
        """Adds the rows of many events of a run. `first_place` is the place of the run's first change in the block."""
        self._end_part()
        first_places = first_place + statements.first_rows
        self._parts.append(_Part([statements.bodies()], statements.counts, first_places, statements.starts))

    def _end_part(self) -> None:
        """Turns the events that were added one by one into a `_Part`."""
        if self._bodies:
            arrays = (np.array(numbers, np.int64) for numbers in (self._counts, self._first_places, self._starts))
            self._parts.append(_Part(self._bodies, *arrays))
            self._bodies, self._counts, self._first_places, self._starts = [], [], [], []
            self._nbytes = 0

    def bodies(self) -> Sequence[bytes | pa.Buffer]:
        """Returns the bytes of all rows. After this call, no more rows may be added."""
        self._end_part()
        return [body for part in self._parts for body in part.bodies]

    def row_group(self, octets: Bytes, begin: int, pool: Pool) -> RowGroup:
        """Returns the rows. The texts of their values are added to `pool`.

        `pool` begins with `octets`. From `begin` on, `octets` have the bytes that `bodies` returned.
        """
        parts, rows = self._parts, list[Ints]()
        for part in parts:
            rows.append(begin + part.starts)
            begin += part.nbytes
        all_rows = np.concatenate(rows)
        counts = np.concatenate([part.counts for part in parts])
        first_places = np.concatenate([part.first_places for part in parts])
        places = np.repeat(first_places - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        side_after_side = np.concatenate([all_rows[number :: self.images] for number in range(self.images)])
        sides = _columns(self.table, octets, side_after_side, pool)
        count = sides.count // self.images
        return RowGroup(
            bound=self.table.bound,
            op=self.op,
            places=places,
            before=None if self.op is Op.CREATE else sides.part(0, count),
            after=None if self.op is Op.DELETE else sides.part(sides.count - count, sides.count),
        )


def is_whole(table: BoundTable, event: RowsEvent) -> bool:
    """Whether the rows of an event can be converted together.

    The rows must contain all columns of the table, and must not be too large. MySQL may store only what changed in a
    JSON value; such events are left out, too.
    """
    if table.layout is None:
        return False
    every = table.layout.every_column
    has_all = event.before in (None, every) and event.after in (None, every)
    fits = event.width == len(table.columns) > 0 and len(event.body) < BODY_BYTES_MAX
    return has_all and fits and not event.partial


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(slots=True, eq=False)
class RowEvents:
    """Events of one run (see `usual.runs`) that have the same table and the same op. Their rows contain all columns.

    For each event, `numbers` has its number in the run; its rows are `sizes` bytes of `octets` from `begins` on. After
    `scan`, `counts` has the number of the event's changes, and `starts` has for each row its offset in `bodies()`.
    `first_rows` has for each event the number of its first change, where all changes of the run are counted from 0.
    """

    table: BoundTable
    op: Op
    octets: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    begins: Ints = field(default_factory=_none)
    sizes: Ints = field(default_factory=_none)
    numbers: Ints = field(default_factory=_none)
    counts: Ints = field(default_factory=_none)
    first_rows: Ints = field(default_factory=_none)
    starts: Ints = field(default_factory=_none)

    def bodies(self) -> pa.Buffer:
        """Returns the rows of all events, one after another."""
        return gather(self.octets, len(self.begins), [(self.begins.astype(np.int32), self.sizes.astype(np.int32))])[1]

    def scan(self) -> bool:
        """Finds the rows. Returns False if the rows of an event are unusual, and must be added one by one."""
        layout, images = self.table.layout, 2 if self.op is Op.UPDATE else 1
        assert layout is not None
        bodies = np.cumsum(self.sizes) - self.sizes
        starts = layout.starts_in(self.octets, self.begins, self.sizes)
        if starts is None:
            starts = np.array(layout.starts(self.bodies().to_pybytes()), np.int64)
        firsts = np.searchsorted(starts, bodies)
        if not len(starts) or firsts[-1] == len(starts) or (starts[firsts] != bodies).any():
            return False
        row_counts = np.diff(firsts, append=len(starts))
        if not row_counts.all() or (row_counts % images).any():
            return False
        self.starts, self.counts = starts, row_counts // images
        return True


def _columns(table: BoundTable, octets: Bytes, rows: Ints, pool: Pool) -> TextColumns:
    columns = TextColumns.empty(len(table.columns), len(rows))
    columns.starts[:], columns.lengths[:], columns.null[:] = 0, 0, True
    assert table.layout is not None
    for place, values in enumerate(table.layout.values(octets, rows)):
        if place in table.column_printers and values.raw.count:
            _print(table, place, values, columns, pool)
    return columns


def _print(table: BoundTable, place: int, values: RawValues, columns: TextColumns, pool: Pool) -> None:
    """Converts the values of one column that are not null to text, and puts the places of the texts into `columns`."""
    raw, present = values.raw, slice(None) if values.null is None else ~values.null
    columns.null[place, present] = False
    starts, lengths = print_all(raw, table.column_printers[place], dict(table.printers)[place], pool)
    columns.starts[place, present], columns.lengths[place, present] = starts, lengths
