"""The values of a whole batch as Avro, column by column: the same bytes as `AvroCodec`, without an object a value.

Sources write the states of an entity compactly, with the columns in the order of its shape. So the place of each value
follows from where the quotes stand: all rows are walked at once, a column at a time, and each column's Avro is rendered
for all rows and spliced. What is not so (a member in another place, an unknown one) goes through `AvroCodec`, row by
row; a value that its column's shortcut does not know (an infinite date, an escape) alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from envelope.codec import json_codec
from envelope.codec.avro_codec import PRESENT, AvroCodec, closing, encoded, opening
from envelope.codec.avro_values import NULL, Encode, long
from envelope.model import Source
from envelope.splice import INLINE, Bytes, Offsets, Pool, Segment, gather, splice
from schemas.avro import Column, has_outside
from schemas.types import Array, Decimal, Map, Primitive, Struct

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Unsigned = npt.NDArray[np.uint8]

FEW_ROWS: Final = 24
"""Fewer rows are encoded faster one by one."""

NBYTES_MAX: Final = 64 << 20
"""Batches above are cut in two, so that no buffer comes near the 2 GiB that its offsets can count."""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BRACKETS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_STRUCTURAL = np.zeros(256, bool)
_STRUCTURAL[[_QUOTE, *_BRACKETS]] = True
_DEPTHS = np.zeros(256, np.int8)
_DEPTHS[list(_BRACKETS)] = list(_BRACKETS.values())

# What stands behind the texts, for values that a cast must be given where there are none.
_BLANKS = b"0", b"1970-01-01T00:00:00.000000Z", b"00:00:00"
_ZERO, _MOMENT, _MIDNIGHT = 0, len(_BLANKS[0]), len(_BLANKS[0]) + len(_BLANKS[1])

_POSITION = b'"position":"'
_SOURCE = b',"source":{'
_AFTER_POSITION = len('","transaction":"')
_AFTER_TRANSACTION = len('","committedAt":"') + len("2026-11-21T03:10:02.886044Z")
_POSITION_LENGTH = 35


class ColumnarEncoder:
    """Encodes batches (`envelope.batch.SCHEMA`) of one entity under the schema of `codec`; `header` begins each value."""

    def __init__(self, codec: AvroCodec, header: bytes) -> None:
        self._codec, self._header = codec, header
        self._walk = [_Step.of(column) for column in codec.columns]
        self._nested = any(_is_nested(column) for column in codec.columns)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """One value a row. Raises what `AvroCodec.value` raises."""
        rows = batch.num_rows
        if rows <= FEW_ROWS:
            return [self._plain(batch, row) for row in range(rows)]
        if batch.nbytes > NBYTES_MAX:
            return [*self.encode(batch.slice(0, rows // 2)), *self.encode(batch.slice(rows // 2))]
        provenance = _Provenance(batch)
        pool = Pool(b"")
        segments: list[Segment] = [(pool.add(self._header), len(self._header)), *provenance.segments(pool)]
        good = np.ones(rows, bool)
        for name, unavailable in (
            ("current", [source.unavailable for source in provenance.sources]),
            ("original", [source.unavailable_original for source in provenance.sources]),
        ):
            segment, fine = self._side(pool, batch.column(name), unavailable, provenance.codes)
            segments.append(segment)
            good &= fine
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

    def _side(
        self, pool: Pool, texts: pa.StringArray, unavailable: Sequence[Sequence[str]], codes: Ints
    ) -> tuple[Segment, Mask]:
        """One state of every row with its branch, and which rows have it right."""
        there = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        good = np.ones(len(texts), bool)
        starts = np.full(len(texts), pool.add(NULL), np.int32)
        lengths = np.ones(len(texts), np.int32)
        if not len(there):
            return (starts, lengths), good
        if len(there) < len(texts):
            texts, codes = texts.take(pa.array(there)), codes[there]
        scan = _Scan(texts, nested=self._nested)
        tokens = [scan.step(step) for step in self._walk]
        fine = scan.done()
        for step, token in zip(self._walk, tokens, strict=True):
            if not token.present.all():
                known = np.array([step.name in names for names in unavailable])
                fine &= token.present | known[codes]
            if not step.nullable:
                fine &= ~token.null
        kept = np.flatnonzero(fine)
        good[there] = fine
        if len(kept):
            inner = Pool(scan.data)
            parts: list[Segment] = [(inner.add(PRESENT), len(PRESENT))]
            for step, encode, token in zip(self._walk, self._codec.encoders, tokens, strict=True):
                parts += step.render(_Values(inner, scan, token if len(kept) == len(fine) else token.take(kept), step, encode))
            offsets, data = gather(inner.buffer(), len(kept), parts)
            ends = offsets[:: len(parts)]
            base = pool.add(data.to_pybytes())
            starts[there[kept]] = ends[:-1] + base
            lengths[there[kept]] = np.diff(ends)
        return (starts, lengths), good


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """Where one column's JSON tokens stand; a null one, or one that is not present, may stand anywhere."""

    starts: Ints
    ends: Ints
    present: Mask
    null: Mask
    quoted: Mask

    def take(self, rows: Ints) -> "_Tokens":
        return _Tokens(
            starts=self.starts[rows],
            ends=self.ends[rows],
            present=self.present[rows],
            null=self.null[rows],
            quoted=self.quoted[rows],
        )


class _Scan:
    """A walk over JSON objects, a member at a time in all of them."""

    def __init__(self, texts: pa.StringArray, *, nested: bool) -> None:
        _, offsets_buffer, data = texts.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        self.data = data.slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes() + b"".join(_BLANKS)
        self.blanks = len(self.data) - sum(map(len, _BLANKS))
        self.buffer: Bytes = np.frombuffer(self.data + bytes(INLINE), np.uint8)
        self._ends = offsets[1:] - offsets[0]
        self.backslashes = np.flatnonzero(self.buffer == _BACKSLASH)
        quotes = self._quotes(nested=nested)
        bounds = np.searchsorted(quotes, np.append(0, self._ends))
        self._at, self._last = bounds[:-1].copy(), bounds[1:]
        self._quotes_at = np.append(quotes, np.full(4, self.blanks))
        self._sound = np.ones(len(texts), bool)

    def _quotes(self, *, nested: bool) -> Ints:
        """The quotes around names and values of the objects' own members."""
        text = self.buffer[: self.blanks]
        if not nested:
            return self._unescaped(np.flatnonzero(text == _QUOTE))
        places = np.flatnonzero(_STRUCTURAL[text])
        quotes = text[places] == _QUOTE
        if len(self.backslashes):
            kept = np.ones(len(places), bool)
            kept[quotes] = ~self._escaped(places[quotes])
            places, quotes = places[kept], quotes[kept]
        inside = np.cumsum(quotes) % 2 == 1
        depths = np.cumsum(np.where(inside, 0, _DEPTHS[text[places]]), dtype=np.int64)
        found: Ints = places[quotes & (depths == 1)]
        return found

    def _unescaped(self, quotes: Ints) -> Ints:
        return quotes[~self._escaped(quotes)] if len(self.backslashes) else quotes

    def _escaped(self, quotes: Ints) -> Mask:
        """The quotes after an odd number of backslashes."""
        odd = np.zeros(len(quotes), bool)
        behind = quotes - 1
        open_ = np.flatnonzero(self.buffer[behind] == _BACKSLASH)
        while len(open_):
            odd[open_] = ~odd[open_]
            behind[open_] -= 1
            open_ = open_[self.buffer[behind[open_]] == _BACKSLASH]
        return odd

    def step(self, step: "_Step") -> _Tokens:
        """The tokens of the next member, which is of this column where it is present."""
        at, quotes, buffer = self._at, self._quotes_at, self.buffer
        before, after = quotes[at], quotes[at + 1]
        label = step.label
        present = (at < self._last) & (after - before == len(label) - 2)
        labels: npt.NDArray[np.void] = np.ndarray(
            (len(buffer) - len(label) + 1,), f"V{len(label)}", buffer=buffer, strides=(1,)
        )
        present &= labels[np.minimum(before, len(labels) - 1)] == np.void(label)
        starts = np.where(present, after + 2, self.blanks)
        first = buffer[starts]
        quoted = present & (first == _QUOTE)
        following = at + 2 * present + 2 * quoted
        row_end = self._ends - 1
        next_ = np.where(following < self._last, quotes[following] - 1, row_end)
        ends = np.where(quoted, quotes[at + 3] + 1, next_)
        null = ~present | (first == ord("n"))
        self._sound &= ~present | ((ends == next_) & (first > ord(" ")) & (buffer[ends - 1] > ord(" ")))
        self._at = following
        return _Tokens(starts=starts, ends=ends, present=present, null=null, quoted=quoted)

    def done(self) -> Mask:
        """The objects that had no other member, and no blank around one."""
        return self._sound & (self._at == self._last)


class _Values:
    """One column of the rows that are rendered."""

    def __init__(self, pool: Pool, scan: _Scan, tokens: _Tokens, step: "_Step", encode: Encode) -> None:
        self.pool, self.scan, self.tokens, self.step, self._encode = pool, scan, tokens, step, encode
        self.rows = len(tokens.starts)
        self.some = ~tokens.null

    def texts(self, begin: Ints, end: Ints, usual: Mask, blank: int, length: int) -> pa.StringArray:
        """The usual texts; in place of the others, the blank that stands behind the texts."""
        starts = np.where(usual, begin, self.scan.blanks + blank).astype(np.int32)
        return splice(self.scan.buffer, self.rows, [(starts, np.where(usual, end - begin, length).astype(np.int32))])

    def longs(self, values: Ints) -> tuple[Unsigned, Offsets]:
        """The branch and a long, a row each, and how many bytes of it count."""
        lead = len(self.step.lead)
        zigzag = ((values << 1) ^ (values >> 63)).astype(np.uint64)
        width = max(1, (int(zigzag.max()).bit_length() + 6) // 7)
        matrix = np.empty((self.rows, lead + width), np.uint8)
        lengths = np.full(self.rows, lead + 1, np.int32)
        for place in range(width):
            left = zigzag >> np.uint64(7 * place)
            more = left > 0x7F
            matrix[:, lead + place] = (left & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
            lengths += more
        return matrix, lengths

    def finish(self, matrix: Unsigned, lengths: Offsets, usual: Mask, *more: Segment) -> list[Segment]:
        """Each row's bytes, and more behind them; null is null, and what is not usual is encoded one by one."""
        lead = self.step.lead
        if lead:
            matrix[:, 0] = lead[0]
            matrix[~self.some, 0] = NULL[0]
        lengths = np.where(self.some, lengths, len(NULL)).astype(np.int32)
        starts = (np.arange(self.rows) * matrix.shape[1] + self.pool.add(matrix.tobytes())).astype(np.int32)
        odd = np.flatnonzero(self.some & ~usual)
        for row, token in zip(odd.tolist(), self._odd(odd), strict=True):
            starts[row], lengths[row] = self.pool.add(token), len(token)
        return [(starts, lengths), *more]

    def _odd(self, rows: Ints) -> list[bytes]:
        starts, ends, data = self.tokens.starts[rows].tolist(), self.tokens.ends[rows].tolist(), self.scan.data
        return [
            encoded(self._encode, self.step.name, data[start:end]) for start, end in zip(starts, ends, strict=True)
        ]

    def one_by_one(self) -> list[Segment]:
        """All of them without a shortcut."""
        matrix = np.zeros((self.rows, 1), np.uint8)
        return self.finish(matrix, np.ones(self.rows, np.int32), np.zeros(self.rows, bool))


def _strings(values: _Values) -> list[Segment]:
    tokens = values.tokens
    usual = values.some & tokens.quoted
    backslashes = values.scan.backslashes
    if len(backslashes):
        usual &= np.searchsorted(backslashes, tokens.starts) == np.searchsorted(backslashes, tokens.ends)
    return _counted(values, tokens.starts + 1, tokens.ends - 1, usual)


def _uuids(values: _Values) -> list[Segment]:
    return values.one_by_one()


def _jsons(values: _Values) -> list[Segment]:
    return _counted(values, values.tokens.starts, values.tokens.ends, values.some)


def _counted(values: _Values, starts: Ints, ends: Ints, usual: Mask) -> list[Segment]:
    lengths = np.where(usual, ends - starts, 0)
    matrix, sizes = values.longs(lengths)
    return values.finish(matrix, sizes, usual, (starts.astype(np.int32), lengths.astype(np.int32)))


def _integers(type_: pa.DataType) -> Callable[[_Values], list[Segment]]:
    def render(values: _Values) -> list[Segment]:
        tokens = values.tokens
        usual = values.some & ~tokens.quoted
        found = _cast(values.texts(tokens.starts, tokens.ends, usual, _ZERO, 1), type_)
        if found is None:
            return values.one_by_one()
        numbers = found.to_numpy().astype(np.int64)
        usual &= (numbers != 0) | (tokens.ends - tokens.starts == 1)
        return values.finish(*values.longs(numbers), usual)

    return render


def _floats(type_: pa.DataType) -> Callable[[_Values], list[Segment]]:
    def render(values: _Values) -> list[Segment]:
        tokens = values.tokens
        usual = values.some & ~tokens.quoted
        found = _cast(values.texts(tokens.starts, tokens.ends, usual, _ZERO, 1), type_)
        if found is None:
            return values.one_by_one()
        lead = len(values.step.lead)
        numbers = found.to_numpy()
        usual &= np.isfinite(numbers)
        matrix = np.empty((values.rows, lead + numbers.itemsize), np.uint8)
        matrix[:, lead:] = numbers.view(np.uint8).reshape(values.rows, -1)
        return values.finish(matrix, np.full(values.rows, matrix.shape[1], np.int32), usual)

    return render


def _booleans(values: _Values) -> list[Segment]:
    tokens, lead = values.tokens, len(values.step.lead)
    first, length = values.scan.buffer[tokens.starts], tokens.ends - tokens.starts
    truth = (first == ord("t")) & (length == len("true"))
    usual = values.some & (truth | (first == ord("f")) & (length == len("false")))
    matrix = np.empty((values.rows, lead + 1), np.uint8)
    matrix[:, lead] = truth
    return values.finish(matrix, np.full(values.rows, lead + 1, np.int32), usual)


def _moments(
    type_: pa.DataType, blank: int, form: str, *, longer: int = 0
) -> Callable[[_Values], list[Segment]]:
    """Dates and times of the very form of `form`, with up to `longer` more bytes; others one by one."""
    marks = [(place, ord(mark)) for place, mark in enumerate(form) if not mark.isdigit()]

    def render(values: _Values) -> list[Segment]:
        tokens, buffer = values.tokens, values.scan.buffer
        starts, ends = tokens.starts + 1, tokens.ends - 1
        extra = ends - starts - len(form)
        usual = values.some & tokens.quoted & (extra >= 0) & (extra <= longer)
        for place, mark in marks:
            usual &= buffer[np.minimum(starts + place, len(buffer) - 1)] == mark
        if longer:
            usual &= (extra == 0) | (buffer[ends - 1] != ord("0"))
        found = _cast(values.texts(starts, ends, usual, blank, len(form)), type_)
        if found is None:
            return values.one_by_one()
        numbers = found.cast(pa.int32() if type_ == pa.date32() else pa.int64()).to_numpy().astype(np.int64)
        return values.finish(*values.longs(numbers), usual)

    return render


def _decimals(type_: Decimal) -> Callable[[_Values], list[Segment]]:
    point = int(type_.scale > 0)

    def render(values: _Values) -> list[Segment]:
        tokens, buffer = values.tokens, values.scan.buffer
        starts, ends = tokens.starts + 1, tokens.ends - 1
        minus = (buffer[starts] == ord("-")).astype(np.int64)
        whole = ends - starts - type_.scale - point
        usual = values.some & tokens.quoted & (whole > minus) & (ends - starts - point - minus <= type_.precision)
        if point:
            usual &= buffer[np.where(usual, ends - type_.scale - 1, 0)] == ord(".")
        usual &= (whole - minus == 1) | (buffer[np.minimum(starts + minus, len(buffer) - 1)] != ord("0"))
        blank = values.scan.blanks + _ZERO
        texts = splice(
            buffer,
            values.rows,
            [
                (np.where(usual, starts, blank).astype(np.int32), np.where(usual, whole, 1).astype(np.int32)),
                (
                    np.where(usual, ends - type_.scale, blank).astype(np.int32),
                    np.where(usual, type_.scale, 0).astype(np.int32),
                ),
            ],
        )
        found = _cast(texts, pa.int64())
        if found is None:
            return values.one_by_one()
        numbers = found.to_numpy()
        usual &= (numbers != 0) | (minus == 0)
        return values.finish(*_decimal_bytes(values, numbers), usual)

    return render


def _decimal_bytes(values: _Values, numbers: Ints) -> tuple[Unsigned, Offsets]:
    """Branch, length and the fewest bytes of two's complement, a row each."""
    lead = len(values.step.lead)
    magnitude = np.where(numbers < 0, ~numbers, numbers)
    sizes = np.ones(values.rows, np.int64)
    for size in range(1, 8):
        sizes += magnitude >> (8 * size - 1) > 0
    all_ = numbers.astype(">i8").view(np.uint8).reshape(values.rows, 8)
    width = int(sizes.max())
    matrix = np.empty((values.rows, lead + 1 + width), np.uint8)
    matrix[:, lead] = sizes * 2
    places = np.minimum(8 - sizes[:, None] + np.arange(width), 7)
    matrix[:, lead + 1 :] = np.take_along_axis(all_, places, 1)
    return matrix, (lead + 1 + sizes).astype(np.int32)


def _cast(texts: pa.StringArray, type_: pa.DataType) -> pa.Array | None:
    """None when one of the texts is not of the type."""
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        return None


_SHORTCUTS: Final = {
    Primitive.BOOLEAN: _booleans,
    Primitive.INT: _integers(pa.int32()),
    Primitive.LONG: _integers(pa.int64()),
    Primitive.FLOAT: _floats(pa.float32()),
    Primitive.DOUBLE: _floats(pa.float64()),
    Primitive.STRING: _strings,
    Primitive.BYTES: _Values.one_by_one,
    Primitive.UUID: _uuids,
    Primitive.DATE: _moments(pa.date32(), _MOMENT, "0000-00-00"),
    Primitive.TIME: _moments(pa.time64("us"), _MIDNIGHT, "00:00:00", longer=7),
    Primitive.TIMESTAMP: _moments(pa.timestamp("us"), _MOMENT, "0000-00-00T00:00:00.000000"),
    Primitive.TIMESTAMP_TZ: _moments(pa.timestamp("us", "UTC"), _MOMENT, "0000-00-00T00:00:00.000000Z"),
    Primitive.JSON: _jsons,
}

_DIGITS_OF_A_LONG = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One column: how its member begins, `"name":`, the branch of its values, and its shortcut."""

    name: str
    label: bytes
    lead: bytes
    nullable: bool
    render: Callable[[_Values], list[Segment]]

    @classmethod
    def of(cls, column: Column) -> "_Step":
        """The step of a column."""
        return cls(
            name=column.name,
            label=msgspec.json.encode(column.name) + b":",
            lead=long(int(column.nullable)) if column.nullable or has_outside(column.type) else b"",
            nullable=column.nullable,
            render=_shortcut(column),
        )


def _shortcut(column: Column) -> Callable[[_Values], list[Segment]]:
    match column.type:
        case Primitive():
            return _SHORTCUTS[column.type]
        case Decimal(precision=precision) if precision <= _DIGITS_OF_A_LONG:
            return _decimals(column.type)
    return _Values.one_by_one


def _is_nested(column: Column) -> bool:
    return column.type is Primitive.JSON or isinstance(column.type, Array | Map | Struct)


class _Provenance:
    """The provenance of each row: strings and numbers of its own, between parts that few sources share.

    `sources` has one source for each such part, `codes` say which one is a row's.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._rows = batch.num_rows
        texts = batch.column("provenance")
        self._before, first = self._shared(texts, self._slices(texts, _SOURCE, _POSITION))
        self.codes, self.sources = self._shared(texts, self._tails(texts))
        self._first = first

    def _slices(self, texts: pa.StringArray, begin: bytes, end: bytes) -> tuple[Ints, Ints]:
        offsets = self._offsets(texts)
        starts = offsets[:-1] + pc.find_substring(texts, begin.decode()).to_numpy()
        return starts, offsets[:-1] + pc.find_substring(texts, end.decode()).to_numpy()

    def _tails(self, texts: pa.StringArray) -> tuple[Ints, Ints]:
        offsets = self._offsets(texts)
        position = offsets[:-1] + pc.find_substring(texts, _POSITION.decode()).to_numpy() + len(_POSITION)
        transactions = pc.binary_length(self._batch.column("transaction")).to_numpy()
        return position + _POSITION_LENGTH + _AFTER_POSITION + transactions + _AFTER_TRANSACTION, offsets[1:]

    def _offsets(self, texts: pa.StringArray) -> Ints:
        found: Ints = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
        return found

    def _shared(self, texts: pa.StringArray, slices: tuple[Ints, Ints]) -> tuple[Ints, list[Source]]:
        """For each row the number of its slice among the different ones, and a source that has each."""
        starts, ends = slices
        data = np.frombuffer(texts.buffers()[2].to_pybytes() + bytes(INLINE), np.uint8)
        parts = splice(data, self._rows, [(starts.astype(np.int32), (ends - starts).astype(np.int32))])
        found = parts.dictionary_encode()
        codes: Ints = found.indices.to_numpy().astype(np.int64)
        _, rows = np.unique(codes, return_index=True)
        return codes, [json_codec.decode_provenance(texts[row].as_py()).source for row in rows.tolist()]

    def segments(self, pool: Pool) -> list[Segment]:
        """The record `changelog.Provenance` of each row."""
        found: list[Segment] = []
        for name in ("api_version", "service_name", "identifier"):
            found += self._strings(pool, name)
        found.append(_coded(pool, [opening(source) for source in self._first], self._before))
        found += self._strings(pool, "position") + self._strings(pool, "transaction")
        found.append(self._committed_at(pool))
        found.append(_coded(pool, [closing(source) for source in self.sources], self.codes))
        return found

    def _strings(self, pool: Pool, name: str) -> list[Segment]:
        texts = self._batch.column(name)
        offsets = self._offsets(texts)
        base = pool.add(texts.buffers()[2].to_pybytes()) if texts.buffers()[2] is not None else 0
        lengths = np.diff(offsets)
        different, codes = np.unique(lengths, return_inverse=True)
        return [
            _coded(pool, [long(length) for length in different.tolist()], codes),
            ((offsets[:-1] + base).astype(np.int32), lengths.astype(np.int32)),
        ]

    def _committed_at(self, pool: Pool) -> Segment:
        moments = self._batch.column("committed_at").cast(pa.int64()).to_numpy()
        different, codes = np.unique(moments, return_inverse=True)
        return _coded(pool, [long(moment) for moment in different.tolist()], codes)


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
    return [whole[start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]
