"""The values of a whole batch as Avro, column by column: the same bytes as `AvroCodec`, without an object a value.

Sources write the states of an entity compactly, with the columns in the order of its shape. So the place of each value
follows from where the quotes stand: all rows are walked at once, a column at a time, and each column's Avro is rendered
for all rows and spliced. What is not so (a member in another place, an unknown one) goes through `AvroCodec`, row by
row; a value that its column's shortcut does not know (an infinite date, an escape) alone.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from envelope.codec import json_codec
from envelope.codec.avro_codec import PRESENT, AvroCodec, closing, opening, optional_text
from envelope.codec.avro_values import NULL
from envelope.columnar.avro_scan import Ints, Mask, Scan, Tokens, raw, windows
from envelope.columnar.avro_shortcuts import BLANKS, Step, Values, long_segment
from envelope.columnar.splice import INLINE, Offsets, Pool, Segment, gather, splice
from envelope.model import Source
from schemas.avro import Column
from schemas.types import Array, Map, Primitive, Struct

FEW_ROWS: Final = 32
"""Fewer rows are encoded faster one by one."""

ROWS_MAX: Final = 4096
"""Larger batches are cut in two: their buffers would not stay in the processor's cache."""

NBYTES_MAX: Final = 64 << 20
"""As for `ROWS_MAX`: no buffer comes near the 2 GiB that its offsets can count."""

_POSITION = b'"position":"'
_SOURCE = b',"source":{'
_AFTER_POSITION = len('","transaction":"')
_AFTER_TRANSACTION = len('","committedAt":"') + len("2026-11-21T03:10:02.886044Z")
_POSITION_LENGTH = len("00000000/0000000000000000/00000000")
_STAMP = ("api_version", "service_name", "identifier")
_STAMP_LENGTH = len('{"apiVersion":"","serviceName":"","identifier":""')
_CONTEXT = b',"context":'


class ColumnarEncoder:
    """Encodes batches (`envelope.columnar.batch.SCHEMA`) of one entity as `codec` does, each value behind `header`."""

    def __init__(self, codec: AvroCodec, header: bytes) -> None:
        self._codec, self._header = codec, header
        self._walk = [Step.of(column) for column in codec.columns]
        self._nested = any(_is_nested(column) for column in codec.columns)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """One value a row. Raises what `AvroCodec.value` raises."""
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
        """Both states of each row, each behind its branch, and which rows have them right."""
        rows = batch.num_rows
        texts = pa.concat_arrays([batch.column("current"), batch.column("original")])
        there = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        starts = np.full(2 * rows, pool.add(NULL), np.int32)
        lengths = np.full(2 * rows, len(NULL), np.int32)
        good = np.ones(2 * rows, bool)
        if len(there):
            scan = Scan(texts if len(there) == 2 * rows else texts.drop_null(), nested=self._nested, behind=BLANKS)
            tokens = [scan.step(step.label) for step in self._walk]
            good[there] = fine = self._fine(scan.done(), tokens, provenance, there)
            kept = np.flatnonzero(fine)
            if len(kept):
                if len(kept) < len(fine):
                    tokens = [token.take(kept) for token in tokens]
                offsets, data = self._render(scan, tokens, len(kept))
                starts[there[kept]] = offsets[:-1] + pool.add(data)
                lengths[there[kept]] = np.diff(offsets)
        sides = (starts[:rows], lengths[:rows]), (starts[rows:], lengths[rows:])
        return sides, good[:rows] & good[rows:]

    def _fine(self, fine: Mask, tokens: Sequence[Tokens], provenance: "_Provenance", there: Ints) -> Mask:
        """The states whose missing columns are unavailable, and whose keys are not null."""
        codes, sources = provenance.codes, provenance.sources
        for step, token in zip(self._walk, tokens, strict=True):
            if not step.nullable:
                fine &= ~token.null
            if not token.present.all():
                current = np.array([step.name in source.unavailable for source in sources])
                original = np.array([step.name in source.unavailable_original for source in sources])
                fine &= token.present | np.append(current[codes], original[codes])[there]
        return fine

    def _render(self, scan: Scan, tokens: Sequence[Tokens], count: int) -> tuple[Offsets, bytes]:
        """The states that the tokens are of, one behind the other, and where each begins and ends."""
        pool = Pool(scan.data)
        segments: list[Segment] = [(pool.add(PRESENT), len(PRESENT))]
        for step, encode, token in zip(self._walk, self._codec.encoders, tokens, strict=True):
            segments += step.render(Values(pool, scan, token, step, encode))
        offsets, data = gather(pool.buffer(), count, segments)
        return offsets[:: len(segments)], data.to_pybytes()


def _is_nested(column: Column) -> bool:
    return column.type is Primitive.JSON or isinstance(column.type, Array | Map | Struct)


class _Provenance:
    """The provenance of each row: strings and numbers of its own, between parts that few sources share.

    `sources` has one source for each such part, `codes` say which one is a row's.
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
        found: Ints = pc.binary_length(self._batch.column(name)).to_numpy().astype(np.int64)
        return found

    def _sources(self) -> Ints:
        """Where the source begins in each text: behind a context, which may itself hold what looks like a source."""
        guess = self._offsets + _STAMP_LENGTH + np.sum([self._lengths(name) for name in _STAMP], axis=0)
        if not self._has_contexts:
            return self._find(_SOURCE, guess, self._offsets)
        there = self._contexts.is_valid().to_numpy(zero_copy_only=False)
        without = ~there
        lengths = pc.binary_length(self._contexts.drop_null()).to_numpy()
        places = np.empty(self._rows, np.int64)
        places[without] = self._find(_SOURCE, guess[without], self._offsets[without])
        places[there] = self._find(_CONTEXT, guess[there], self._offsets[there]) + len(_CONTEXT) + lengths
        return places

    def _find(self, mark: bytes, guess: Ints, starts: Ints) -> Ints:
        """Where `mark` stands first after each start, perhaps at `guess`; no string in JSON can hold its quotes."""
        places: Ints = guess.astype(np.int64)
        seen = windows(self._buffer, len(mark))
        wrong = np.flatnonzero(seen[np.clip(places, 0, len(seen) - 1)] != np.void(mark))
        places[wrong] = [self._data.find(mark, start) for start in starts[wrong].tolist()]
        return places

    def _shared(self, starts: Ints, ends: Ints) -> tuple[Ints, list[Source]]:
        """For each row the number of its slice among the different ones, and a source that has each."""
        slices = (starts.astype(np.int32), (ends - starts).astype(np.int32))
        found = splice(self._buffer, self._rows, [slices]).dictionary_encode()
        codes: Ints = found.indices.to_numpy().astype(np.int64)
        _, rows = np.unique(codes, return_index=True)
        return codes, [json_codec.decode_provenance(self._texts[row].as_py()).source for row in rows.tolist()]

    def segments(self, pool: Pool) -> list[Segment]:
        """The record `changelog.Provenance` of each row."""
        found: list[Segment] = []
        for name in _STAMP:
            found += self._strings(pool, name)
        if self._has_contexts:
            distinct = self._contexts.dictionary_encode(null_encoding="encode")
            contexts = [optional_text(text) for text in distinct.dictionary.to_pylist()]
            found.append(_coded(pool, contexts, distinct.indices.to_numpy()))
        none = b"" if self._has_contexts else NULL  # one segment less
        found.append(_coded(pool, [none + opening(source) for source in self._first], self._before))
        found += self._strings(pool, "position") + self._strings(pool, "transaction")
        found.append(long_segment(pool, self._batch.column("committed_at").cast(pa.int64()).to_numpy()))
        found.append(_coded(pool, [closing(source) for source in self.sources], self.codes))
        return found

    def _strings(self, pool: Pool, name: str) -> list[Segment]:
        offsets, data = raw(self._batch.column(name))
        starts = (offsets[:-1] + pool.add(data)).astype(np.int32)
        lengths = np.diff(offsets)
        return [long_segment(pool, lengths), (starts, lengths.astype(np.int32))]


def _coded(pool: Pool, texts: Sequence[bytes], codes: Ints) -> Segment:
    """For each row the text that its code numbers."""
    starts = [pool.add(text) for text in texts]
    if len(texts) == 1:
        return starts[0], len(texts[0])
    return np.array(starts, np.int32)[codes], np.array([len(text) for text in texts], np.int32)[codes]


def _pieces(pool: Pool, rows: int, segments: Sequence[Segment]) -> list[bytes]:
    """What the segments of each row make together."""
    offsets, data = gather(pool.buffer(), rows, segments)
    whole = data.to_pybytes()
    ends = offsets[:: len(segments)].tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
