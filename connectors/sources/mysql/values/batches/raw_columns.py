"""Holds the values of one column in many rows: as the binary log stores them, and as text (*printed*).

The modules `batch_*` print such columns without a Python object for each value. Their texts must be the same as those
of the module `printed`, which prints values one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.envelope.columnar.splice import Bytes

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PADDING_BYTES = 16
"""`RawColumn.octets` must have this many bytes after the last value, because reading a value can go beyond the value's
end.
"""

_WORD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RawColumn:
    """The stored values of a column: value n has `lengths[n]` bytes from `starts[n]` on. None of them is null."""

    octets: Bytes
    starts: Ints
    lengths: Ints

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.starts)

    def unsigned(self, size: int, *, at: int = 0, big_endian: bool = False) -> npt.NDArray[np.uint64]:
        """Reads an unsigned number of 1 to 8 bytes from each value, `at` bytes after the beginning of the value."""
        words: npt.NDArray[np.uint64] = np.ndarray(
            (len(self.octets) - _WORD_BYTES + 1,), ">u8" if big_endian else "<u8", buffer=self.octets, strides=(1,)
        )
        unused = np.uint64(8 * (_WORD_BYTES - size))
        numbers = words[self.starts + at].astype(np.uint64)
        return numbers >> unused if big_endian else numbers << unused >> unused

    def signed(self, size: int) -> Ints:
        """Reads a number of 1 to 8 bytes in two's complement, little-endian, from each value."""
        unused = np.uint64(8 * (_WORD_BYTES - size))
        return (self.unsigned(size) << unused).view(np.int64) >> np.int64(unused)

    def matrix(self, size: int) -> Bytes:
        """Returns the first `size` bytes of each value as the rows of a new matrix."""
        shape = (len(self.octets) - size + 1, size)
        windows: Bytes = np.ndarray(shape, np.uint8, buffer=self.octets, strides=(1, 1))
        return windows[self.starts]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedColumn:
    """The texts of a column: value n has `lengths[n]` bytes of `data` from `starts[n]` on.

    If `data` is None, the texts are slices of `RawColumn.octets`. `unprintable` is a mask of the values that must be
    printed one by one, or None if there are no such values. The starts and lengths of these values mean nothing.
    """

    data: bytes | None
    starts: Ints
    lengths: Ints
    unprintable: Mask | None = None


PrintColumn = Callable[[RawColumn], PrintedColumn]
"""A function that prints the values of a column. See `PrintedColumn` for the values that it cannot print."""


def arrow_texts(numbers: npt.NDArray[np.generic], unprintable: Mask | None = None) -> PrintedColumn:
    """Returns the texts that Arrow makes of numbers. `unprintable` is passed on to the result."""
    _, offsets, data = pa.array(numbers).cast(pa.utf8()).buffers()
    bounds = np.frombuffer(offsets, np.int32, len(numbers) + 1).astype(np.int64)
    return PrintedColumn(data=data.to_pybytes(), starts=bounds[:-1], lengths=np.diff(bounds), unprintable=unprintable)
