"""Encodes the rows of many events (a *block*) as one Arrow batch, most of the rows together.

A value of a row is the JSON that we publish, so nothing is converted here. All values of a block go into one buffer,
from which `json_columns` splices the objects and the keys of many rows at once. `row_records` encodes unusual rows one
by one. Its output defines what is correct. These rows are unusual:
- rows whose key changes, and rows with a value that the event lacks
- rows at which the changelog may stop
- the rows of small groups
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.assembly.assembled import EncodedRows
from changelog.connectors.capture.assembly.row_groups import FEW_ROWS
from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.codec import Codec, Shape, plain
from changelog.connectors.capture.rows.json_columns import CompiledBinding, JsonRows
from changelog.connectors.capture.rows.render_rows import render
from changelog.connectors.capture.rows.row_change import UNCHANGED, Delete, Insert, Update, Value
from changelog.connectors.capture.rows.row_records import Change, Origin
from changelog.connectors.capture.rows.spans import Meta, Spans
from changelog.connectors.capture.rows.text_columns import Mask, TextColumns
from changelog.connectors.sources.debezium.decode.events import Row
from changelog.envelope.columnar import batch
from changelog.envelope.columnar.splice import INLINE, Bytes, Offsets
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record
from changelog.schemas.types import ColumnType, Decimal, Primitive

Ints = npt.NDArray[np.int64]

_BACKSLASH: Final = ord("\\")
_BARE: Final = frozenset({Primitive.BOOLEAN, Primitive.INT, Primitive.LONG})
_QUOTED: Final = frozenset(
    {
        Primitive.STRING,
        Primitive.BYTES,
        Primitive.UUID,
        Primitive.DATE,
        Primitive.TIME,
        Primitive.TIMESTAMP,
        Primitive.TIMESTAMP_TZ,
    }
)


class PublishedRow(NamedTuple):
    """A row to publish. It is a named tuple, because one is made for each event.

    The values of `row` are JSON. For a truncate, `row` is None. For a row that a snapshot read, `row` is an insert.
    """

    origin: Origin
    binding: Binding
    op: Op
    row: Insert | Update | Delete | None


@dataclass(slots=True, eq=False)
class _Group:
    """The rows of one binding that have the same origin and op. All of them have an old row, or none has."""

    origin: Origin
    binding: Binding
    op: Op
    places: list[int] = field(default_factory=list)
    before: list[Row] = field(default_factory=list)
    after: list[Row] = field(default_factory=list)


class RowEncoder:
    """Encodes the rows of blocks. It remembers the bindings that it has compiled."""

    def __init__(self) -> None:
        self._compiled: dict[int, _Compiled] = {}

    def encode(self, rows: Sequence[PublishedRow], spans: Spans) -> EncodedRows:
        """Encodes rows; `spans` cover exactly these rows.

        If a policy stops the changelog at a row, the result has the error (`stop`), all rows before that row, and
        perhaps some of the later ones. Raises ChangelogError (MALFORMED).
        """
        meta = Meta(spans)
        live: Mask = 2 * meta.ordinals > meta.published
        encoded = np.zeros(len(rows), bool)
        rendered = list[tuple[pa.RecordBatch, Ints]]()
        for origin, parts in self._together(rows, meta, live, encoded):
            of_origin = render(origin, parts, meta)
            rendered += [] if of_origin is None else [of_origin]
        records, places, stop = _one_by_one(rows, np.flatnonzero(live & ~encoded).tolist(), meta)
        all_rows, at = _in_order([*rendered, (batch.from_records(records), np.array(places, np.int64))])
        shapes = {binding.entity.name: binding.shape for binding in _bindings(rows)}
        return EncodedRows(
            rows=batch.with_shapes(all_rows, shapes),
            commits=meta.commits[at],
            xids=meta.xids(at),
            unstamped=_unstamped(rows, live, meta),
            stop=stop,
        )

    def _together(
        self, rows: Sequence[PublishedRow], meta: Meta, live: Mask, encoded: Mask
    ) -> Sequence[tuple[Origin, list[JsonRows]]]:
        """Encodes the usual rows, and marks them in `encoded`. Returns their texts, by origin.

        `live` is a mask of the rows that are not in the changelog yet.
        """
        groups = [group for group in _groups(rows, live & _may_be_usual(rows, meta)) if len(group.places) > FEW_ROWS]
        parts: dict[int, tuple[Origin, list[JsonRows]]] = {}
        if not groups:
            return []
        try:
            values = _Values(groups)
        except pa.ArrowException:  # some values were not sent
            groups = [group for group in map(_without_unsent, groups) if group.places]
            values = _Values(groups)
        for number, group in enumerate(groups):
            compiled, fast = self._compile(group.binding), np.ones(len(group.places), bool)
            before, after = (
                None if columns is None else compiled.with_keys(columns, values.buffer, fast)
                for columns in (values.columns(2 * number), values.columns(2 * number + 1))
            )
            texts = compiled.bound.template.texts(group.op, values.data, values.buffer, before, after, fast)
            if texts.size:
                texts = texts.at(np.array(group.places))
                encoded[texts.places] = True
                parts.setdefault(id(group.origin), (group.origin, []))[1].append(texts)
        return list(parts.values())

    def _compile(self, binding: Binding) -> "_Compiled":
        compiled = self._compiled.get(id(binding))
        if compiled is None:
            compiled = self._compiled[id(binding)] = _Compiled.of(binding)
        return compiled


def _bindings(rows: Sequence[PublishedRow]) -> Collection[Binding]:
    """Returns the bindings of the rows, each once, in the order of their first rows."""
    return {id(binding): binding for _, binding, _, _ in rows}.values()


def _may_be_usual(rows: Sequence[PublishedRow], meta: Meta) -> Mask:
    """Returns a mask of the rows that have a key, and about which no policy has to decide."""
    usual = np.ones(len(rows), bool)
    if all(
        binding.lost is None and not binding.entity.immutable and binding.entity.missing_stamp != "stop"
        for binding in _bindings(rows)
    ):
        return usual
    for place, row in enumerate(rows):
        entity, op = row.binding.entity, row.op
        usual[place] = (
            row.binding.lost is None
            and (op in (Op.CREATE, Op.READ) or not entity.immutable)
            and (op is Op.READ or entity.missing_stamp != "stop" or bool(meta.stamped[place]))
        )
    return usual


def _groups(rows: Sequence[PublishedRow], mask: Mask) -> Sequence[_Group]:
    groups: dict[tuple[int, int, Op, bool], _Group] = {}
    for place, (row, usual) in enumerate(zip(rows, mask.tolist(), strict=True)):
        origin, binding, op, change = row
        if not usual or change is None:
            continue
        old = None if isinstance(change, Insert) else change.old
        new = None if isinstance(change, Delete) else change.new
        if not _is_complete(binding, change, old, new):
            continue
        group_id = id(binding), id(origin), op, old is None
        group = groups.get(group_id)
        if group is None:
            group = groups[group_id] = _Group(origin, binding, op)
        group.places.append(place)
        if old is not None:
            group.before.append(old)
        if new is not None:
            group.after.append(new)
    return list(groups.values())


def _is_complete(binding: Binding, change: Insert | Update | Delete, old: Row | None, new: Row | None) -> bool:
    """Returns whether each side that the event has is a whole row, and the previous key and partition are known."""
    if not isinstance(change, Insert):
        if old is None and binding.unlogged:
            return False
        if old is not None and (change.old_kind != "O" or len(old) != binding.width):
            return False
    return new is None or len(new) == binding.width


def _without_unsent(group: _Group) -> _Group:
    """Returns a group without the rows in which a value was not sent."""
    sides = [side for side in (group.before, group.after) if side]
    numbers = [number for number in range(len(group.places)) if all(UNCHANGED not in side[number] for side in sides)]
    return _Group(
        group.origin,
        group.binding,
        group.op,
        places=[group.places[number] for number in numbers],
        before=[group.before[number] for number in numbers] if group.before else [],
        after=[group.after[number] for number in numbers] if group.after else [],
    )


class _Values:
    """All values of groups of rows, in one buffer. The buffer ends with the padding that `splice` needs.

    Raises pyarrow.ArrowException if a value was not sent. The lists of rows are numbered. List 0 has the old rows of
    the first group, and list 1 its new rows; lists 2 and 3 have those of the second group.
    """

    def __init__(self, groups: Sequence[_Group]) -> None:
        sides = [side for group in groups for side in (group.before, group.after)]
        flat = list[Value](chain.from_iterable(chain.from_iterable(sides)))
        array = pa.array(flat, pa.binary())
        _, offsets, content = array.buffers()
        ends = np.frombuffer(offsets, np.int32, len(flat) + 1)
        self.data = (b"" if content is None else content.to_pybytes()) + bytes(INLINE)
        self.buffer: Bytes = np.frombuffer(self.data, np.uint8)
        self._starts, self._lengths = ends[:-1], np.diff(ends)
        self._null: Mask = array.is_null().to_numpy(zero_copy_only=False)
        widths = [len(side[0]) * len(side) if side else 0 for side in sides]
        self._counts = [len(side) for side in sides]
        self._bounds = np.cumsum([0, *widths]).tolist()

    def columns(self, number: int) -> TextColumns | None:
        """Returns the values of the list with this number, None if it has no rows."""
        count = self._counts[number]
        if not count:
            return None
        part = slice(self._bounds[number], self._bounds[number + 1])
        return TextColumns(
            starts=np.ascontiguousarray(self._starts[part].reshape(count, -1).T),
            lengths=np.ascontiguousarray(self._lengths[part].reshape(count, -1).T),
            null=np.ascontiguousarray(self._null[part].reshape(count, -1).T),
        )


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A binding, and the variant of it (`bound`) that `json_columns` uses.

    A row consists of whole JSON values, but a key has JSON strings without their quotes. So the variant has the key
    columns a second time, at the end of the row. `keys` has each key column's place in a row, and whether the column's
    values are strings.
    """

    binding: Binding
    bound: CompiledBinding
    keys: Sequence[tuple[int, bool]]

    @classmethod
    def of(cls, binding: Binding) -> "_Compiled":
        fields = list({column.index: column for column in (*binding.key, *binding.partition)}.values())
        moved = {
            column.index: replace(column, index=binding.width + number, codec=_key_codec(column.codec))
            for number, column in enumerate(fields)
        }
        spliced = replace(
            binding,
            key=tuple(moved[column.index] for column in binding.key),
            partition=tuple(moved[column.index] for column in binding.partition),
        )
        return cls(
            binding=binding,
            bound=CompiledBinding.of(spliced),
            keys=[(column.index, _is_quoted(column.codec.column_type)) for column in fields],
        )

    def with_keys(self, columns: TextColumns, buffer: Bytes, fast: Mask) -> TextColumns:
        """Returns the columns, then the columns of the keys. Removes from `fast` the rows whose keys have escapes."""
        starts, lengths, null = [*columns.starts], [*columns.lengths], [*columns.null]
        for place, quoted in self.keys:
            start, length, is_null = columns.starts[place], columns.lengths[place], columns.null[place]
            if quoted:
                start, length = start + 1, np.where(is_null, 0, length - 2)
                fast &= ~_has_escapes(buffer, start, length)
            starts.append(start)
            lengths.append(length)
            null.append(is_null)
        return TextColumns(
            starts=np.array(starts, np.int32), lengths=np.array(lengths, np.int32), null=np.array(null, bool)
        )


def _key_codec(codec: Codec) -> Codec:
    if _is_quoted(codec.column_type):
        return Codec(shape=Shape.PLAIN, to_json=plain, column_type=codec.column_type)
    shape = Shape.RAW if codec.column_type in _BARE else Shape.OTHER
    return Codec(shape=shape, to_json=codec.to_json, column_type=codec.column_type)


def _is_quoted(column_type: ColumnType) -> bool:
    return isinstance(column_type, Decimal) or column_type in _QUOTED


def _has_escapes(buffer: Bytes, starts: Offsets, lengths: Offsets) -> Mask:
    """Returns a mask of the values that have a backslash."""
    backslashes = np.flatnonzero(buffer == _BACKSLASH)
    mask: Mask = np.searchsorted(backslashes, starts) < np.searchsorted(backslashes, starts + lengths)
    return mask


def _one_by_one(
    rows: Sequence[PublishedRow], rest: Sequence[int], meta: Meta
) -> tuple[list[Record], list[int], ChangelogError | None]:
    """Encodes the rows with the numbers `rest`, up to the first stop.

    Returns the records, the number of each record's row, and the error that stops the changelog (None without a stop).
    """
    records: list[Record] = []
    places: list[int] = []
    for place in rest:
        change = meta.change(place)
        try:
            of_row = _records(rows[place], change)
        except ChangelogError as error:
            if error.kind is Kind.MALFORMED:
                raise
            error.position = error.position or change.position()
            return records, places, error
        records += of_row
        places += [place] * len(of_row)
    return records, places, None


def _records(row: PublishedRow, change: Change) -> list[Record]:
    if row.row is None:
        return row_records.truncates(row.origin, row.binding, change)
    if row.op is Op.READ:
        assert isinstance(row.row, Insert)
        return [row_records.read(row.origin, row.binding, row.row.new, change)]
    return row_records.records(row.origin, row.binding, row.row, change)


def _in_order(parts: Sequence[tuple[pa.RecordBatch, Ints]]) -> tuple[pa.RecordBatch, Ints]:
    """Merges batches by the numbers of their rows."""
    filled = [part for part in parts if part[0].num_rows] or [parts[-1]]
    if len(filled) == 1:
        return filled[0]
    places = np.concatenate([numbers for _, numbers in filled])
    order = np.argsort(places, kind="stable")
    rows = pa.Table.from_batches([rows for rows, _ in filled]).take(order).combine_chunks()
    return rows.to_batches()[0], places[order]


def _unstamped(rows: Sequence[PublishedRow], live: Mask, meta: Meta) -> Counter[str]:
    """Counts the changes that lack a stamp, for the entities whose policy is to warn about such changes."""
    counts: Counter[str] = Counter()
    for place in np.flatnonzero(live & ~meta.stamped).tolist():
        row = rows[place]
        if row.binding.entity.missing_stamp == "warn" and row.op not in (Op.TRUNCATE, Op.READ):
            counts[row.binding.entity.name] += 1
    return counts
