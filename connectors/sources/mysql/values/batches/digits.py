"""Writes the decimal digits of many numbers at once."""

from typing import Final

import numpy as np
import numpy.typing as npt

from changelog.envelope.columnar.splice import Bytes

POINT: Final = ord(".")

_TABLE_DIGITS = 3
_TABLE: Final[Bytes] = np.array([b"%03d" % number for number in range(10**_TABLE_DIGITS)]).view(np.uint8).reshape(-1, 3)


def digits_of(numbers: npt.NDArray[np.integer], digits: int) -> Bytes:
    """Returns a matrix of ASCII characters: each row has the last `digits` decimal digits of one number.

    No number may be negative.
    """
    rest = numbers.astype(np.int64)
    matrix = np.empty((len(numbers), digits), np.uint8)
    for end in range(digits, 0, -_TABLE_DIGITS):
        begin = max(end - _TABLE_DIGITS, 0)
        rest, last = np.divmod(rest, 10**_TABLE_DIGITS)
        matrix[:, begin:end] = _TABLE[last, _TABLE_DIGITS - end + begin :]
    return matrix
