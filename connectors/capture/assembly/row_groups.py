"""Encodes rows whose values are already text, for decoders that convert values column by column.

The rows of a block (a stretch of the log that is decoded at once) are divided into groups: the rows of one table with
the same op (the kind of change). All values are in one buffer. Most rows of a group are encoded together
(`json_columns`). `row_records` encodes the other rows one by one: groups of few rows, and rows that `json_columns`
cannot encode, such as large rows. The output of `row_records` defines what is correct.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from changelog.connectors.capture.assembly.assembled import EncodedRows
from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.render_rows import merged, render
from changelog.connectors.capture.rows.row_change import Delete, Insert, Update
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.rows.spans import Meta, Spans
from changelog.connectors.capture.rows.text_columns import Data, TextColumns
from changelog.envelope.columnar import batch
from changelog.envelope.columnar.splice import Bytes
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FEW_ROWS = 32
"""A group of up to this many rows is encoded row by row: that costs less than encoding the rows together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The rows of one table with the same op.

    `places` has the numbers of these rows in the block, ascending. `before` and `after` have the complete old and new
    rows, None if the op has none: an insert has no old rows, a delete no new rows, a truncate neither.
    """

    bound: CompiledBinding
    op: Op
    places: Ints
    before: TextColumns | None = None
    after: TextColumns | None = None

    def row(self, data: Data, number: int) -> Insert | Update | Delete:
        """Returns the row `number` of the group."""
        old = None if self.before is None else tuple(self.before.row(data, number))
        new = None if self.after is None else tuple(self.after.row(data, number))
        relid = self.bound.binding.relid
        if new is None:
            assert old is not None
            return Delete(relid=relid, old_kind="O", old=old)
        return Insert(relid=relid, new=new) if old is None else Update(relid=relid, old_kind="O", old=old, new=new)


def encode_groups(origin: Origin, groups: Sequence[RowGroup], data: Data, spans: Spans) -> EncodedRows:
    """Encodes a block.

    `data` has the values as text, and ends with `splice.INLINE` bytes of padding. `spans` say which transaction and
    stamp each row of the block has. If a policy stops the changelog at a row, the result has the error, and later rows
    may be missing.
    """
    meta = Meta(spans)
    live: Mask = 2 * meta.ordinals > meta.published
    buffer: Bytes = np.frombuffer(data, np.uint8)
    parts, unusual = [], list[tuple[int, RowGroup, int]]()
    unstamped: Counter[str] = Counter()
    for group in groups:
        is_live = live[group.places]
        fast = is_live & _is_usual(group, meta)
        if fast.any():
            texts = group.bound.template.texts(group.op, data, buffer, group.before, group.after, fast)
            parts.append(texts.at(group.places))
            fast[texts.other_places] = False
        unusual += [(int(group.places[number]), group, number) for number in np.flatnonzero(is_live & ~fast).tolist()]
        entity = group.bound.binding.entity
        unstamped_count = int(np.count_nonzero(is_live & ~meta.stamped[group.places]))
        if unstamped_count and entity.missing_stamp == "warn" and group.op is not Op.TRUNCATE:
            unstamped[entity.name] += unstamped_count
    unusual.sort(key=lambda row: row[0])
    records, places, stop = _one_by_one(origin, unusual, data, meta)
    rows, at = merged(render(origin, [part for part in parts if part.size], meta), records, places)
    # The bindings are sorted, because the order of the groups depends on how the block was decoded.
    bindings = sorted((group.bound.binding for group in groups), key=lambda binding: binding.entity.name)
    shapes = {binding.entity.name: binding.shape for binding in bindings}
    return EncodedRows(
        rows=batch.with_shapes(rows, shapes),
        commits=meta.commits[at],
        xids=meta.xids(at),
        unstamped=unstamped,
        stop=stop,
    )


def _is_usual(group: RowGroup, meta: Meta) -> Mask:
    """Returns a mask of the rows that may be encoded together."""
    count = len(group.places)
    binding = group.bound.binding
    if count <= FEW_ROWS or binding.lost is not None or group.op is Op.TRUNCATE:
        return np.zeros(count, bool)
    if binding.entity.immutable and group.op is not Op.CREATE:
        return np.zeros(count, bool)
    return meta.stamped[group.places].copy() if binding.entity.missing_stamp == "stop" else np.ones(count, bool)


def _one_by_one(
    origin: Origin, rows: Sequence[tuple[int, RowGroup, int]], data: Data, meta: Meta
) -> tuple[list[Record], list[int], ChangelogError | None]:
    """Encodes rows, until a policy stops the changelog at a row.

    `rows` gives for each row its number in the block (its place), its group, and its number in the group. Returns the
    records, the place of each record, and the error of the stop; None instead of the error if there is no stop.
    """
    records: list[Record] = []
    places: list[int] = []
    for place, group, number in rows:
        change, binding = meta.change(place), group.bound.binding
        try:
            if group.op is Op.TRUNCATE:
                records_of_row = row_records.truncates(origin, binding, change)
            else:
                records_of_row = row_records.records(origin, binding, group.row(data, number), change)
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            if error.position is None:
                error.position = change.position()
            return records, places, error
        records += records_of_row
        places += [place] * len(records_of_row)
    return records, places, None
