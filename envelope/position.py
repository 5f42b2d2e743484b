"""The total order of changes of one source."""

import re
from dataclasses import dataclass
from typing import Final, Self

_TEXT = re.compile(r"([0-9A-F]{8})/([0-9A-F]{16})/([0-9A-F]{8})")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where in a source's log a change stands: compare positions, never times or offsets.

    `epoch` counts the histories of the source (promotions, new clusters), `commit` is the log
    position of the commit, `ordinal` the place within the transaction: the n-th change has 2n,
    and 2n+1 for the second half of a move.
    """

    epoch: int
    commit: int
    ordinal: int

    def __str__(self) -> str:
        """`%08X/%016X/%08X`: fixed width, so that the text sorts as the position does."""
        return f"{self.epoch:08X}/{self.commit:016X}/{self.ordinal:08X}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position that `text` spells; ValueError when it spells none."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a position, such as 00000001/0000000001781838/00000006")
        return cls(*(int(part, 16) for part in match.groups()))


UNPLACED: Final = Position(0, (1 << 64) - 1, (1 << 32) - 1)
"""Of an event that a service publishes itself: it has no position until a store has taken it."""


def at_offset(partition: int, offset: int) -> Position:
    """The position of an event that was published without one: where Kafka put it. No source has epoch 0."""
    return Position(0, offset, partition)
