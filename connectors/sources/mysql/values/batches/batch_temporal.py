"""Converts columns of times to text (*prints* them), many values at once. `temporal` describes the layouts.

Impossible values stay *unprinted* here. They are printed one by one later (see `PrintedColumn`).
"""

import numpy as np

from changelog.connectors.sources.mysql.values.batches.digits import POINT, digits_of
from changelog.connectors.sources.mysql.values.batches.raw_columns import (
    Ints,
    Mask,
    PrintColumn,
    PrintedColumn,
    RawColumn,
)
from changelog.envelope.columnar.splice import Bytes

_DATE_BYTES, _CLOCK_BYTES = 10, 8
_DAY_S = 86_400
_HOURS_MAX = 838
_ZONE = np.frombuffer(b"+00", np.uint8)
_MINUS = ord("-")


def time(digits: int) -> PrintColumn:
    """Prints TIME with `digits` fractional digits."""
    size = (digits + 1) // 2
    width = 2 + _CLOCK_BYTES + _fraction_bytes(digits)  # the first two: a sign, and a third digit of the hours

    def printed(raw: RawColumn) -> PrintedColumn:
        number = raw.unsigned(3 + size, big_endian=True).astype(np.int64) - (0x800000 << 8 * size)
        negative, absolute = number < 0, np.abs(number)
        clock, fraction = absolute >> 8 * size, absolute & (1 << 8 * size) - 1
        hours = clock >> 12
        matrix = np.empty((raw.count, width), np.uint8)
        unprintable = _put_clock(matrix, 2, hours, clock >> 6 & 63, clock & 63)
        matrix[:, 1:4] = digits_of(hours, 3)
        unprintable |= _put_fraction(matrix, 2 + _CLOCK_BYTES, fraction, digits) | (hours > _HOURS_MAX)
        begins = 1 + (hours < 100) - negative
        starts = np.arange(raw.count) * width + begins
        matrix.reshape(-1)[starts[negative]] = _MINUS
        return PrintedColumn(data=matrix.tobytes(), starts=starts, lengths=width - begins, unprintable=unprintable)

    return printed


def datetime_(digits: int) -> PrintColumn:
    """Prints DATETIME with `digits` fractional digits."""
    size = (digits + 1) // 2
    width = _DATE_BYTES + 1 + _CLOCK_BYTES + _fraction_bytes(digits)

    def printed(raw: RawColumn) -> PrintedColumn:
        number = raw.unsigned(5, big_endian=True).astype(np.int64) - 0x8000000000
        year, month = np.divmod(number >> 22, 13)
        hours = number >> 12 & 31
        matrix = np.empty((raw.count, width), np.uint8)
        unprintable = (number < 0) | (year > 9999) | (hours > 23)
        _put_date(matrix, year, month, number >> 17 & 31)
        unprintable |= _put_clock(matrix, _DATE_BYTES + 1, hours, number >> 6 & 63, number & 63)
        unprintable |= _put_fraction(matrix, _DATE_BYTES + 1 + _CLOCK_BYTES, _fraction(raw, 5, size), digits)
        return _rows(matrix, unprintable)

    return printed


def timestamp(digits: int) -> PrintColumn:
    """Prints TIMESTAMP with `digits` fractional digits. The zero date stays unprinted."""
    size = (digits + 1) // 2
    end = _DATE_BYTES + 1 + _CLOCK_BYTES + _fraction_bytes(digits)

    def printed(raw: RawColumn) -> PrintedColumn:
        seconds = raw.unsigned(4, big_endian=True).astype(np.int64)
        days, clock = np.divmod(seconds, _DAY_S)
        matrix = np.empty((raw.count, end + len(_ZONE)), np.uint8)
        _put_date(matrix, *_civil(days))
        unprintable = (seconds == 0) | _put_clock(matrix, _DATE_BYTES + 1, clock // 3600, clock // 60 % 60, clock % 60)
        unprintable |= _put_fraction(matrix, _DATE_BYTES + 1 + _CLOCK_BYTES, _fraction(raw, 4, size), digits)
        matrix[:, end:] = _ZONE
        return _rows(matrix, unprintable)

    return printed


def _civil(days: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns the year, the month and the day of the dates that are `days` days after 1970-01-01."""
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    year, month = np.divmod(months.astype(np.int64), 12)
    return year + 1970, month + 1, (dates - months).astype(np.int64) + 1


def _put_date(matrix: Bytes, year: Ints, month: Ints, day: Ints) -> None:
    matrix[:, 0:4] = digits_of(np.abs(year), 4)
    matrix[:, 4] = matrix[:, 7] = _MINUS
    matrix[:, 5:7] = digits_of(month, 2)
    matrix[:, 8:10] = digits_of(day, 2)
    if matrix.shape[1] > _DATE_BYTES:
        matrix[:, 10] = ord(" ")


def _put_clock(matrix: Bytes, at: int, hours: Ints, minutes: Ints, seconds: Ints) -> Mask:
    """Writes the time of day. Returns a mask of the values whose minutes or seconds are above 59."""
    for number, part in enumerate((hours, minutes, seconds)):
        matrix[:, at + 3 * number : at + 3 * number + 2] = digits_of(part, 2)
    matrix[:, at + 2] = matrix[:, at + 5] = ord(":")
    mask: Mask = (minutes > 59) | (seconds > 59)
    return mask


def _put_fraction(matrix: Bytes, at: int, fraction: Ints, digits: int) -> Mask:
    """Writes the point and the digits of the fraction. Returns a mask of the fractions that are too large."""
    stored_digits = (digits + 1) // 2 * 2
    if digits:
        matrix[:, at] = POINT
        matrix[:, at + 1 : at + 1 + digits] = digits_of(fraction // 10 ** (stored_digits - digits), digits)
    mask: Mask = fraction >= 10**stored_digits
    return mask


def _fraction(raw: RawColumn, at: int, size: int) -> Ints:
    return raw.unsigned(size, at=at, big_endian=True).astype(np.int64) if size else np.zeros(raw.count, np.int64)


def _fraction_bytes(digits: int) -> int:
    return 1 + digits if digits else 0


def _rows(matrix: Bytes, unprintable: Mask) -> PrintedColumn:
    """Returns the texts that fill the rows of a matrix."""
    count, width = matrix.shape
    return PrintedColumn(
        data=matrix.tobytes(),
        starts=np.arange(count) * width,
        lengths=np.full(count, width, np.int64),
        unprintable=unprintable,
    )
