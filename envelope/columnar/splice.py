"""Builds columns of text from slices of one buffer, without a Python object for each value.

The text of a row consists of slices of the buffer, joined. A *segment* says for each row which slice comes next: a
different slice for each row, or the same one for all. Arrow can represent these slices as an array of binary views.
When this array is cast to plain binary, Arrow's compiled code copies all slices.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]

INLINE = 12
"""The most bytes that a binary view holds itself. A view of more bytes refers to a buffer that holds them (Arrow
columnar format, *Variable-size Binary View Layout*)."""

_VIEW_WORDS = 4
_VIEW = np.dtype([("length", "<i4"), ("data", f"V{INLINE}")])


class Pool:
    """A buffer that grows: it begins with `first`, and texts are added at its end."""

    def __init__(self, first: bytes | bytearray) -> None:
        self._parts: list[bytes | bytearray] = [first]
        self._length = len(first)

    @property
    def size(self) -> int:
        """The number of bytes in the buffer."""
        return self._length

    def add(self, text: bytes) -> int:
        """Adds `text` and returns its offset in the buffer."""
        start = self._length
        self._parts.append(text)
        self._length += len(text)
        return start

    def data(self) -> bytes:
        """Returns the whole buffer, with the padding that `gather` requires."""
        return b"".join([*self._parts, bytes(INLINE)])

    def buffer(self) -> Bytes:
        """Returns the whole buffer as an array, with the same padding."""
        return np.frombuffer(self.data(), np.uint8)


Segment = tuple[Offsets | int, Offsets | int]
"""The starts and the lengths of a segment's slices: an array with one number for each row, or an int for all rows."""


def gather(buffer: Bytes, rows: int, segments: Sequence[Segment]) -> tuple[Offsets, pa.Buffer]:
    """Copies the slices one after another, row by row.

    Returns offsets and bytes. The bytes are the copied slices. The offsets say where each slice begins in these bytes,
    and where the last one ends. `buffer` must end in `INLINE` bytes of padding. The buffer and the copied bytes must
    each be smaller than 2 GiB.
    """
    count = rows * len(segments)
    words = np.empty((rows, len(segments), _VIEW_WORDS), np.int32)
    views = words.reshape(rows, -1).view(_VIEW)
    windows: npt.NDArray[np.void] = np.ndarray((len(buffer) - INLINE + 1,), f"V{INLINE}", buffer=buffer, strides=(1,))
    for number, (starts, lengths) in enumerate(segments):
        views["length"][:, number] = lengths
        views["data"][:, number] = windows[starts]
        long = np.flatnonzero(words[:, number, 0] > INLINE)
        if len(long):
            words[long, number, 2] = 0
            words[long, number, 3] = starts if isinstance(starts, int) else starts[long]
    flat = pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(words), pa.py_buffer(buffer)]).cast(
        pa.binary()
    )
    _, offsets, data = flat.buffers()
    return np.frombuffer(offsets, np.int32, count + 1), data


def splice(buffer: Bytes, rows: int, segments: Sequence[Segment]) -> pa.StringArray:
    """Joins the segments of each row to one text (UTF-8). Needs at least one row. The limits of `gather` apply."""
    offsets, data = gather(buffer, rows, segments)
    ends = np.ascontiguousarray(offsets[:: len(segments)])
    return pa.Array.from_buffers(pa.utf8(), rows, [None, pa.py_buffer(ends), data])
