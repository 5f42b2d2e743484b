"""Encodes the values of a column in Avro, for all rows at once.

`ObjectScan` locates the JSON tokens of the values. This module turns the tokens into segments of Avro: slices that
`changelog.envelope.columnar.splice` joins. Most types have a *shortcut*, a function that encodes values of the usual
form. Values of another form (an infinite date, a text with an escape) are encoded one by one, by `avro_values`. A
value whose Avro type is a union begins with its *branch*, the index of its type in the union.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec.avro_codec import encoded
from changelog.envelope.codec.avro_values import DAY_US, NULL, Encode, long
from changelog.envelope.columnar.avro_scan import Ints, Mask, ObjectScan, Tokens
from changelog.envelope.columnar.splice import Offsets, Pool, Segment, splice
from changelog.schemas.avro import Column, has_outside
from changelog.schemas.types import Decimal, Primitive

Unsigned = npt.NDArray[np.uint8]

_TEXTS = b"0", b"1970-01-01T00:00:00.000000Z", b"00:00:00", b"00000000-0000-0000-0000-000000000000"
_ZERO, _MOMENT, _MIDNIGHT, _UUID = accumulate(map(len, _TEXTS[:-1]), initial=0)

BLANKS: Final = b"".join(_TEXTS)
"""Placeholders, which follow the data of a scan. Arrow parses the texts of all rows at once, and fails if one of them
is not valid. So a row without a value of the usual form gets a placeholder as its text.
"""

_UUID_LENGTH = len(_TEXTS[-1])
_UUID_FORM = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class ColumnValues:
    """The values of one column in all rows. `some` is a mask of the rows whose value is not null."""

    def __init__(self, pool: Pool, scan: ObjectScan, tokens: Tokens, step: "ColumnStep", encode: Encode) -> None:
        self.pool, self.scan, self.tokens, self.step, self._encode = pool, scan, tokens, step, encode
        self.rows = len(tokens.starts)
        self.some = ~tokens.null

    def texts(
        self, begin: Ints, end: Ints, usual: Mask, blank: int, length: int, prefix: tuple[int, int] | None = None
    ) -> pa.StringArray:
        """Returns the text of each row: the bytes from `begin` to `end`, or a placeholder in rows that are not in the
        mask `usual`.

        The placeholder is the `length` bytes of `BLANKS` from the offset `blank` on. `prefix` is the offset and the
        length of another text in `BLANKS`; this text then comes first in every row.
        """
        blanks = self.scan.blanks
        starts = np.where(usual, begin, blanks + blank).astype(np.int32)
        segments: list[Segment] = [(starts, np.where(usual, end - begin, length).astype(np.int32))]
        if prefix is not None:
            segments.insert(0, (blanks + prefix[0], prefix[1]))
        return splice(self.scan.buffer, self.rows, segments)

    def longs(self, values: Ints) -> tuple[Unsigned, Offsets]:
        """Encodes the numbers as longs. Returns a matrix with one row of bytes for each number, and how many bytes of
        each row are used. A row begins with space for the branch, if the type is a union; the long follows.
        """
        return _longs(values, len(self.step.lead))

    def finish(self, matrix: Unsigned, lengths: Offsets, usual: Mask, *more: Segment) -> list[Segment]:
        """Makes a segment from a matrix. The slice for a row is the beginning of this row in the matrix, as long as
        `lengths` says. Returns this segment, followed by `more`.

        Also writes the branches into the matrix. Null values become Avro's null. Values that are not usual are encoded
        one by one.
        """
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
        """Encodes the values in these rows one by one. Columns often repeat values, so each distinct value is encoded
        only once.
        """
        starts, ends, data = self.tokens.starts[rows].tolist(), self.tokens.ends[rows].tolist(), self.scan.data
        tokens = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        encoded_by_token = {token: encoded(self._encode, self.step.name, token) for token in dict.fromkeys(tokens)}
        return [encoded_by_token[token] for token in tokens]

    def one_by_one(self) -> list[Segment]:
        """Encodes all values of the column one by one, without a shortcut."""
        matrix = np.zeros((self.rows, 1), np.uint8)
        return self.finish(matrix, np.ones(self.rows, np.int32), np.zeros(self.rows, bool))


def _strings(values: ColumnValues) -> list[Segment]:
    tokens = values.tokens
    usual = values.some & tokens.quoted
    backslashes = values.scan.backslashes
    if len(backslashes):
        usual &= np.searchsorted(backslashes, tokens.starts) == np.searchsorted(backslashes, tokens.ends)
    return _counted(values, tokens.starts + 1, tokens.ends - 1, usual)


def _uuids(values: ColumnValues) -> list[Segment]:
    """Encodes UUIDs. If a text does not have the form that servers print, all values go to `avro_values`, which refuses
    this text.
    """
    tokens = values.tokens
    starts, ends = tokens.starts + 1, tokens.ends - 1
    usual = values.some & tokens.quoted & (ends - starts == _UUID_LENGTH)
    if not pc.all(pc.match_substring_regex(values.texts(starts, ends, usual, _UUID, _UUID_LENGTH), _UUID_FORM)).as_py():
        return values.one_by_one()
    return _counted(values, starts, ends, usual)


def _jsons(values: ColumnValues) -> list[Segment]:
    return _counted(values, values.tokens.starts, values.tokens.ends, values.some)


def _counted(values: ColumnValues, starts: Ints, ends: Ints, usual: Mask) -> list[Segment]:
    lengths = np.where(usual, ends - starts, 0)
    matrix, sizes = values.longs(lengths)
    return values.finish(matrix, sizes, usual, (starts.astype(np.int32), lengths.astype(np.int32)))


def _integers(type_: pa.DataType) -> Callable[[ColumnValues], list[Segment]]:
    def render(values: ColumnValues) -> list[Segment]:
        tokens = values.tokens
        usual = values.some & ~tokens.quoted
        parsed = _cast(values.texts(tokens.starts, tokens.ends, usual, _ZERO, 1), type_)
        if parsed is None:
            return values.one_by_one()
        numbers = parsed.to_numpy().astype(np.int64)
        usual &= (numbers != 0) | (tokens.ends - tokens.starts == 1)
        return values.finish(*values.longs(numbers), usual)

    return render


def _floats(type_: pa.DataType) -> Callable[[ColumnValues], list[Segment]]:
    def render(values: ColumnValues) -> list[Segment]:
        tokens = values.tokens
        usual = values.some & ~tokens.quoted
        parsed = _cast(values.texts(tokens.starts, tokens.ends, usual, _ZERO, 1), type_)
        if parsed is None:
            return values.one_by_one()
        lead = len(values.step.lead)
        numbers = parsed.to_numpy()
        usual &= np.isfinite(numbers)
        matrix = np.empty((values.rows, lead + numbers.itemsize), np.uint8)
        matrix[:, lead:] = numbers.view(np.uint8).reshape(values.rows, -1)
        return values.finish(matrix, np.full(values.rows, matrix.shape[1], np.int32), usual)

    return render


def _booleans(values: ColumnValues) -> list[Segment]:
    tokens, lead = values.tokens, len(values.step.lead)
    first, length = values.scan.buffer[tokens.starts], tokens.ends - tokens.starts
    truth = (first == ord("t")) & (length == len("true"))
    usual = values.some & (truth | (first == ord("f")) & (length == len("false")))
    matrix = np.empty((values.rows, lead + 1), np.uint8)
    matrix[:, lead] = truth
    return values.finish(matrix, np.full(values.rows, lead + 1, np.int32), usual)


def _moments(
    type_: pa.DataType, blank: int, form: str, first: int, *, longer: int = 0, prefix: tuple[int, int] | None = None
) -> Callable[[ColumnValues], list[Segment]]:
    """Returns the shortcut for dates or times of one form.

    The text of a usual value begins as `form` says, in which 0 stands for any digit. Up to `longer` more bytes may
    follow. Values of another form are encoded one by one, and so are values whose number of days or microseconds is
    below `first`. Arrow parses the texts as `type_`, each with the prefix before it. In rows without a usual value,
    Arrow parses the placeholder at `blank`.
    """
    marks = [(offset, ord(mark)) for offset, mark in enumerate(form) if not mark.isdigit()]

    def render(values: ColumnValues) -> list[Segment]:
        tokens, buffer = values.tokens, values.scan.buffer
        starts, ends = tokens.starts + 1, tokens.ends - 1
        extra = ends - starts - len(form)
        usual = values.some & tokens.quoted & (extra >= 0) & (extra <= longer)
        for offset, mark in marks:
            usual &= buffer[np.minimum(starts + offset, len(buffer) - 1)] == mark
        if longer:
            usual &= (extra == 0) | (buffer[ends - 1] != ord("0"))
        parsed = _cast(values.texts(starts, ends, usual, blank, len(form), prefix), type_)
        if parsed is None:
            return values.one_by_one()
        numbers = parsed.cast(pa.int32() if type_ == pa.date32() else pa.int64()).to_numpy().astype(np.int64)
        usual &= numbers >= first
        return values.finish(*values.longs(numbers), usual)

    return render


def _decimals(type_: Decimal) -> Callable[[ColumnValues], list[Segment]]:
    point = int(type_.scale > 0)

    def render(values: ColumnValues) -> list[Segment]:
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
        parsed = _cast(texts, pa.int64())
        if parsed is None:
            return values.one_by_one()
        numbers = parsed.to_numpy()
        usual &= (numbers != 0) | (minus == 0)
        return values.finish(*_decimal_bytes(values, numbers), usual)

    return render


def _decimal_bytes(values: ColumnValues, numbers: Ints) -> tuple[Unsigned, Offsets]:
    """Encodes the numbers as Avro decimals. Returns a matrix with one row of bytes for each number, and how many bytes
    of each row are used. A row has space for the branch, then the length of the number in bytes, and then the number in
    two's complement, in as few bytes as possible.
    """
    lead = len(values.step.lead)
    magnitude = np.where(numbers < 0, ~numbers, numbers)
    sizes = np.ones(values.rows, np.int64)
    for size in range(1, 8):
        sizes += magnitude >> (8 * size - 1) > 0
    whole = numbers.astype(">i8").view(np.uint8).reshape(values.rows, 8)
    width = int(sizes.max())
    matrix = np.empty((values.rows, lead + 1 + width), np.uint8)
    matrix[:, lead] = sizes * 2
    offsets = np.minimum(8 - sizes[:, None] + np.arange(width), 7)
    matrix[:, lead + 1 :] = np.take_along_axis(whole, offsets, 1)
    return matrix, (lead + 1 + sizes).astype(np.int32)


def _cast(texts: pa.StringArray, type_: pa.DataType) -> pa.Array | None:
    """Casts all texts to the type. Returns None if one of them cannot be cast."""
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        return None


_FIRST_DAY = date.min.toordinal() - date(1970, 1, 1).toordinal()
"""The first day of the year 1, counted from 1970-01-01. The shortcuts do not encode earlier days: MySQL has the year 0,
and Arrow parses it, but our Avro decoder cannot return its days.
"""

_FIRST_US = _FIRST_DAY * DAY_US

_SHORTCUTS: Final = {
    Primitive.BOOLEAN: _booleans,
    Primitive.INT: _integers(pa.int32()),
    Primitive.LONG: _integers(pa.int64()),
    Primitive.FLOAT: _floats(pa.float32()),
    Primitive.DOUBLE: _floats(pa.float64()),
    Primitive.STRING: _strings,
    Primitive.BYTES: ColumnValues.one_by_one,
    Primitive.UUID: _uuids,
    Primitive.DATE: _moments(pa.date32(), _MOMENT, "0000-00-00", _FIRST_DAY),
    Primitive.TIME: _moments(
        pa.timestamp("us"), _MIDNIGHT, "00:00:00", 0, longer=7, prefix=(_MOMENT, len("1970-01-01T"))
    ),
    Primitive.TIMESTAMP: _moments(pa.timestamp("us"), _MOMENT, "0000-00-00T00:00:00.000000", _FIRST_US),
    Primitive.TIMESTAMP_TZ: _moments(pa.timestamp("us", "UTC"), _MOMENT, "0000-00-00T00:00:00.000000Z", _FIRST_US),
    Primitive.JSON: _jsons,
}

_DIGITS_OF_A_LONG = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStep:
    """How one column is encoded.

    `label` is the beginning of the column's member in a JSON object, such as `"name":`. `lead` is the union branch of
    the column's usual values, empty if the Avro type is not a union. `render` encodes the column.
    """

    name: str
    label: bytes
    lead: bytes
    nullable: bool
    render: Callable[[ColumnValues], list[Segment]]

    @classmethod
    def of(cls, column: Column) -> "ColumnStep":
        """Returns the step of a column."""
        return cls(
            name=column.name,
            label=msgspec.json.encode(column.name) + b":",
            lead=long(int(column.nullable)) if column.nullable or has_outside(column.type) else b"",
            nullable=column.nullable,
            render=_shortcut(column),
        )


def _shortcut(column: Column) -> Callable[[ColumnValues], list[Segment]]:
    match column.type:
        case Primitive():
            return _SHORTCUTS[column.type]
        case Decimal(precision=precision) if precision <= _DIGITS_OF_A_LONG:
            return _decimals(column.type)
    return ColumnValues.one_by_one


def _longs(values: Ints, lead: int = 0) -> tuple[Unsigned, Offsets]:
    """Encodes each value as an Avro long (zigzag, 7 bits a byte).

    Returns a matrix with one row of bytes for each value, and how many bytes of each row are used. A row has `lead`
    bytes that the caller fills; the long follows.
    """
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max(1, (int(zigzag.max()).bit_length() + 6) // 7)
    matrix = np.empty((len(values), lead + width), np.uint8)
    lengths = np.full(len(values), lead + 1, np.int32)
    for index in range(width - 1):
        rest = zigzag >> np.uint64(7)
        more = rest > 0
        matrix[:, lead + index] = zigzag.astype(np.uint8) & 0x7F | more.view(np.uint8) << 7
        lengths += more
        zigzag = rest
    matrix[:, lead + width - 1] = zigzag
    return matrix, lengths


def _table(pool: Pool, matrix: Unsigned) -> Offsets:
    """Adds the rows of a matrix to the pool. Returns the offset at which each row begins."""
    rows, width = matrix.shape
    return np.arange(0, rows * width, width, dtype=np.int32) + np.int32(pool.add(matrix.tobytes()))


def long_segment(pool: Pool, values: Ints) -> Segment:
    """Returns a segment that holds, in each row, one Avro long."""
    matrix, lengths = _longs(values)
    return _table(pool, matrix), lengths
