"""The total order of changes of one source."""

import re
from dataclasses import dataclass
from typing import Final, Self

_TEXT = re.compile(r"([0-9A-F]{8})/([0-9A-F]{16})/([0-9A-F]{8})")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The place of a change in the log of its source. Compare positions, never times or offsets.

    `epoch` counts the histories of the source: a promotion or a new cluster begins another one.
    `commit` is the log position of the commit. `ordinal` is the place within the transaction: the
    n-th change has 2n, and the second half of a move has 2n+1.
    """

    epoch: int
    commit: int
    ordinal: int

    def __str__(self) -> str:
        """`%08X/%016X/%08X`. The width is fixed, so that texts sort as positions do."""
        return f"{self.epoch:08X}/{commit_text(self.commit)}/{self.ordinal:08X}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text of a position; raises ValueError for any other text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a position, such as 00000001/0000000001781838/00000006")
        return cls(*(int(part, 16) for part in match.groups()))


def commit_text(commit: int) -> str:
    """A commit as the text of a position has it: 16 hexadecimal digits, which sort as the numbers do."""
    return f"{commit:016X}"


UNPLACED: Final = Position(0, (1 << 64) - 1, (1 << 32) - 1)
"""The position of an event that a service publishes itself, until a store has assigned one."""


def at_offset(partition: int, offset: int) -> Position:
    """The position of an event that was published without one, from its place in Kafka. No source uses epoch 0."""
    return Position(0, offset, partition)
