"""A column's values as Avro, for all rows at once: from where their JSON stands to segments to be spliced.

Each type has a shortcut that knows the usual form of its values; one of another form (an infinite date, an escape) is
encoded alone, as `avro_values` has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from envelope.codec.avro_codec import encoded
from envelope.codec.avro_values import NULL, Encode, long
from envelope.columnar.avro_scan import Ints, Mask, Scan, Tokens
from envelope.columnar.splice import Offsets, Pool, Segment, splice
from schemas.avro import Column, has_outside
from schemas.types import Decimal, Primitive

Unsigned = npt.NDArray[np.uint8]

_TEXTS = b"0", b"1970-01-01T00:00:00.000000Z", b"00:00:00", b"00000000-0000-0000-0000-000000000000"
_ZERO, _MOMENT, _MIDNIGHT, _UUID = accumulate(map(len, _TEXTS[:-1]), initial=0)

BLANKS: Final = b"".join(_TEXTS)
"""What is to stand behind the texts of a scan, for values that a cast must be given where there are none."""

_UUID_LENGTH = len(_TEXTS[-1])
_UUID_FORM = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class Values:
    """One column of the rows that are rendered."""

    def __init__(self, pool: Pool, scan: Scan, tokens: Tokens, step: "Step", encode: Encode) -> None:
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


def _strings(values: Values) -> list[Segment]:
    tokens = values.tokens
    usual = values.some & tokens.quoted
    backslashes = values.scan.backslashes
    if len(backslashes):
        usual &= np.searchsorted(backslashes, tokens.starts) == np.searchsorted(backslashes, tokens.ends)
    return _counted(values, tokens.starts + 1, tokens.ends - 1, usual)


def _uuids(values: Values) -> list[Segment]:
    """The server prints them in one way; a text that is no UUID is left to the codec, which refuses it."""
    tokens = values.tokens
    starts, ends = tokens.starts + 1, tokens.ends - 1
    usual = values.some & tokens.quoted & (ends - starts == _UUID_LENGTH)
    if not pc.all(pc.match_substring_regex(values.texts(starts, ends, usual, _UUID, _UUID_LENGTH), _UUID_FORM)).as_py():
        return values.one_by_one()
    return _counted(values, starts, ends, usual)


def _jsons(values: Values) -> list[Segment]:
    return _counted(values, values.tokens.starts, values.tokens.ends, values.some)


def _counted(values: Values, starts: Ints, ends: Ints, usual: Mask) -> list[Segment]:
    lengths = np.where(usual, ends - starts, 0)
    matrix, sizes = values.longs(lengths)
    return values.finish(matrix, sizes, usual, (starts.astype(np.int32), lengths.astype(np.int32)))


def _integers(type_: pa.DataType) -> Callable[[Values], list[Segment]]:
    def render(values: Values) -> list[Segment]:
        tokens = values.tokens
        usual = values.some & ~tokens.quoted
        found = _cast(values.texts(tokens.starts, tokens.ends, usual, _ZERO, 1), type_)
        if found is None:
            return values.one_by_one()
        numbers = found.to_numpy().astype(np.int64)
        usual &= (numbers != 0) | (tokens.ends - tokens.starts == 1)
        return values.finish(*values.longs(numbers), usual)

    return render


def _floats(type_: pa.DataType) -> Callable[[Values], list[Segment]]:
    def render(values: Values) -> list[Segment]:
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


def _booleans(values: Values) -> list[Segment]:
    tokens, lead = values.tokens, len(values.step.lead)
    first, length = values.scan.buffer[tokens.starts], tokens.ends - tokens.starts
    truth = (first == ord("t")) & (length == len("true"))
    usual = values.some & (truth | (first == ord("f")) & (length == len("false")))
    matrix = np.empty((values.rows, lead + 1), np.uint8)
    matrix[:, lead] = truth
    return values.finish(matrix, np.full(values.rows, lead + 1, np.int32), usual)


def _moments(
    type_: pa.DataType, blank: int, form: str, *, longer: int = 0, prefix: tuple[int, int] | None = None
) -> Callable[[Values], list[Segment]]:
    """Dates and times of the very form of `form`, with up to `longer` more bytes; others one by one."""
    marks = [(place, ord(mark)) for place, mark in enumerate(form) if not mark.isdigit()]

    def render(values: Values) -> list[Segment]:
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


def _decimals(type_: Decimal) -> Callable[[Values], list[Segment]]:
    point = int(type_.scale > 0)

    def render(values: Values) -> list[Segment]:
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


def _decimal_bytes(values: Values, numbers: Ints) -> tuple[Unsigned, Offsets]:
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
    Primitive.BYTES: Values.one_by_one,
    Primitive.UUID: _uuids,
    Primitive.DATE: _moments(pa.date32(), _MOMENT, "0000-00-00"),
    Primitive.TIME: _moments(pa.timestamp("us"), _MIDNIGHT, "00:00:00", longer=7, prefix=(_MOMENT, len("1970-01-01T"))),
    Primitive.TIMESTAMP: _moments(pa.timestamp("us"), _MOMENT, "0000-00-00T00:00:00.000000"),
    Primitive.TIMESTAMP_TZ: _moments(pa.timestamp("us", "UTC"), _MOMENT, "0000-00-00T00:00:00.000000Z"),
    Primitive.JSON: _jsons,
}

_DIGITS_OF_A_LONG = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One column: how its member begins, `"name":`, the branch of its values, and its shortcut."""

    name: str
    label: bytes
    lead: bytes
    nullable: bool
    render: Callable[[Values], list[Segment]]

    @classmethod
    def of(cls, column: Column) -> "Step":
        """The step of a column."""
        return cls(
            name=column.name,
            label=msgspec.json.encode(column.name) + b":",
            lead=long(int(column.nullable)) if column.nullable or has_outside(column.type) else b"",
            nullable=column.nullable,
            render=_shortcut(column),
        )


def _shortcut(column: Column) -> Callable[[Values], list[Segment]]:
    match column.type:
        case Primitive():
            return _SHORTCUTS[column.type]
        case Decimal(precision=precision) if precision <= _DIGITS_OF_A_LONG:
            return _decimals(column.type)
    return Values.one_by_one


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


def long_segment(pool: Pool, values: Ints) -> Segment:
    """A long a row."""
    matrix, lengths = _longs(values)
    return _table(pool, matrix), lengths
