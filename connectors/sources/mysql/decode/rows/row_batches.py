"""Converts the rows of many events of one table together, column by column. `row_texts` defines what is correct."""

from dataclasses import dataclass, field

import numpy as np

from changelog.connectors.capture.assembly.row_groups import RowGroup
from changelog.connectors.capture.rows.json_columns import Columns
from changelog.connectors.sources.mysql.decode.events.events import Rows
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.row_layout import Values
from changelog.connectors.sources.mysql.values.batches.print_all import print_all
from changelog.connectors.sources.mysql.values.batches.raw_columns import Ints
from changelog.envelope.columnar.splice import Bytes, Pool
from changelog.envelope.model import Op

BODY_BYTES_MAX = 1 << 20
"""If an event has this size or more, its rows are converted one by one, because that makes fewer copies."""


@dataclass(slots=True)
class RowBatch:
    """The rows of several events of one table and with one op. Each row contains all columns.

    For each event, `bodies` has its rows, `counts` their number, and `first_places` the place of the first row in the
    block. `starts` has where each row begins in its event. `images` is the number of stored rows for each change: an
    update has two, the old row and the new one.
    """

    table: BoundTable
    op: Op
    bodies: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    first_places: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    images: int = field(init=False)

    def __post_init__(self) -> None:
        self.images = 2 if self.op is Op.UPDATE else 1

    def add(self, event: Rows, first_place: int) -> int:
        """Adds the rows of an event. Returns their number; 0 if they are unusual, and nothing was added."""
        if not is_whole(self.table, event):
            return 0
        body = bytes(event.body)
        assert self.table.layout is not None
        starts = self.table.layout.starts(body)
        count, rest = divmod(len(starts), self.images)
        if rest:
            return 0
        if count:
            self.bodies.append(body)
            self.counts.append(count)
            self.first_places.append(first_place)
            self.starts += starts
        return count

    def extend(self, statements: "Statements", first_place: int) -> None:
        """Adds the rows of many events. `first_place` is the place in the block of the row with the number 0."""
        self.bodies += statements.bodies
        self.counts += statements.counts
        self.first_places += [first_place + number for number in statements.first_rows]
        self.starts += statements.starts

    def row_group(self, octets: Bytes, begin: int, pool: Pool) -> RowGroup:
        """Returns the rows. Their texts are added to `pool`.

        `octets` are the bytes with which `pool` begins. The bodies are in them from `begin` on.
        """
        counts = np.array(self.counts)
        sizes = np.array([len(body) for body in self.bodies])
        rows = np.repeat(begin + np.cumsum(sizes) - sizes, counts * self.images) + np.array(self.starts)
        places = np.repeat(np.array(self.first_places) - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        sides = [_columns(self.table, octets, rows[side :: self.images], pool) for side in range(self.images)]
        return RowGroup(
            bound=self.table.bound,
            op=self.op,
            places=places,
            before=None if self.op is Op.CREATE else sides[0],
            after=None if self.op is Op.DELETE else sides[-1],
        )


def is_whole(table: BoundTable, event: Rows) -> bool:
    """Whether the rows of an event contain all columns of the table, and none is stored as a difference."""
    if table.layout is None:
        return False
    every = table.layout.every_column
    has_all = event.before in (None, every) and event.after in (None, every)
    fits = event.width == len(table.columns) > 0 and len(event.body) < BODY_BYTES_MAX
    return has_all and fits and not event.partial


@dataclass(slots=True)
class Statements:
    """Events of one table and with one op, whose rows are all of the columns, in a run of transactions.

    For each event, `bodies` has its rows, and `numbers` its number in the run. After `scan`, `counts` has how many
    changes it is, and `starts` where each of its rows begins in it. `first_rows` is the number of its first change.
    """

    table: BoundTable
    op: Op
    bodies: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def scan(self) -> bool:
        """Finds the rows. Returns False if those of an event are unusual, and have to be added one by one.

        The bodies are scanned as if they were one: then each body has to begin where a row begins.
        """
        layout, images = self.table.layout, 2 if self.op is Op.UPDATE else 1
        assert layout is not None
        starts = np.array(layout.starts(b"".join(self.bodies)), np.int64)
        sizes = np.array([len(body) for body in self.bodies])
        begins = np.cumsum(sizes) - sizes
        firsts = np.searchsorted(starts, begins)
        if not len(starts) or firsts[-1] == len(starts) or (starts[firsts] != begins).any():
            return False
        row_counts = np.diff(firsts, append=len(starts))
        if not row_counts.all() or (row_counts % images).any():
            return False
        self.starts = (starts - np.repeat(begins, row_counts)).tolist()
        self.counts = (row_counts // images).tolist()
        return True


def _columns(table: BoundTable, octets: Bytes, rows: Ints, pool: Pool) -> Columns:
    columns = Columns.empty(len(table.columns), len(rows))
    columns.starts[:], columns.lengths[:], columns.null[:] = 0, 0, True
    assert table.layout is not None
    for place, values in enumerate(table.layout.values(octets, rows)):
        if place in table.column_printers and values.raw.count:
            _print(table, place, values, columns, pool)
    return columns


def _print(table: BoundTable, place: int, values: Values, columns: Columns, pool: Pool) -> None:
    """Prints the values of one column that are not null, and puts the places of their texts into `columns`."""
    raw, present = values.raw, slice(None) if values.null is None else ~values.null
    columns.null[place, present] = False
    starts, lengths = print_all(raw, table.column_printers[place], dict(table.printers)[place], pool)
    columns.starts[place, present], columns.lengths[place, present] = starts, lengths
