"""Columns of text made from slices of one buffer, without a Python object a value.

A column is described by two matrices, `starts` and `lengths`, of shape (rows, segments): its i-th
text is the concatenation of the slices of row i. Arrow's binary views are such slices already, so
the copying is done by one cast in compiled code.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]

INLINE = 12
"""Bytes that a binary view holds in itself (Arrow columnar format, *Variable-size Binary View*)."""

_VIEW = np.dtype([("length", "<i4"), ("data", f"V{INLINE}")])


class Pool:
    """Bytes added behind a first block, each known by where it will stand in the whole buffer."""

    def __init__(self, first: bytes) -> None:
        self._parts = [first]
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


def gather(buffer: Bytes, starts: Offsets, lengths: Offsets) -> tuple[Offsets, pa.Buffer]:
    """The slices one behind the other: their n + 1 offsets in the bytes given with them.

    `buffer` has `INLINE` bytes of padding at its end; slices and result stay below 2 GiB.
    """
    count = len(starts)
    views = np.empty(count, _VIEW)
    views["length"] = lengths
    windows: npt.NDArray[np.void] = np.ndarray((len(buffer) - INLINE + 1,), f"V{INLINE}", buffer=buffer, strides=(1,))
    views["data"] = windows[starts]
    words = views.view("<i4").reshape(-1, 4)
    long = np.flatnonzero(words[:, 0] > INLINE)
    words[long, 2] = 0
    words[long, 3] = starts[long]
    flat = pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views), pa.py_buffer(buffer)]).cast(
        pa.binary()
    )
    _, offsets, data = flat.buffers()
    return np.frombuffer(offsets, np.int32, count + 1), data


def splice(buffer: Bytes, starts: Offsets, lengths: Offsets) -> pa.StringArray:
    """The texts (UTF-8) whose slices the matrices name; bounds as for `gather`."""
    rows, segments = starts.shape
    offsets, data = gather(buffer, starts.reshape(-1), lengths.reshape(-1))
    ends = np.ascontiguousarray(offsets[::segments])
    return pa.Array.from_buffers(pa.utf8(), rows, [None, pa.py_buffer(ends), data])
