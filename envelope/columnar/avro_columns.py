"""Encodes all messages of a batch in Avro at once, column by column. The result is the same as that of `AvroCodec`, but
no Python object is made for each value, so this is much faster.

A *state* is the JSON object in `current` or `original`. Sources write the states of an entity without white space, and
with the columns in the order of the entity's schema. So the offsets of the quotes show where each value begins and
ends. The encoder takes one column after another, and renders the column's Avro for all rows at once. So each row gets a
slice of bytes from each column. At the end, the encoder joins the slices of each row.

A row whose states have their members in another order, or have unknown members, is encoded by `AvroCodec`. For each
type, a fast function encodes the usual values (`changelog.envelope.columnar.avro_shortcuts`). Unusual values, such as
an infinite date or a text with an escape, are encoded one by one.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.codec.avro_codec import PRESENT, AvroCodec, closing, opening, optional_text
from changelog.envelope.codec.avro_values import NULL
from changelog.envelope.columnar.avro_scan import Ints, Mask, ObjectScan, Tokens, raw, windows
from changelog.envelope.columnar.avro_shortcuts import BLANKS, ColumnStep, ColumnValues, long_segment
from changelog.envelope.columnar.splice import INLINE, Offsets, Pool, Segment, gather, splice
from changelog.envelope.model import Source
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, Map, Primitive, Struct

FEW_ROWS: Final = 32
"""A batch of at most this many rows is encoded row by row, because this is faster for so few rows."""

ROWS_MAX: Final = 4096
"""A batch of more rows is cut in two, because its buffers would not stay in the processor's cache."""

NBYTES_MAX: Final = 64 << 20
"""A batch of more bytes is cut in two, so that each buffer stays far below 2 GiB, the most that its offsets reach."""

_POSITION = b'"position":"'
_SOURCE = b',"source":{'
_AFTER_POSITION = len('","transaction":"')
_AFTER_TRANSACTION = len('","committedAt":"') + len("2026-11-21T03:10:02.886044Z")
_POSITION_LENGTH = len("00000000/0000000000000000/00000000")
_STAMP = ("api_version", "service_name", "identifier")
_STAMP_LENGTH = len('{"apiVersion":"","serviceName":"","identifier":""')
_CONTEXT = b',"context":'


class ColumnarEncoder:
    """Encodes batches (`changelog.envelope.columnar.batch.SCHEMA`) of one entity, with the same result as `codec`.

    Each encoded value begins with `header`.
    """

    def __init__(self, codec: AvroCodec, header: bytes) -> None:
        self._codec, self._header = codec, header
        self._walk = [ColumnStep.of(column) for column in codec.columns]
        self._nested = any(_is_nested(column) for column in codec.columns)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Returns the encoded value of each row. Raises the errors of `AvroCodec.value`."""
        rows = batch.num_rows
        if rows <= FEW_ROWS:
            return [self._plain(batch, row) for row in range(rows)]
        if rows > ROWS_MAX or batch.nbytes > NBYTES_MAX:
            return [*self.encode(batch.slice(0, rows // 2)), *self.encode(batch.slice(rows // 2))]
        provenance = _Provenance(batch)
        pool = Pool(self._header)
        (current, original), good = self._states(pool, batch, provenance)
        segments = [(0, len(self._header)), *provenance.segments(pool), current, original]
        values = _pieces(pool, rows, segments)
        for row in np.flatnonzero(~good).tolist():
            values[row] = self._plain(batch, row)
        return values

    def _plain(self, batch: pa.RecordBatch, row: int) -> bytes:
        provenance, current, original = (
            batch.column(name)[row].as_py() for name in ("provenance", "current", "original")
        )
        return self._header + self._codec.value(
            json_codec.decode_provenance(provenance),
            None if current is None else current.encode(),
            None if original is None else original.encode(),
        )

    def _states(
        self, pool: Pool, batch: pa.RecordBatch, provenance: "_Provenance"
    ) -> tuple[tuple[Segment, Segment], Mask]:
        """Encodes both states of each row. Each state begins with the index of its union branch.

        Returns the segments of `current` and of `original`, and a mask of the rows that could be encoded here.
        """
        rows = batch.num_rows
        texts = pa.concat_arrays([batch.column("current"), batch.column("original")])
        present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        starts = np.full(2 * rows, pool.add(NULL), np.int32)
        lengths = np.full(2 * rows, len(NULL), np.int32)
        good = np.ones(2 * rows, bool)
        if len(present):
            scan = ObjectScan(
                texts if len(present) == 2 * rows else texts.drop_null(), nested=self._nested, suffix=BLANKS
            )
            tokens = [scan.step(step.label) for step in self._walk]
            good[present] = complete = self._complete(scan.done(), tokens, provenance, present)
            usable = np.flatnonzero(complete)
            if len(usable):
                if len(usable) < len(complete):
                    tokens = [token.take(usable) for token in tokens]
                offsets, data = self._render(scan, tokens, len(usable))
                starts[present[usable]] = offsets[:-1] + pool.add(data)
                lengths[present[usable]] = np.diff(offsets)
        sides = (starts[:rows], lengths[:rows]), (starts[rows:], lengths[rows:])
        return sides, good[:rows] & good[rows:]

    def _complete(self, complete: Mask, tokens: Sequence[Tokens], provenance: "_Provenance", present: Ints) -> Mask:
        """Sets the mask `complete` to False for incomplete states, and returns the mask.

        A state is complete if the columns that it lacks are all unavailable (the database's log did not send them), and
        if it has no null in a column that is not nullable.
        """
        codes, sources = provenance.codes, provenance.sources
        for step, token in zip(self._walk, tokens, strict=True):
            if not step.nullable:
                complete &= ~token.null
            if not token.present.all():
                current = np.array([step.name in source.unavailable for source in sources])
                original = np.array([step.name in source.unavailable_original for source in sources])
                complete &= token.present | np.append(current[codes], original[codes])[present]
        return complete

    def _render(self, scan: ObjectScan, tokens: Sequence[Tokens], count: int) -> tuple[Offsets, bytes]:
        """Renders `count` states from the tokens of their columns.

        Returns the offset at which each state begins, the offset at which the last state ends, and the bytes of all
        states.
        """
        pool = Pool(scan.data)
        segments: list[Segment] = [(pool.add(PRESENT), len(PRESENT))]
        for step, encode, token in zip(self._walk, self._codec.encoders, tokens, strict=True):
            segments += step.render(ColumnValues(pool, scan, token, step, encode))
        offsets, data = gather(pool.buffer(), count, segments)
        return offsets[:: len(segments)], data.to_pybytes()


def _is_nested(column: Column) -> bool:
    return column.type is Primitive.JSON or isinstance(column.type, Array | Map | Struct)


class _Provenance:
    """Encodes the provenance of each row.

    The stamp, the position, the transaction and the commit time can differ from row to row. The JSON of `source` before
    the position is the same in many rows, and so is its JSON after the commit time. Each distinct text is encoded once.
    `sources` has one source for each distinct text after the commit time; `codes` has, for each row, an index in
    `sources`.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._rows = batch.num_rows
        self._texts = batch.column("provenance")
        offsets, self._data = raw(self._texts)
        self._buffer = np.frombuffer(self._data + bytes(INLINE), np.uint8)
        self._offsets = offsets[:-1]
        self._contexts = batch.column("context")
        self._has_contexts = self._contexts.null_count < self._rows
        begins = self._sources()
        ops = self._lengths("op")
        first = self._data.find(_POSITION, begins[0], offsets[1]) - begins[0] - ops[0]
        positions = self._find(_POSITION, begins + first + ops, begins)
        self._before, self._first = self._shared(begins, positions)
        ends = positions + len(_POSITION) + _POSITION_LENGTH + _AFTER_POSITION + _AFTER_TRANSACTION
        self.codes, self.sources = self._shared(ends + self._lengths("transaction"), offsets[1:])

    def _lengths(self, name: str) -> Ints:
        lengths: Ints = pc.binary_length(self._batch.column(name)).to_numpy().astype(np.int64)
        return lengths

    def _sources(self) -> Ints:
        """Returns the offset at which the member `source` begins in each provenance.

        The member `context` comes before `source`, and may itself contain the characters `,"source":{`. So if a row has
        a context, its length says where `source` begins.
        """
        guess = self._offsets + _STAMP_LENGTH + np.sum([self._lengths(name) for name in _STAMP], axis=0)
        if not self._has_contexts:
            return self._find(_SOURCE, guess, self._offsets)
        stamped = self._contexts.is_valid().to_numpy(zero_copy_only=False)
        without = ~stamped
        lengths = pc.binary_length(self._contexts.drop_null()).to_numpy()
        begins = np.empty(self._rows, np.int64)
        begins[without] = self._find(_SOURCE, guess[without], self._offsets[without])
        begins[stamped] = self._find(_CONTEXT, guess[stamped], self._offsets[stamped]) + len(_CONTEXT) + lengths
        return begins

    def _find(self, mark: bytes, guess: Ints, starts: Ints) -> Ints:
        """Returns the offset of the first `mark` at or after each start.

        The offset in `guess` is tried first. If the mark is not there, the text is searched. A mark contains unescaped
        quotes, so it is never found inside a JSON string.
        """
        offsets: Ints = guess.astype(np.int64)
        texts = windows(self._buffer, len(mark))
        wrong = np.flatnonzero(texts[np.clip(offsets, 0, len(texts) - 1)] != np.void(mark))
        offsets[wrong] = [self._data.find(mark, start) for start in starts[wrong].tolist()]
        return offsets

    def _shared(self, starts: Ints, ends: Ints) -> tuple[Ints, list[Source]]:
        """Takes the slice of each row from its offset in `starts` to its offset in `ends`, and finds equal slices.

        Numbers the distinct slices. Returns the number of each row's slice; and a list that has, at each number, the
        source of a row with this slice.
        """
        slices = (starts.astype(np.int32), (ends - starts).astype(np.int32))
        distinct = splice(self._buffer, self._rows, [slices]).dictionary_encode()
        codes: Ints = distinct.indices.to_numpy().astype(np.int64)
        _, rows = np.unique(codes, return_index=True)
        return codes, [json_codec.decode_provenance(self._texts[row].as_py()).source for row in rows.tolist()]

    def segments(self, pool: Pool) -> list[Segment]:
        """Returns the segments of the Avro record `changelog.Provenance` of each row."""
        segments: list[Segment] = []
        for name in _STAMP:
            segments += self._strings(pool, name)
        if self._has_contexts:
            distinct = self._contexts.dictionary_encode(null_encoding="encode")
            contexts = [optional_text(text) for text in distinct.dictionary.to_pylist()]
            segments.append(_coded(pool, contexts, distinct.indices.to_numpy()))
        no_context = b"" if self._has_contexts else NULL  # The null becomes part of the opening, which saves a segment.
        segments.append(_coded(pool, [no_context + opening(source) for source in self._first], self._before))
        segments += self._strings(pool, "position") + self._strings(pool, "transaction")
        segments.append(long_segment(pool, self._batch.column("committed_at").cast(pa.int64()).to_numpy()))
        segments.append(_coded(pool, [closing(source) for source in self.sources], self.codes))
        return segments

    def _strings(self, pool: Pool, name: str) -> list[Segment]:
        offsets, data = raw(self._batch.column(name))
        starts = (offsets[:-1] + pool.add(data)).astype(np.int32)
        lengths = np.diff(offsets)
        return [long_segment(pool, lengths), (starts, lengths.astype(np.int32))]


def _coded(pool: Pool, texts: Sequence[bytes], codes: Ints) -> Segment:
    """Returns a segment that holds one of `texts` in each row; `codes` has its index in `texts`."""
    starts = [pool.add(text) for text in texts]
    if len(texts) == 1:
        return starts[0], len(texts[0])
    return np.array(starts, np.int32)[codes], np.array([len(text) for text in texts], np.int32)[codes]


def _pieces(pool: Pool, rows: int, segments: Sequence[Segment]) -> list[bytes]:
    """Joins the segments of each row, and returns the bytes of each row."""
    offsets, data = gather(pool.buffer(), rows, segments)
    whole = data.to_pybytes()
    ends = offsets[:: len(segments)].tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
