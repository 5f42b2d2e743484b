"""Joins frames of the stream into one buffer, finds the frames with rows, and decides how many frames to decode now."""

import struct
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from changelog.envelope.columnar.splice import INLINE
from changelog.envelope.errors import ChangelogError, Kind

HEADER = 25
"""Bytes before the payload of a frame: `w`, start, end, clock (protocol page *XLogData*)."""

_START = struct.Struct("!xQ")
_IS_ROW = np.zeros(256, bool)
_IS_ROW[list(b"IUDT")] = True

Ints = npt.NDArray[np.int64]


class Frames:
    """Consecutive frames. The first `cut` of them can be decoded now; the others wait for more frames.

    The payload of frame i is `data[starts[i]:ends[i]]`; `data` ends with `INLINE` bytes of padding. `rows` holds the
    numbers of the frames with a row, and `controls` those of all other frames; both only have frames before the cut.
    `is_open` says that the first frame is inside a transaction.

    The cut is after the last commit, or after the last frame if only messages outside of transactions follow the last
    commit. If `rows_max` rows or `bytes_max` bytes follow the last commit, the cut is near the end, inside a
    transaction. Raises ChangelogError (MALFORMED) if a frame has no payload.
    """

    def __init__(self, frames: Sequence[bytes], *, rows_max: int, bytes_max: int, is_open: bool) -> None:
        lengths = np.fromiter(map(len, frames), np.int64, len(frames))
        if (lengths <= HEADER).any():
            raise ChangelogError(Kind.MALFORMED, f"the stream sent a frame of {lengths.min()} bytes")
        self.data = b"".join([*frames, bytes(INLINE)])
        self.ends: Ints = np.cumsum(lengths)
        self.starts: Ints = np.concatenate([[0], self.ends[:-1]]) + HEADER
        self._kinds = np.frombuffer(self.data, np.uint8)[self.starts]
        is_row = _IS_ROW[self._kinds]
        self.cut = self._cut_at(is_row, rows_max, bytes_max, is_open)
        self.rows = np.flatnonzero(is_row[: self.cut])
        self.controls = np.flatnonzero(~is_row[: self.cut])

    def payload(self, frame: int) -> bytes:
        """Returns the output plugin's message in a frame."""
        return self.data[self.starts[frame] : self.ends[frame]]

    def kind(self, frame: int) -> int:
        """Returns the kind of message in a frame: the first byte of the payload."""
        return int(self._kinds[frame])

    def lsn(self, frame: int) -> int:
        """Returns the position at which the frame's record of the WAL starts; may be 0 if the frame holds no row."""
        return int(_START.unpack_from(self.data, self.starts[frame] - HEADER)[0])

    def hold(self, relids: Collection[int]) -> bool:
        """Returns whether an insert, update or delete of one of these relations is before the cut. Truncates, which are
        also in `rows`, are ignored.
        """
        words: npt.NDArray[np.uint32] = np.ndarray((len(self.data) - 3,), ">u4", buffer=self.data, strides=(1,))
        return bool(np.isin(words[self.starts[self.rows] + 1], list(relids)).any())

    def first_lsn(self, frame: int) -> int:
        """Returns where the log record of the first row after this frame starts; 0 if no row follows."""
        at = int(np.searchsorted(self.rows, frame))
        return self.lsn(int(self.rows[at])) if at < len(self.rows) else 0

    def _cut_at(self, is_row: npt.NDArray[np.bool_], rows_max: int, bytes_max: int, is_open: bool) -> int:
        commits = np.flatnonzero(self._kinds == ord("C"))
        cut = int(commits[-1]) + 1 if len(commits) else 0
        if (len(commits) or not is_open) and (self._kinds[cut:] == ord("M")).all():
            return len(self._kinds)
        nbytes = self.ends[-1] - (self.ends[cut - 1] if cut else 0)
        if np.count_nonzero(is_row[cut:]) < rows_max and nbytes < bytes_max:
            return cut
        last = len(self._kinds) - 1
        while last >= cut and self._kinds[last] in b"RY":
            last -= 1
        return self._record_begin(last) if is_row[last] else len(self._kinds)

    def _record_begin(self, row: int) -> int:
        """Returns where to cut: before the log record that `row` belongs to, and before a delete that precedes it.

        A cut inside or right after this record would be wrong, because later frames can change how its rows are
        decoded. A row that moves to another partition is a delete and then an insert. So a delete right before the
        record may be the first half of a move whose insert is in the record. The description of a new partition may
        stand between the two. The server may also deliver a stamp (a message that says who made a change) after the
        rows to which the stamp applies.
        """
        lsn = self.lsn(row)
        while row and (self.lsn(row - 1) == lsn or self._kinds[row - 1] in b"RY"):
            row -= 1
        return row - 1 if row and self._kinds[row - 1] == ord("D") else row
