"""Reads the headers of all events of a block at once."""

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.events.event_block import GAP_BYTES, PADDING_BYTES, EventBlock
from changelog.connectors.sources.mysql.decode.events.header import (
    ARTIFICIAL_FLAG,
    CHECKSUM_BYTES,
    HEADER_BYTES,
    WHOLE_CHECKSUM,
)

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

EVENT_BYTES_MAX = 1 << 16
"""The size of the largest event that can be part of a transaction of the usual form."""

WINDOW_BYTES = 96
"""How many bytes `Headers.window` returns of each event. The last of them may lie after the end of the event."""
assert WINDOW_BYTES < PADDING_BYTES

_RESTART = bytes.fromhex("0080fdfbab")
"""The bytes that are written into the gaps between events. The CRC32 of each event with a right checksum is
`WHOLE_CHECKSUM`. If a CRC32 has this value before a gap, these bytes bring it to 0, the value with which a CRC32
begins. So if all checksums are right, the CRC32 of a whole block is `WHOLE_CHECKSUM`, as for a single event. A wrong
checksum changes it.
"""
assert len(_RESTART) == GAP_BYTES
assert crc32(_RESTART, WHOLE_CHECKSUM) == 0

_HEADER = np.dtype(
    [("timestamp_s", "<u4"), ("type", "u1"), ("server_id", "<u4"), ("size", "<u4"), ("end", "<u4"), ("flags", "<u2")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """The headers of a block's events. Each array except `octets` has one element for each event.

    - `types`: the type of the event; 0 if its header, its checksum or its size is unusual, or if its offset is lower
      than that of an earlier event. (Offsets begin again at 4 GiB, and in another file.)
    - `sizes`, `timestamps_s`, `server_ids`: as in `Header`. `ends`: the `end_log_pos` in the header.
    - `begins`: the offset of the event in `octets`, which holds the whole block.
    """

    types: Octets
    sizes: Ints
    ends: Ints
    timestamps_s: Ints
    server_ids: Ints
    octets: Octets
    begins: Ints

    @classmethod
    def of(cls, events: EventBlock, *, has_checksums: bool) -> "Headers":
        """Reads the headers of these events."""
        data, event_ends = events.joined()
        octets = np.frombuffer(data, np.uint8)
        sizes = np.diff(event_ends, prepend=0) - GAP_BYTES
        begins = event_ends - sizes
        fields = _window(octets, begins, HEADER_BYTES).view(_HEADER)[:, 0]
        ends = fields["end"].astype(np.int64)
        is_usual = (fields["size"] == sizes) & (fields["flags"] & ARTIFICIAL_FLAG == 0) & ~_is_before(ends)
        is_usual &= (sizes > HEADER_BYTES + CHECKSUM_BYTES) & (sizes <= EVENT_BYTES_MAX)
        if has_checksums:
            is_usual &= _is_whole(octets, begins, event_ends)
        return cls(
            types=np.where(is_usual, fields["type"], 0).astype(np.uint8),
            sizes=sizes,
            ends=ends,
            timestamps_s=fields["timestamp_s"].astype(np.int64),
            server_ids=fields["server_id"].astype(np.int64),
            octets=octets,
            begins=begins,
        )

    def window(self, events: Ints) -> Octets:
        """Returns the first `WINDOW_BYTES` bytes of each of these events, as the rows of a matrix.

        If an event is shorter, its row ends with bytes that come after the event.
        """
        return _window(self.octets, self.begins[events], WINDOW_BYTES)


def _window(octets: Octets, begins: Ints, size: int) -> Octets:
    windows = np.lib.stride_tricks.sliding_window_view(octets, size)
    return np.ascontiguousarray(windows[begins])


def _is_whole(octets: Octets, begins: Ints, ends: Ints) -> Mask:
    """Returns a mask of the events whose checksums are right. Changes the gaps between the events."""
    for number, byte in enumerate(_RESTART):
        octets[begins - GAP_BYTES + number] = byte
    whole = memoryview(octets.data)
    if crc32(whole[begins[0] : ends[-1]]) == WHOLE_CHECKSUM:
        return np.ones(len(begins), bool)
    checksums = [crc32(whole[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    mask: Mask = np.array(checksums) == WHOLE_CHECKSUM
    return mask


def _is_before(ends: Ints) -> Mask:
    """Returns a mask of the events whose `end_log_pos` is lower than that of the nearest earlier event that has one. An
    `end_log_pos` of 0 counts as none; such an event is not in the mask.
    """
    last = np.maximum.accumulate(np.where(ends > 0, np.arange(len(ends)), 0))
    before = ends[np.concatenate([last[:1], last[:-1]])]
    mask: Mask = (ends > 0) & (ends < before)
    return mask
