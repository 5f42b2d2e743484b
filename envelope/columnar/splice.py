"""Builds columns of text from slices of one buffer, without a Python object for each value.

A text consists of segments. Each segment is a slice of the buffer, which differs from row to row or is the same in all
rows. Arrow's binary views are such slices already, so one cast in compiled code does the copying.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]

INLINE = 12
"""How many bytes a binary view holds inline (Arrow columnar format, *Variable-size Binary View*)."""

_VIEW_WORDS = 4
_VIEW = np.dtype([("length", "<i4"), ("data", f"V{INLINE}")])


class Pool:
    """A buffer that grows: a first block, and texts added after it, each known by its offset in the whole buffer."""

    def __init__(self, first: bytes | bytearray) -> None:
        self._parts: list[bytes | bytearray] = [first]
        self._length = len(first)

    def add(self, text: bytes) -> int:
        """Adds `text` and returns its offset in the buffer."""
        start = self._length
        self._parts.append(text)
        self._length += len(text)
        return start

    def buffer(self) -> Bytes:
        """The whole buffer, with the padding that `gather` requires."""
        return np.frombuffer(b"".join([*self._parts, bytes(INLINE)]), np.uint8)


Segment = tuple[Offsets | int, Offsets | int]
"""The start and the length of one slice in every row; an int applies to all rows."""


def gather(buffer: Bytes, rows: int, segments: Sequence[Segment]) -> tuple[Offsets, pa.Buffer]:
    """Copies the slices, row by row, one after another. Returns where each begins and the last ends, and the bytes.

    `buffer` ends in `INLINE` bytes of padding; slices and result have to stay below 2 GiB.
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
    """Joins the segments of each row to one text (UTF-8). Needs at least one row; limits are those of `gather`."""
    offsets, data = gather(buffer, rows, segments)
    ends = np.ascontiguousarray(offsets[:: len(segments)])
    return pa.Array.from_buffers(pa.utf8(), rows, [None, pa.py_buffer(ends), data])
