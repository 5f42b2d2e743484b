"""Holds many events of the binary log side by side in memory, without a Python object for each event.

│ gap │ event │ gap │ event │ …          a piece: packets as they arrived (for a gap, see `GAP_BYTES`)
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self, overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

GAP_BYTES = 5
"""How many bytes come before each event: the header of its packet, and the status byte of the protocol."""

PADDING_BYTES = 128
"""How many zero bytes follow the last event in the result of `EventBlock.joined`. Because of them, a reader can take
up to this many bytes from the beginning of any event, even if the event is shorter.
"""

_VIEW_BYTES_MIN = 1 << 20
"""Events of at least this size are not copied out of the block."""


@dataclass(frozen=True, slots=True, eq=False)
class EventPiece:
    """Consecutive events in one buffer.

    Event n is `data[ends[n - 1] + GAP_BYTES:ends[n]]`. For the first event, `begin` takes the place of `ends[n - 1]`.
    """

    data: bytes
    ends: Ints
    begin: int = 0

    @property
    def nbytes(self) -> int:
        """The size of all events with their gaps."""
        return int(self.ends[-1]) - self.begin if len(self.ends) else 0

    def part(self, first: int, end: int) -> "EventPiece":
        """Returns the events from number `first` up to, but not including, `end`. Their bytes are not copied."""
        return EventPiece(self.data, self.ends[first:end], int(self.ends[first - 1]) if first else self.begin)


@dataclass(slots=True, eq=False)
class EventBlock(Sequence[bytes | memoryview]):
    """A sequence of the events in `pieces`. A large event is returned as a memoryview, so it is not copied."""

    pieces: list[EventPiece]
    _counts: list[int] = field(init=False)
    _at: tuple[int, EventPiece, list[int]] | None = field(init=False, default=None)
    _sizes: Ints | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.pieces = [piece for piece in self.pieces if len(piece.ends)]
        self._counts = np.cumsum([len(piece.ends) for piece in self.pieces]).tolist()

    @classmethod
    def of(cls, events: Iterable[bytes]) -> Self:
        """Returns a block with these events."""
        parts = [part for event in events for part in (bytes(GAP_BYTES), event)]
        sizes = np.array([len(part) for part in parts], np.int64)
        return cls([EventPiece(b"".join(parts), np.cumsum(sizes)[1::2])])

    @property
    def nbytes(self) -> int:
        """The size of all events, without the gaps."""
        return sum(piece.nbytes for piece in self.pieces) - GAP_BYTES * len(self)

    @property
    def sizes(self) -> Ints:
        """The size of each event."""
        if self._sizes is None:
            ends = np.concatenate([np.empty(0, np.int64), *(piece.ends for piece in self.pieces)])
            begins = np.append(0, ends)[:-1]
            begins[[0, *self._counts[:-1]] if self.pieces else []] = [piece.begin for piece in self.pieces]
            self._sizes = ends - begins - GAP_BYTES
        return self._sizes

    def joined(self) -> tuple[bytearray, Ints]:
        """Copies the whole block into one buffer, followed by `PADDING_BYTES` zero bytes.

        Returns the buffer, and for each event the offset in the buffer at which the event ends.
        """
        data = bytearray().join(
            [
                *(memoryview(piece.data)[piece.begin : int(piece.ends[-1])] for piece in self.pieces),
                bytes(PADDING_BYTES),
            ]
        )
        return data, np.cumsum(self.sizes + GAP_BYTES)

    def __len__(self) -> int:
        return self._counts[-1] if self._counts else 0

    def __add__(self, other: "EventBlock") -> "EventBlock":
        return EventBlock([*self.pieces, *other.pieces])

    @overload
    def __getitem__(self, place: int) -> bytes | memoryview: ...

    @overload
    def __getitem__(self, place: slice) -> "EventBlock": ...

    def __getitem__(self, place: int | slice) -> "bytes | memoryview | EventBlock":
        if isinstance(place, slice):
            first, end, step = place.indices(len(self))
            if step != 1:
                raise ValueError("a slice of a block must have the step 1")
            return self._part(first, end)
        if not 0 <= place < len(self):
            raise IndexError(f"event {place} of {len(self)}")
        if self._at is None or not 0 <= place - self._at[0] < len(self._at[2]):
            number = bisect_right(self._counts, place)
            piece = self.pieces[number]
            self._at = self._counts[number - 1] if number else 0, piece, piece.ends.tolist()
        first, piece, ends = self._at
        number = place - first
        begin, end = (ends[number - 1] if number else piece.begin) + GAP_BYTES, ends[number]
        return piece.data[begin:end] if end - begin < _VIEW_BYTES_MIN else memoryview(piece.data)[begin:end]

    def _part(self, first: int, end: int) -> "EventBlock":
        pieces, before = [], 0
        for piece, count in zip(self.pieces, self._counts, strict=True):
            if first < count and before < end:
                pieces.append(piece.part(max(first - before, 0), min(end, count) - before))
            before = count
        block = EventBlock(pieces)
        block._sizes = None if self._sizes is None else self._sizes[first:end]
        return block


EMPTY = EventBlock([])
