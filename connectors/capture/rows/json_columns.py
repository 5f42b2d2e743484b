"""Makes the JSON objects and the keys of many rows at once, without a Python object for each value.

All values, as the server printed them, are slices of one buffer. A JSON object is spliced from these slices and from
constants such as the names of its members. Values that cannot be spliced, such as strings that need escapes, are
converted one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.capture.rows.binding import Binding, Field
from changelog.connectors.capture.rows.codec import Shape, canonical
from changelog.connectors.capture.rows.row_change import LARGE_BYTES
from changelog.connectors.capture.rows.text_columns import Data, Mask, TextColumns
from changelog.envelope.columnar.splice import Bytes, Offsets, Pool, Segment, gather, splice
from changelog.envelope.key import key_text, partition_batch
from changelog.envelope.model import Op

Ints = npt.NDArray[np.int64]

_SLICED = frozenset({Shape.RAW, Shape.PLAIN, Shape.TEXT})
_QUOTED = frozenset({Shape.PLAIN, Shape.TEXT, Shape.TIMESTAMP, Shape.TIMESTAMPTZ})
_VALUE, _NULL, _TOKEN = range(3)
"""How a value is written: as its column's `Shape` requires, as null, or as a token that was converted one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRows:
    """The keys and JSON objects of rows of one table, all with the same op. The rows' provenance is not included.

    `Template.texts` takes rows and numbers them from 0. `places` has the numbers of the rows that it encoded.
    `other_places` has the numbers of the other rows, which `row_records` must encode one by one. `keys`, `partitions`,
    `current` and `original` have one element for each of `places`, and are None if `places` is empty. `current` is also
    None for deletes, and `original` for rows without an old state.
    """

    binding: Binding
    op: Op
    places: Ints
    other_places: Ints
    keys: pa.StringArray | None = None
    partitions: npt.NDArray[np.int32] | None = None
    current: pa.StringArray | None = None
    original: pa.StringArray | None = None

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.places)

    def at(self, numbers: Ints) -> "JsonRows":
        """Returns the same rows with other numbers: row n becomes row `numbers[n]`."""
        return replace(self, places=numbers[self.places])

    def numbered(self, index: Ints) -> "JsonRows":
        """Returns only the rows at these indexes of `places` (ascending). They are numbered from 0 again."""
        if len(index) == self.size:
            return replace(self, places=np.arange(self.size))
        arrow_index = pa.array(index)
        return replace(
            self,
            places=np.arange(len(index)),
            keys=None if self.keys is None else self.keys.take(arrow_index),
            partitions=None if self.partitions is None else self.partitions[index],
            current=None if self.current is None else self.current.take(arrow_index),
            original=None if self.original is None else self.original.take(arrow_index),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """The places of constants that become part of values, such as `true`.

    A place is the start and the length of a constant in the text that has all constants of a template. `t` is the T
    before the time of a timestamp. `fractions[n]` is for a fraction of a second that has n bytes, including its point:
    the constant that fills the fraction up to six digits. `fractions_z[n]` is the same with a Z at its end.
    """

    true: tuple[int, int]
    false: tuple[int, int]
    t: tuple[int, int]
    fractions: Offsets
    fractions_z: Offsets


class Template:
    """Makes JSON objects from the values of one binding's rows and from constants, such as the names of the columns."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        blob = bytearray()

        def put(text: bytes) -> tuple[int, int]:
            blob.extend(text)
            return len(blob) - len(text), len(text)

        self._labels = [
            np.array(
                [
                    [put(_label(field, first=number == 0, closes=closes, state=state)) for state in range(3)]
                    for closes in (False, True)
                ],
                np.int32,
            )
            for number, field in enumerate(binding.fields)
        ]
        self._ends = np.array([put(b"}"), put(b'"}')], np.int32)
        self._marks = _Marks(
            true=put(b"true"),
            false=put(b"false"),
            t=put(b"T"),
            fractions=np.array([put(b".000000"[length:]) for length in range(8)], np.int32),
            fractions_z=np.array([put(b".000000"[length:] + b"Z") for length in range(8)], np.int32),
        )
        self._brackets = put(b'["'), put(b'","'), put(b'"]')
        self._constants = bytes(blob)

    def texts(
        self, op: Op, data: Data, buffer: Bytes, before: TextColumns | None, after: TextColumns | None, good: Mask
    ) -> JsonRows:
        """Returns the keys and JSON objects of the rows that the mask `good` selects, except unusual rows.

        A row is unusual if it is large, lacks a value, moves to another key or partition, has a null in a column of its
        key or partition, or may have a JSON null. The result's `other_places` has the numbers of the unusual rows, and
        of the rows that `good` does not select. `before` and `after` have the values of the old and of the new rows,
        None if the op has none. `data` ends with `splice.INLINE` bytes of padding, and `buffer` is `data` as an array.
        The method also deselects the unusual rows in `good`.
        """
        binding = self._binding
        for side in (side for side in (before, after) if side is not None):
            good &= side.lengths.sum(axis=0) < LARGE_BYTES
            if side.unsent is not None:
                good &= ~side.unsent.any(axis=0)
            for field in {*binding.key, *binding.partition}:
                good &= ~side.null[field.index]
            for field in binding.fields:
                if field.json:
                    good &= ~_maybe_json_null(buffer, side, field)
        index, other_places = np.flatnonzero(good), np.flatnonzero(~good)
        all_before, all_after = before, after
        if len(other_places):
            before, after = (None if side is None else side.take(index) for side in (before, after))
        if not len(index):
            return JsonRows(binding=binding, op=op, places=index, other_places=other_places)
        holder = after if after is not None else before
        assert holder is not None
        keys = self._keys(data, buffer, binding.key, holder)
        partition_keys = keys if binding.placed_by_key else self._keys(data, buffer, binding.partition, holder)
        if before is not None and after is not None:
            moved = pc.not_equal(keys, self._keys(data, buffer, binding.key, before))
            if not binding.placed_by_key:
                old_partition_keys = self._keys(data, buffer, binding.partition, before)
                moved = pc.or_(moved, pc.not_equal(partition_keys, old_partition_keys))
            if pc.any(moved).as_py():
                stayed = ~moved.to_numpy(zero_copy_only=False)
                good[index] = stayed
                return self.texts(op, data, buffer, all_before, all_after, good)
        pool = Pool(data)
        base = pool.add(self._constants)
        sides = holder if before is None or after is None else TextColumns.joined(before, after)
        plan = self._object(pool, base, data, buffer, sides)
        objects = splice(pool.buffer(), sides.count, plan)
        original = None if before is None else objects.slice(0, len(index))
        current = None if after is None else objects.slice(sides.count - len(index))
        return JsonRows(
            binding=binding,
            op=op,
            places=index,
            other_places=other_places,
            keys=keys,
            partitions=partition_batch(partition_keys, binding.entity.partitions),
            current=current,
            original=original,
        )

    def _keys(self, data: Data, buffer: Bytes, fields: Sequence[Field], columns: TextColumns) -> pa.StringArray:
        """Returns the keys in canonical form.

        If the server prints their values in canonical form, the keys are spliced. If not, they are converted row by
        row.
        """
        places = [field.index for field in fields]
        starts, lengths = columns.starts[places], columns.lengths[places]
        can_slice = all(field.codec.shape in _SLICED and not field.json for field in fields)
        if can_slice and len(fields) == 1:
            return splice(buffer, starts.shape[1], [(starts[0], lengths[0])])
        if can_slice and not any(
            field.codec.shape is Shape.TEXT and len(_escaped(buffer, start, length))
            for field, start, length in zip(fields, starts, lengths, strict=True)
        ):
            return self._key_arrays(data, starts, lengths)
        return pa.array(
            [
                key_text(
                    [
                        canonical(bytes(data[start : start + length]), field.codec)
                        for field, start, length in zip(fields, row_starts, row_lengths, strict=True)
                    ]
                )
                for row_starts, row_lengths in zip(starts.T.tolist(), lengths.T.tolist(), strict=True)
            ],
            pa.utf8(),
        )

    def _key_arrays(self, data: Data, starts: Offsets, lengths: Offsets) -> pa.StringArray:
        pool = Pool(data)
        base = pool.add(self._constants)
        opening, comma, closing = self._brackets
        plan = _Plan()
        for number in range(len(starts)):
            plan.constant(base, opening if number == 0 else comma)
            plan.add(starts[number], lengths[number])
        plan.constant(base, closing)
        return splice(pool.buffer(), starts.shape[1], plan.segments)

    def _object(self, pool: Pool, base: int, data: Data, buffer: Bytes, columns: TextColumns) -> list[Segment]:
        """Returns the segments of the JSON objects of all rows; the constants are in the pool from `base` on."""
        count = columns.starts.shape[1]
        plan = _Plan()
        closes: bool | Mask = False
        if not self._labels:
            return [(pool.add(b"{}"), 2)]
        for labels, field in zip(self._labels, self._binding.fields, strict=True):
            value = _Value(pool, data, buffer, columns, field)
            value_segments = value.texts(self._marks, base)
            states = value.states
            if isinstance(closes, bool) and states is None:
                plan.constant(base, labels[int(closes)][_VALUE])
            else:
                label = labels[np.asarray(closes).astype(np.int8), 0 if states is None else states]
                plan.add(np.broadcast_to(label[..., 0] + base, count), np.broadcast_to(label[..., 1], count))
            plan.segments += value_segments
            is_quoted = field.codec.shape in _QUOTED
            closes = is_quoted if states is None else (states == _VALUE) & is_quoted
        if isinstance(closes, bool):
            plan.constant(base, self._ends[int(closes)])
        else:
            label = self._ends[closes.astype(np.int8)]
            plan.add(label[:, 0] + base, label[:, 1])
        return plan.segments


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBinding:
    """A binding with its template."""

    binding: Binding
    template: Template

    @classmethod
    def of(cls, binding: Binding) -> Self:
        """Compiles a binding."""
        return cls(binding=binding, template=Template(binding))


class _Plan:
    """Collects the segments from which JSON objects or keys are spliced."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def add(self, starts: Offsets | int, lengths: Offsets | int) -> None:
        self.segments.append((starts, lengths))

    def constant(self, base: int, where: Sequence[int] | Offsets) -> None:
        self.segments.append((base + int(where[0]), int(where[1])))


class _Value:
    """The values of one column in the old or in the new rows.

    `states` says how each value is written; None means that all are _VALUE. Read `states` only after `texts`, which may
    set it.
    """

    def __init__(self, pool: Pool, data: Data, buffer: Bytes, columns: TextColumns, field: Field) -> None:
        self._pool, self._data, self._buffer, self._field = pool, data, buffer, field
        self._starts = columns.starts[field.index]
        self._lengths = columns.lengths[field.index]
        self._null = columns.null[field.index]
        self.states: npt.NDArray[np.int8] | None = None
        if self._null.any():
            self.states = np.where(self._null, _NULL, _VALUE).astype(np.int8)

    def texts(self, marks: _Marks, base: int) -> list[Segment]:
        """Returns the segments of the values. The segments of a null have length 0."""
        match self._field.codec.shape:
            case Shape.RAW | Shape.PLAIN:
                return [(self._starts, self._lengths)]
            case Shape.TEXT:
                return self._except(
                    [(self._starts, self._lengths)], _escaped(self._buffer, self._starts, self._lengths)
                )
            case Shape.FLOAT:
                last = self._buffer[self._starts + np.maximum(self._lengths, 1) - 1]
                return self._except([(self._starts, self._lengths)], np.flatnonzero((last > ord("9")) & ~self._null))
            case Shape.BOOL:
                return self._booleans(marks, base)
            case Shape.TIMESTAMP:
                return self._timestamps(marks, base, 0, marks.fractions)
            case Shape.TIMESTAMPTZ:
                return self._timestamps(marks, base, 3, marks.fractions_z)
            case Shape.OTHER:
                empty = np.zeros(len(self._starts), np.int32)
                return self._except([(empty, empty.copy())], np.flatnonzero(~self._null))

    def _booleans(self, marks: _Marks, base: int) -> list[Segment]:
        truth = self._buffer[self._starts] == ord("t")
        (true, true_length), (false, false_length) = marks.true, marks.false
        lengths = np.where(truth, true_length, false_length)
        lengths[self._null] = 0
        return [(np.where(truth, base + true, base + false), lengths)]

    def _timestamps(self, marks: _Marks, base: int, zone: int, fractions: Offsets) -> list[Segment]:
        """Returns segments that write `2026-11-21 03:10:02.88+00` as `2026-11-21T03:10:02.880000Z`.

        `zone` is the length of the zone: 0 if there is none, and then no `Z` is written. Timestamps in other forms are
        converted one by one.
        """
        starts, lengths, buffer = self._starts, self._lengths, self._buffer
        fraction = lengths - 19 - zone
        usual = (fraction == 0) | (
            (fraction >= 2) & (fraction <= 7) & (buffer[np.minimum(starts + 19, len(buffer) - 1)] == ord("."))
        )
        usual &= (buffer[np.minimum(starts + 4, len(buffer) - 1)] == ord("-")) & (
            buffer[np.minimum(starts + 10, len(buffer) - 1)] == ord(" ")
        )
        usual &= buffer[starts + np.maximum(lengths, 1) - 1] <= ord("9")  # not BC
        usual &= ~_incomplete_dates(buffer, starts)
        if zone:
            usual &= buffer[np.minimum(starts + lengths - zone, len(buffer) - 1)] == ord("+")
        t, _ = marks.t
        padding = fractions[np.where(usual, fraction, 0)]
        parts: list[Segment] = [
            (starts, np.where(usual, 10, 0).astype(np.int32)),
            (base + t, np.where(usual, 1, 0).astype(np.int32)),
            (starts + 11, np.where(usual, lengths - 11 - zone, 0).astype(np.int32)),
            (padding[:, 0] + base, np.where(usual, padding[:, 1], 0).astype(np.int32)),
        ]
        return self._except(parts, np.flatnonzero(~usual & ~self._null))

    def _except(self, segments: list[Segment], index: Ints) -> list[Segment]:
        """Converts the values at `index` one by one, and returns the segments with the converted values in them."""
        if not len(index):
            return segments
        if self.states is None:
            self.states = np.zeros(len(self._starts), np.int8)
        self.states[index] = _TOKEN
        starts, lengths = (np.array(part, np.int32) for part in segments[0])
        for number in index.tolist():
            begin = self._starts[number]
            token = self._field.codec.to_json(bytes(self._data[begin : begin + self._lengths[number]]))
            starts[number] = self._pool.add(token)
            lengths[number] = len(token)
        return [(starts, lengths), *segments[1:]]


def _incomplete_dates(buffer: Bytes, starts: Offsets) -> Mask:
    """Returns a mask of the values that begin with a date in which the year, the month or the day is 0."""
    pairs: npt.NDArray[np.uint16] = np.ndarray((len(buffer) - 1,), "u2", buffer=buffer, strides=(1,))
    zeros = pairs[np.minimum(starts + np.array([[0], [2], [5], [8]]), len(pairs) - 1)] == int.from_bytes(b"00")
    mask: Mask = (zeros[0] & zeros[1]) | zeros[2] | zeros[3]
    return mask


def _escaped(buffer: Bytes, starts: Offsets, lengths: Offsets) -> Ints:
    """Returns the indexes of the values that have a byte which JSON must escape (RFC 8259, section 7)."""
    offsets, data = gather(buffer, len(starts), [(starts, lengths)])
    octets = np.frombuffer(data, np.uint8)
    special = (octets < 0x20) | (octets == ord('"')) | (octets == ord("\\"))
    if not special.any():
        return np.empty(0, np.int64)
    return np.unique(np.searchsorted(offsets, np.flatnonzero(special), side="right") - 1)


def _maybe_json_null(buffer: Bytes, columns: TextColumns, field: Field) -> Mask:
    """Returns a mask of the values that could be JSON's null: they begin with n or with white space."""
    first = buffer[columns.starts[field.index]]
    long = columns.lengths[field.index] >= len(b"null")
    maybe: Mask = long & ((first == ord("n")) | (first <= ord(" ")))
    return maybe


def _label(field: Field, *, first: bool, closes: bool, state: int) -> bytes:
    """Returns the constant before a value: the end of the previous value, a brace or comma, the name, an opening quote.

    `first` says that the member is the first one, and `closes` that the previous value needs a closing quote. `state`
    says how the value is written. If the value is a null, the constant also has the `null`.
    """
    opening = b"{" if first else b","
    value = b"null" if state == _NULL else b'"' if state == _VALUE and field.codec.shape in _QUOTED else b""
    return (b'"' if closes else b"") + opening + field.label + value
