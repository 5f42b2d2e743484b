"""Columns of text made from slices of one buffer, without a Python object a value.

A text is made of segments, each a slice of the buffer that begins and ends elsewhere in every row, or is the
same in all. Arrow's binary views are such slices already, so the copying is one cast in compiled code.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]

INLINE = 12
"""Bytes that a binary view holds in itself (Arrow columnar format, *Variable-size Binary View*)."""

_VIEW_WORDS = 4
_VIEW = np.dtype([("length", "<i4"), ("data", f"V{INLINE}")])


class Pool:
    """Bytes added behind a first block, each known by where it will stand in the whole buffer."""

    def __init__(self, first: bytes | bytearray) -> None:
        self._parts: list[bytes | bytearray] = [first]
        self._length = len(first)

    def add(self, text: bytes) -> int:
        """Where `text` starts in the buffer."""
        start = self._length
        self._parts.append(text)
        self._length += len(text)
        return start

    def buffer(self) -> Bytes:
        """All of it, with the padding that `gather` asks for."""
        return np.frombuffer(b"".join([*self._parts, bytes(INLINE)]), np.uint8)


Segment = tuple[Offsets | int, Offsets | int]
"""Starts and lengths of one slice in every row; an int is the same in all rows."""


def gather(buffer: Bytes, rows: int, segments: Sequence[Segment]) -> tuple[Offsets, pa.Buffer]:
    """The slices, row by row, one behind the other: their offsets (one more than slices) in the bytes given with them.

    `buffer` has `INLINE` bytes of padding at its end; slices and result stay below 2 GiB.
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
    """The texts (UTF-8) of `rows` rows, at least one, that the segments make together; bounds as for `gather`."""
    offsets, data = gather(buffer, rows, segments)
    ends = np.ascontiguousarray(offsets[:: len(segments)])
    return pa.Array.from_buffers(pa.utf8(), rows, [None, pa.py_buffer(ends), data])
