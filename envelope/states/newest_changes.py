"""Selects from an entity's changes those that determine the last state of each key. `changelog.envelope.states.fold`
then computes the states.

The changes may come in any order and more than once. How much memory is needed depends on how many keys there are, not
on how many changes: see `NewestChanges`.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from changelog.envelope.states.fold import CHANGES, WHOLE

ROWS_MIN: Final = 1 << 16
"""At least this many new changes are added before outdated changes are removed again."""

COMMITTED_AT: Final = b'"committedAt":"'
TAIL_BYTES: Final = len(COMMITTED_AT) + len('2026-11-21T03:10:02.886044Z"}}')
"""If a provenance ends with the commit time, `COMMITTED_AT` begins this many bytes before its end."""

_CHUNK_BYTES: Final = 1 << 26
_SLICE_ROWS: Final = 4096
_POSITION: Final = str(Position(0, 0, 0))
_POSITION_BYTES: Final = len(_POSITION)
_SLASHES: Final = [at for at, character in enumerate(_POSITION) if character == "/"]
_LACKS: Final = "lacks"
_OF_CHANGE: Final = tuple(name for name in CHANGES if name not in ("gaps", WHOLE))

Mask = npt.NDArray[np.bool_]


class NewestChanges:
    """Keeps the newest change of each key. If that change lacks a value, also keeps the changes before it, back to one
    that has all values.

    A change lacks a value if the database's log did not send the value; an earlier change must then supply the value. A
    delete is kept as well. Without it, a change that was made before the delete, but is added to this object
    afterwards, would count as the newest. Changes after the position `until` are ignored. Changes that are outdated are
    removed from time to time, so memory holds at most about twice as many changes as are needed, plus `ROWS_MIN`.
    """

    def __init__(self, *, until: Position | None = None) -> None:
        self._until = until
        self._truncated = ""
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._kept_rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds changes of one entity: a batch of `changelog.envelope.columnar.batch.SCHEMA`."""
        if self._until is not None:
            rows = rows.filter(pc.less_equal(rows.column("position"), str(self._until)))
        is_truncate = pc.equal(rows.column("key"), TRUNCATE_KEY)
        if pc.any(is_truncate).as_py():
            truncates = rows.filter(is_truncate).column("position")
            self._truncated = max(self._truncated, pc.max(truncates).as_py())
            rows = rows.filter(pc.invert(is_truncate))
        if self._truncated:
            rows = rows.filter(pc.greater(rows.column("position"), self._truncated))
        if rows.num_rows:
            self._batches.append(_of_keys(rows))
            self._rows += rows.num_rows
        if self._rows >= self._kept_rows + max(ROWS_MIN, self._kept_rows):
            self._keep_newest()

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yields the changes that are kept, and forgets them. The batches have the columns
        `changelog.envelope.states.fold.CHANGES`. The changes of a key are adjacent, the newest first.
        """
        self._keep_newest()
        if not self._batches:
            return
        order, codes = self._order_and_codes()
        lacks = self._lacks()
        lone = np.bincount(codes)[codes] == 1
        whole = lone & ~lacks
        others = [batch.filter(pa.array(~mask)) for batch, mask in self._with_parts(whole)]
        for batch, mask in self._with_parts(whole):
            yield from _marked(batch.filter(pa.array(mask)), whole=True)
        self._batches = []
        table = _large(others)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        newest_first = np.lexsort((-rank[~whole], codes[~whole]))
        for begin in range(0, len(newest_first), _SLICE_ROWS):
            rows = table.take(pa.array(newest_first[begin : begin + _SLICE_ROWS]))
            for batch in rows.combine_chunks().to_batches():
                yield from _marked(batch, whole=False)

    def _keep_newest(self) -> None:
        """Removes the changes that no longer determine the last state of their key."""
        if self._truncated:
            self._batches = [
                batch.filter(pc.greater(batch.column("position"), self._truncated)) for batch in self._batches
            ]
        self._batches = [batch for batch in self._batches if batch.num_rows]
        if self._batches:
            order, codes = self._order_and_codes()
            places = np.arange(len(order))
            is_whole = ~self._lacks()[order]
            last_whole = np.full(codes.max() + 1, -1)
            np.maximum.at(last_whole, codes[order][is_whole], places[is_whole])
            keep_mask = np.empty(len(order), np.bool_)
            keep_mask[order] = places >= last_whole[codes[order]]
            self._batches = list(_joined(batch.filter(pa.array(mask)) for batch, mask in self._with_parts(keep_mask)))
        self._rows = self._kept_rows = sum(batch.num_rows for batch in self._batches)

    def _order_and_codes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the indices of all changes, in the order of their positions, and one number for each change, which is
        the same for all changes of a key.
        """
        positions = np.concatenate([_positions(batch) for batch in self._batches])
        keys = pa.chunked_array([batch.column("key") for batch in self._batches]).cast(pa.large_utf8())
        codes = keys.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
        return np.lexsort((positions[:, 1], positions[:, 0])), codes

    def _lacks(self) -> Mask:
        return np.concatenate([batch.column(_LACKS).to_numpy(zero_copy_only=False) for batch in self._batches])

    def _with_parts(self, mask: Mask) -> Iterator[tuple[pa.RecordBatch, Mask]]:
        """Yields each batch with the part of `mask` that belongs to it. `mask` covers the changes of all batches."""
        begin = 0
        for batch in self._batches:
            yield batch, mask[begin : begin + batch.num_rows]
            begin += batch.num_rows


def _of_keys(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the columns that a fold needs, and a column that says whether the change lacks a value."""
    provenance = rows.column("provenance")
    gaps = pc.if_else(_may_have_gaps(provenance), provenance, pa.scalar(None, pa.utf8()))
    lacks = np.zeros(rows.num_rows, np.bool_)
    for index in np.flatnonzero(gaps.is_valid().to_numpy(zero_copy_only=False)).tolist():
        is_delete = rows.column("op")[index].as_py() == Op.DELETE
        lacks[index] = not is_delete and json_codec.decode_provenance(gaps[index].as_py()).source.unavailable != ()
    arrays = [*(rows.column(name) for name in _OF_CHANGE), gaps, pa.array(lacks)]
    return pa.RecordBatch.from_arrays(arrays, [*_OF_CHANGE, "gaps", _LACKS])


def _may_have_gaps(provenance: pa.StringArray) -> pa.BooleanArray:
    """Returns which provenances may name unavailable values or JSON nulls.

    A provenance that ends with the commit time names none. Nearly all provenances end in this way. The provenances of a
    batch are searched for such names only if at least one of them ends differently.
    """
    end = pc.binary_slice(provenance.cast(pa.binary()), start=-TAIL_BYTES, stop=len(COMMITTED_AT) - TAIL_BYTES)
    has_more = pc.not_equal(end, COMMITTED_AT)
    if not pc.any(has_more).as_py():
        return has_more
    names = [pc.match_substring(provenance, name) for name in ('"unavailable":', '"jsonNull":')]
    return pc.and_(has_more, pc.or_(*names))


def _positions(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Returns the positions as numbers of 128 bits. The result has one row for each change: the high half and the low
    half.
    """
    texts = batch.column("position").cast(pa.binary()).cast(pa.binary(_POSITION_BYTES))
    characters = np.frombuffer(
        texts.buffers()[1], np.uint8, len(texts) * _POSITION_BYTES, texts.offset * _POSITION_BYTES
    )
    digits = np.delete(characters.reshape(-1, _POSITION_BYTES), _SLASHES, axis=1)
    return np.frombuffer(bytes.fromhex(digits.tobytes().decode()), ">u8").reshape(-1, 2).astype(np.uint64)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches. Otherwise, more and more small batches would remain as changes are removed from them."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if group and size + batch.nbytes > _CHUNK_BYTES:
            yield pa.concat_batches(group)
            group, size = [], 0
        if batch.num_rows:
            group.append(batch)
            size += batch.nbytes
    if group:
        yield pa.concat_batches(group)


def _large(batches: list[pa.RecordBatch]) -> pa.Table:
    """Returns the batches as one table. Its texts have offsets of 64 bits, because the texts of all batches together
    may be too long for offsets of 32 bits.
    """
    table = pa.Table.from_batches(batches)
    fields = [field.with_type(pa.large_utf8()) if pa.types.is_string(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields)).combine_chunks()


def _marked(batch: pa.RecordBatch, *, whole: bool) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        marks = pa.array(np.full(batch.num_rows, whole))
        columns = [marks if name == WHOLE else batch.column(name) for name in CHANGES]
        yield pa.RecordBatch.from_arrays(columns, list(CHANGES))
