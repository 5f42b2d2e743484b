"""Reads the headers of all events of a block at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.events.header import (
    ARTIFICIAL_FLAG,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    WHOLE_CHECKSUM,
)

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

EVENT_BYTES_MAX = 1 << 16
"""The size of the largest event that can be part of a transaction of the usual form."""

WINDOW_BYTES = 96
"""How many bytes `Headers.window` returns of each event."""

_HEADER = np.dtype(
    [("timestamp_s", "<u4"), ("type", "u1"), ("server_id", "<u4"), ("size", "<u4"), ("end", "<u4"), ("flags", "<u2")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """The headers of a block's events, with one element for each event.

    - `types`: the type of the event; 0 if its header, its checksum or its size is unusual, or if its offset is before
      that of an earlier event, because the file has passed 4 GiB, or is another one.
    - `sizes`, `timestamps_s`, `server_ids`: as in `Header`. `ends` is its `end_log_pos`.
    """

    types: bytes
    sizes: Ints
    ends: Ints
    timestamps_s: Ints
    server_ids: Ints
    octets: Octets
    begins: Ints

    @classmethod
    def of(cls, packets: Sequence[bytes], *, has_checksums: bool) -> "Headers":
        """Reads the headers of these events."""
        sizes = np.fromiter(map(len, packets), np.int64, len(packets))
        octets = np.frombuffer(b"".join([*packets, bytes(WINDOW_BYTES)]), np.uint8)
        begins = np.cumsum(sizes) - sizes
        fields = _window(octets, begins, HEADER_BYTES).view(_HEADER)[:, 0]
        ends = fields["end"].astype(np.int64)
        is_usual = (fields["size"] == sizes) & (fields["flags"] & ARTIFICIAL_FLAG == 0) & ~_is_before(ends)
        is_usual &= (sizes > HEADER_BYTES + CHECKSUM_BYTES) & (sizes <= EVENT_BYTES_MAX)
        if has_checksums:
            is_usual &= np.fromiter(map(crc32, packets), np.int64, len(packets)) == WHOLE_CHECKSUM
        return cls(
            types=np.where(is_usual, fields["type"], 0).astype(np.uint8).tobytes(),
            sizes=sizes,
            ends=ends,
            timestamps_s=fields["timestamp_s"].astype(np.int64),
            server_ids=fields["server_id"].astype(np.int64),
            octets=octets,
            begins=begins,
        )

    def window(self, events: Ints) -> Octets:
        """Returns the first bytes of these events, as a matrix. After a short event, the bytes of the next follow."""
        return _window(self.octets, self.begins[events], WINDOW_BYTES)


def _window(octets: Octets, begins: Ints, size: int) -> Octets:
    windows = np.lib.stride_tricks.sliding_window_view(octets, size)
    return np.ascontiguousarray(windows[begins])


def _is_before(ends: Ints) -> npt.NDArray[np.bool_]:
    """Returns a mask of the events whose offset is before that of the last event that has one."""
    last = np.maximum.accumulate(np.where(ends > 0, np.arange(len(ends)), 0))
    before = ends[np.concatenate([last[:1], last[:-1]])]
    mask: npt.NDArray[np.bool_] = (ends > 0) & (ends < before)
    return mask
