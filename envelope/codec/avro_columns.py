"""The values of a whole batch as Avro, column by column: the same bytes as `AvroCodec`, without an object a value.

Sources write the states of an entity compactly, with the columns in the order of its shape. So the place of each value
follows from where the quotes stand: all rows are walked at once, a column at a time, and each column's Avro is rendered
for all rows and spliced. What is not so (a member in another place, an unknown one) goes through `AvroCodec`, row by
row; a value that its column's shortcut does not know (an infinite date, an escape) alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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

FEW_ROWS: Final = 32
"""Fewer rows are encoded faster one by one."""

ROWS_MAX: Final = 4096
"""Larger batches are cut in two: their buffers would not stay in the processor's cache."""

NBYTES_MAX: Final = 64 << 20
"""As for `ROWS_MAX`: no buffer comes near the 2 GiB that its offsets can count."""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BRACKETS = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_STRUCTURAL = np.zeros(256, bool)
_STRUCTURAL[[_QUOTE, *_BRACKETS]] = True
_DEPTHS = np.zeros(256, np.int8)
_DEPTHS[list(_BRACKETS)] = list(_BRACKETS.values())

# What stands behind the texts, for values that a cast must be given where there are none.
_BLANKS = b"0", b"1970-01-01T00:00:00.000000Z", b"00:00:00", b"00000000-0000-0000-0000-000000000000"
_ZERO, _MOMENT, _MIDNIGHT, _UUID = accumulate(map(len, _BLANKS[:-1]), initial=0)

_UUID_LENGTH = len(_BLANKS[-1])
_UUID_FORM = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

_POSITION = b'"position":"'
_SOURCE = b',"source":{'
_AFTER_POSITION = len('","transaction":"')
_AFTER_TRANSACTION = len('","committedAt":"') + len("2026-11-21T03:10:02.886044Z")
_POSITION_LENGTH = len("00000000/0000000000000000/00000000")
_STAMP_LENGTH = len('{"apiVersion":"","serviceName":"","identifier":""')


class ColumnarEncoder:
    """Encodes batches (`envelope.batch.SCHEMA`) of one entity as `codec` does, each value behind `header`."""

    def __init__(self, codec: AvroCodec, header: bytes) -> None:
        self._codec, self._header = codec, header
        self._walk = [_Step.of(column) for column in codec.columns]
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
            scan = _Scan(texts if len(there) == 2 * rows else texts.drop_null(), nested=self._nested)
            tokens = [scan.step(step) for step in self._walk]
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

    def _fine(self, fine: Mask, tokens: Sequence["_Tokens"], provenance: "_Provenance", there: Ints) -> Mask:
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

    def _render(self, scan: "_Scan", tokens: Sequence["_Tokens"], count: int) -> tuple[Offsets, bytes]:
        """The states that the tokens are of, one behind the other, and where each begins and ends."""
        pool = Pool(scan.data)
        segments: list[Segment] = [(pool.add(PRESENT), len(PRESENT))]
        for step, encode, token in zip(self._walk, self._codec.encoders, tokens, strict=True):
            segments += step.render(_Values(pool, scan, token, step, encode))
        offsets, data = gather(pool.buffer(), count, segments)
        return offsets[:: len(segments)], data.to_pybytes()


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
        offsets, data = _raw(texts)
        self.blanks = len(data)
        self.data = b"".join((data, *_BLANKS, bytes(INLINE)))
        self.buffer: Bytes = np.frombuffer(self.data, np.uint8)
        self._ends = offsets[1:]
        self.backslashes = np.flatnonzero(self.buffer == _BACKSLASH) if b"\\" in data else np.empty(0, np.int64)
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
        label = step.label
        before = quotes[at]
        windows = _windows(buffer, len(label))
        present = (at < self._last) & (windows[np.minimum(before, len(windows) - 1)] == np.void(label))
        starts = before + len(label)
        if not present.all():
            starts[~present] = self.blanks
        first = buffer[starts]
        quoted = first == _QUOTE
        following = at + 2 * present + 2 * quoted
        ends = np.where(following < self._last, quotes[following], self._ends) - 1
        self._sound &= ~present | (first > ord(" ")) & np.where(
            quoted, quotes[at + 3] + 1 == ends, buffer[ends - 1] > ord(" ")
        )
        self._at = following
        null = ~present | (first == ord("n"))
        return _Tokens(starts=starts, ends=ends, present=present, null=null, quoted=quoted)

    def done(self) -> Mask:
        """The objects that had no other member, and no blank around one."""
        done: Mask = self._sound & (self._at == self._last)
        return done


class _Values:
    """One column of the rows that are rendered."""

    def __init__(self, pool: Pool, scan: _Scan, tokens: _Tokens, step: "_Step", encode: Encode) -> None:
        self.pool, self.scan, self.tokens, self.step, self._encode = pool, scan, tokens, step, encode
        self.rows = len(tokens.starts)
        self.some = ~tokens.null

    def texts(
        self, begin: Ints, end: Ints, usual: Mask, blank: int, length: int, prefix: tuple[int, int] | None = None
    ) -> pa.StringArray:
        """The usual texts, and for the others a blank of those that stand behind the texts; before each the prefix."""
        blanks = self.scan.blanks
        starts = np.where(usual, begin, blanks + blank).astype(np.int32)
        segments: list[Segment] = [(starts, np.where(usual, end - begin, length).astype(np.int32))]
        if prefix is not None:
            segments.insert(0, (blanks + prefix[0], prefix[1]))
        return splice(self.scan.buffer, self.rows, segments)

    def longs(self, values: Ints) -> tuple[Unsigned, Offsets]:
        """The branch and a long, a row each, and how many bytes of it count."""
        return _longs(values, len(self.step.lead))

    def finish(self, matrix: Unsigned, lengths: Offsets, usual: Mask, *more: Segment) -> list[Segment]:
        """Each row's bytes, and more behind them; null is null, and what is not usual is encoded one by one."""
        lead = self.step.lead
        if lead:
            matrix[:, 0] = lead[0]
            matrix[~self.some, 0] = NULL[0]
        lengths = np.where(self.some, lengths, len(NULL)).astype(np.int32)
        starts = _table(self.pool, matrix)
        odd = np.flatnonzero(self.some & ~usual)
        for row, token in zip(odd.tolist(), self._odd(odd), strict=True):
            starts[row], lengths[row] = self.pool.add(token), len(token)
        return [(starts, lengths), *more]

    def _odd(self, rows: Ints) -> list[bytes]:
        """The Avro of these rows' values; equal ones, as arrays often are, are encoded once."""
        starts, ends, data = self.tokens.starts[rows].tolist(), self.tokens.ends[rows].tolist(), self.scan.data
        tokens = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        known = {token: encoded(self._encode, self.step.name, token) for token in dict.fromkeys(tokens)}
        return [known[token] for token in tokens]

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
    """The server prints them in one way; a text that is no UUID is left to the codec, which refuses it."""
    tokens = values.tokens
    starts, ends = tokens.starts + 1, tokens.ends - 1
    usual = values.some & tokens.quoted & (ends - starts == _UUID_LENGTH)
    if not pc.all(pc.match_substring_regex(values.texts(starts, ends, usual, _UUID, _UUID_LENGTH), _UUID_FORM)).as_py():
        return values.one_by_one()
    return _counted(values, starts, ends, usual)


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
    type_: pa.DataType, blank: int, form: str, *, longer: int = 0, prefix: tuple[int, int] | None = None
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
        found = _cast(values.texts(starts, ends, usual, blank, len(form), prefix), type_)
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
    Primitive.TIME: _moments(pa.timestamp("us"), _MIDNIGHT, "00:00:00", longer=7, prefix=(_MOMENT, len("1970-01-01T"))),
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
        self._texts = batch.column("provenance")
        offsets, self._data = _raw(self._texts)
        self._buffer = np.frombuffer(self._data + bytes(INLINE), np.uint8)
        self._offsets = offsets[:-1]
        stamps = [self._lengths(name) for name in ("api_version", "service_name", "identifier")]
        begins = self._find(_SOURCE, _STAMP_LENGTH + np.sum(stamps, axis=0))
        ops = self._lengths("op")
        first = self._data.find(_POSITION, begins[0], offsets[1]) - begins[0] - ops[0]
        positions = self._find(_POSITION, begins - self._offsets + first + ops)
        self._before, self._first = self._shared(begins, positions)
        ends = positions + len(_POSITION) + _POSITION_LENGTH + _AFTER_POSITION + _AFTER_TRANSACTION
        self.codes, self.sources = self._shared(ends + self._lengths("transaction"), offsets[1:])

    def _lengths(self, name: str) -> Ints:
        found: Ints = pc.binary_length(self._batch.column(name)).to_numpy().astype(np.int64)
        return found

    def _find(self, mark: bytes, guess: Ints) -> Ints:
        """Where `mark` stands in each text, perhaps at `guess`; no string in JSON can hold its quotes."""
        places = self._offsets + guess
        windows = _windows(self._buffer, len(mark))
        wrong = np.flatnonzero(windows[np.clip(places, 0, len(windows) - 1)] != np.void(mark))
        if len(wrong):
            found = pc.find_substring(self._texts.take(pa.array(wrong)), mark.decode()).to_numpy()
            places[wrong] = self._offsets[wrong] + found
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
        for name in ("api_version", "service_name", "identifier"):
            found += self._strings(pool, name)
        found.append(_coded(pool, [opening(source) for source in self._first], self._before))
        found += self._strings(pool, "position") + self._strings(pool, "transaction")
        found.append(_long_segment(pool, self._batch.column("committed_at").cast(pa.int64()).to_numpy()))
        found.append(_coded(pool, [closing(source) for source in self.sources], self.codes))
        return found

    def _strings(self, pool: Pool, name: str) -> list[Segment]:
        offsets, data = _raw(self._batch.column(name))
        starts = (offsets[:-1] + pool.add(data)).astype(np.int32)
        lengths = np.diff(offsets)
        return [_long_segment(pool, lengths), (starts, lengths.astype(np.int32))]


def _raw(texts: pa.StringArray) -> tuple[Ints, bytes]:
    """The offsets of the texts, one more than there are, in the bytes given with them."""
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, texts.offset * 4).astype(np.int64)
    if data is None:
        return offsets, b""
    return offsets - offsets[0], data.slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes()


def _windows(buffer: Bytes, length: int) -> npt.NDArray[np.void]:
    """The `length` bytes from each place of the buffer on."""
    return np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer=buffer, strides=(1,))


def _longs(values: Ints, lead: int = 0) -> tuple[Unsigned, Offsets]:
    """A row for each value: `lead` bytes for others to fill, then the long; and how many bytes of a row count."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max(1, (int(zigzag.max()).bit_length() + 6) // 7)
    matrix = np.empty((len(values), lead + width), np.uint8)
    lengths = np.full(len(values), lead + 1, np.int32)
    for place in range(width - 1):
        left = zigzag >> np.uint64(7)
        more = left > 0
        matrix[:, lead + place] = zigzag.astype(np.uint8) & 0x7F | more.view(np.uint8) << 7
        lengths += more
        zigzag = left
    matrix[:, lead + width - 1] = zigzag
    return matrix, lengths


def _table(pool: Pool, matrix: Unsigned) -> Offsets:
    """Where each row of a matrix begins in the buffer."""
    rows, width = matrix.shape
    return np.arange(0, rows * width, width, dtype=np.int32) + np.int32(pool.add(matrix.tobytes()))


def _long_segment(pool: Pool, values: Ints) -> Segment:
    matrix, lengths = _longs(values)
    return _table(pool, matrix), lengths


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
