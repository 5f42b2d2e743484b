"""Converts columns of numbers to text (*prints* them), many values at once. `numbers` describes the layouts.

Some values stay *unprinted* here. They are printed one by one later (see `PrintedColumn`).
"""

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.values.batches.digits import POINT, digits_of
from changelog.connectors.sources.mysql.values.batches.raw_columns import (
    PrintColumn,
    PrintedColumn,
    RawColumn,
    arrow_texts,
)
from changelog.connectors.sources.mysql.values.numbers import Printer

_GROUP_DIGITS = 9
_SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # entry n: the bytes that n digits need
_MINUS, _ZERO = b"-0"
_FIXED = {8: (1e-4, 1e10), 4: (1e-4, 1e6)}
"""For each size of a float in bytes, the limits between which Arrow prints floats as we do: without an exponent."""


def integer(size: int, *, unsigned: bool) -> PrintColumn:
    """Prints integers of `size` bytes."""
    return lambda raw: arrow_texts(raw.unsigned(size) if unsigned else raw.signed(size))


def floating(size: int) -> PrintColumn:
    """Prints FLOAT (4 bytes) or DOUBLE (8 bytes). `print_floats` says which values stay unprinted."""
    return lambda raw: print_floats(raw.matrix(size).view(f"<f{size}").reshape(-1))


def print_floats(values: npt.NDArray[np.floating]) -> PrintedColumn:
    """Prints floats of 4 or 8 bytes: the zero without a sign, and the numbers within the limits in `_FIXED`.

    All other values stay unprinted: the zero with a minus sign, numbers that need an exponent, and values that are not
    finite numbers.
    """
    low, high = _FIXED[values.itemsize]
    zero = (values == 0) & ~np.signbit(values)
    absolute = np.abs(values)
    return arrow_texts(values, unprintable=~zero & ~((absolute >= low) & (absolute < high)))


def distinct(size: int, printer: Printer) -> PrintColumn:
    """Prints columns whose values have 1 to 8 bytes and often repeat: calls `printer` once for each different value."""

    def printed(raw: RawColumn) -> PrintedColumn:
        numbers, inverse = np.unique(raw.unsigned(size), return_inverse=True)
        texts = [printer(number.to_bytes(size, "little")) for number in numbers.tolist()]
        lengths = np.array([len(text) for text in texts], np.int64)
        starts = np.cumsum(lengths) - lengths
        return PrintedColumn(data=b"".join(texts), starts=starts[inverse], lengths=lengths[inverse])

    return printed


def decimal(precision: int, scale: int) -> PrintColumn:
    """Prints DECIMAL. Impossible values stay unprinted.

    All digits of a value are written into a row of a matrix, with a place for the sign before them. The text of the
    value leaves out the zeros at the beginning of the row.
    """
    whole = precision - scale
    whole_groups = [whole % _GROUP_DIGITS] + [_GROUP_DIGITS] * (whole // _GROUP_DIGITS)
    part_groups = [_GROUP_DIGITS] * (scale // _GROUP_DIGITS) + [scale % _GROUP_DIGITS]
    first_whole = 1 if whole else 2  # a number without digits before the point is printed with a zero there
    width = first_whole + precision + bool(scale)

    def printed(raw: RawColumn) -> PrintedColumn:
        octets = raw.matrix(sum(_SIZES[digits] for digits in (*whole_groups, *part_groups)))
        negative = octets[:, 0] < 0x80
        octets[:, 0] ^= 0x80
        octets[negative] ^= 0xFF
        matrix = np.full((raw.count, width), _ZERO, np.uint8)
        unprintable = np.zeros(raw.count, bool)
        at, source = first_whole, 0
        for number, digits in enumerate((*whole_groups, *part_groups)):
            if scale and number == len(whole_groups):
                matrix[:, at] = POINT
                at += 1
            end = source + _SIZES[digits]
            value = _big_endian(octets[:, source:end])
            unprintable |= value >= 10**digits
            matrix[:, at : at + digits] = digits_of(value, digits)
            at, source = at + digits, end
        significant = matrix[:, 1 : first_whole + max(whole, 0)] != _ZERO
        significant[:, -1] = True
        begins = 1 + significant.argmax(axis=1) - negative
        starts = np.arange(raw.count) * width + begins
        matrix.reshape(-1)[starts[negative]] = _MINUS
        return PrintedColumn(data=matrix.tobytes(), starts=starts, lengths=width - begins, unprintable=unprintable)

    return printed


def _big_endian(
    octets: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    value = np.zeros(len(octets), np.int64)
    for place in range(octets.shape[1]):
        value = value << 8 | octets[:, place]
    return value
