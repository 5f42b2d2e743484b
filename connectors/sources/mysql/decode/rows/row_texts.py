"""Collects the rows of a block as texts, in groups of the same table and op, until they are encoded.

The rows of usual events are converted together; `row_batches.is_whole` says which events are usual. `add` is the plain
path, for all other events: it converts value by value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from changelog.connectors.capture.assembly.row_groups import RowGroup
from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.connectors.sources.mysql.decode.events.events import RowsEvent
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.rows.row_batches import RowBatch, RowEvents
from changelog.connectors.sources.mysql.decode.rows.row_images import Image, PartialJson
from changelog.connectors.sources.mysql.values.batches.raw_columns import PADDING_BYTES
from changelog.connectors.sources.mysql.values.documents.json_diff import apply_diffs
from changelog.envelope.columnar.splice import Pool
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op

_NULL, _UNSENT = -1, -2


@dataclass(slots=True)
class _Side:
    """The old or the new rows of a group: for each needed value, the offset and the length of its text.

    The length is _NULL for a null, and _UNSENT for a value that the log does not have.
    """

    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def columns(self, table: BoundTable, count: int) -> TextColumns:
        width, printed = len(table.columns), [place for place, _ in table.printers]
        columns = TextColumns.empty(width, count)
        columns.starts[:], columns.lengths[:], columns.null[:] = 0, 0, True
        if printed:
            lengths = np.array(self.lengths, np.int32).reshape(count, len(printed)).T
            columns.starts[printed] = np.array(self.starts, np.int32).reshape(count, len(printed)).T
            columns.null[printed] = lengths < 0
            columns.lengths[printed] = np.maximum(lengths, 0)
            if _UNSENT in self.lengths:
                unsent = np.zeros((width, count), bool)
                unsent[printed] = lengths == _UNSENT
                columns = replace(columns, unsent=unsent)
        return columns


@dataclass(slots=True)
class _Group:
    table: BoundTable
    op: Op
    places: list[int] = field(default_factory=list)
    before: _Side = field(default_factory=_Side)
    after: _Side = field(default_factory=_Side)


class RowTexts:
    """The rows that were added since the last `take`, numbered from 0."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._groups: dict[tuple[int, Op], _Group] = {}
        self._batches: dict[tuple[int, Op], RowBatch] = {}
        self._count = 0

    def add_event(self, table: BoundTable, op: Op, event: RowsEvent) -> int:
        """Adds the rows of an event, and returns the number of changes.

        If the rows are unusual, adds none of them and returns 0; then `add` must add them one by one. Invalid values
        are found only when `take` is called.
        """
        count = self._batch(table, op).add(event, self._count)
        self._count += count
        return count

    def add_statements(self, groups: Sequence[RowEvents], rows: int) -> None:
        """Adds the rows of a run of transactions: `rows` changes in all."""
        for statements in groups:
            self._batch(statements.table, statements.op).extend(statements, self._count)
        self._count += rows

    def _batch(self, table: BoundTable, op: Op) -> RowBatch:
        batch = self._batches.get((id(table), op))
        if batch is None:
            batch = self._batches[id(table), op] = RowBatch(table, op)
        return batch

    def add(self, table: BoundTable, op: Op, before: Image | None, after: Image | None) -> None:
        """Adds a change. The caller makes sure that its rows lack no value that the log should have
        (`BoundTable.absent`).

        Raises ChangelogError (MALFORMED) for an invalid value.
        """
        group = self._groups.get((id(table), op))
        if group is None:
            group = self._groups[id(table), op] = _Group(table, op)
        group.places.append(self._count)
        self._count += 1
        if before is not None:
            self._print(table, group.before, before, before)
        if after is not None:
            self._print(table, group.after, table.with_defaults(after) if before is None else after, before)

    def truncate(self, table: BoundTable) -> None:
        """Adds a row that says that the table was emptied."""
        group = self._groups.setdefault((id(table), Op.TRUNCATE), _Group(table, Op.TRUNCATE))
        group.places.append(self._count)
        self._count += 1

    def leave_out(self) -> None:
        """Counts a row that is not published."""
        self._count += 1

    def _print(self, table: BoundTable, side: _Side, image: Image, before: Image | None) -> None:
        """Adds the texts of a row's values.

        Takes a value that the row lacks from `before`; if `before` lacks it, too, the value is not in the log. Where
        the row has only the differences between an old and a new JSON value, applies them to the value in `before`.
        """
        data, starts, lengths = self._data, side.starts, side.lengths
        for place, print_value in table.printers:
            value = image[place]
            if value is UNCHANGED and before is not None:
                value = before[place]
            starts.append(len(data))
            if value is None or value is UNCHANGED:
                lengths.append(_NULL if value is None else _UNSENT)
                continue
            text = _patched(before, place, value) if isinstance(value, PartialJson) else print_value(value)
            lengths.append(len(text))
            data += text

    def take(self) -> tuple[Sequence[RowGroup], bytes]:
        """Removes all rows. Returns them, and the bytes that contain their texts. These bytes are padded for `splice`.

        Raises ChangelogError (MALFORMED) for an invalid value in rows that `add_event` or `add_statements` added.
        """
        data, groups, batches = self._data, self._groups.values(), self._batches.values()
        self._data, self._groups, self._batches, self._count = bytearray(), {}, {}, 0
        bodies = [batch.bodies() for batch in batches]
        buffer = b"".join([data, *(body for of_batch in bodies for body in of_batch), bytes(PADDING_BYTES)])
        octets, pool, begin = np.frombuffer(buffer, np.uint8), Pool(buffer), len(data)
        row_groups = [_row_group(group) for group in groups]
        for batch, of_batch in zip(batches, bodies, strict=True):
            if of_batch:
                row_groups.append(batch.row_group(octets, begin, pool))
                begin += sum(map(len, of_batch))
        return row_groups, pool.data()


def _patched(before: Image | None, place: int, value: PartialJson) -> bytes:
    """Returns the text of a JSON value that the log has only as differences."""
    old = None if before is None else before[place]
    if not isinstance(old, memoryview):
        message = "a row has only the differences of a JSON value, but its old row lacks the value"
        raise ChangelogError(Kind.MALFORMED, message)
    return apply_diffs(old, value.diffs)


def _row_group(group: _Group) -> RowGroup:
    count = len(group.places)
    return RowGroup(
        bound=group.table.bound,
        op=group.op,
        places=np.array(group.places, np.int64),
        before=group.before.columns(group.table, count) if group.op in (Op.UPDATE, Op.DELETE) else None,
        after=group.after.columns(group.table, count) if group.op in (Op.CREATE, Op.UPDATE) else None,
    )
