"""Defines positions, by which all changes of one source are sorted."""

import re
from dataclasses import dataclass
from typing import Final, Self

_TEXT = re.compile(r"([0-9A-F]{8})/([0-9A-F]{16})/([0-9A-F]{8})")
_COMMIT_MAX: Final = (1 << 64) - 1
_ORDINAL_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a change is in the log of its database. To order changes, compare positions, never times or offsets.

    `epoch` counts the histories of the source. A new history begins, for example, if a standby server is promoted, or
    if a new database cluster replaces the old one. `commit` is the place in the database's log at which the transaction
    committed. `ordinal` numbers the changes of the transaction: the n-th change, counted from 0, has the ordinal 2n. If
    a change moves a row to another key or partition, it makes two messages, and the second one has the ordinal 2n+1.
    """

    epoch: int
    commit: int
    ordinal: int

    def __str__(self) -> str:
        """Returns the position as `%08X/%016X/%08X`. All these texts have the same length, so they sort as positions
        do.
        """
        return f"{self.epoch:08X}/{commit_text(self.commit)}/{self.ordinal:08X}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text of a position. Raises ValueError for any other text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a position, such as 00000001/0000000001781838/00000006")
        return cls(*(int(part, 16) for part in match.groups()))

    def previous(self) -> "Position | None":
        """Returns the greatest position that is less than this one; None for the first position."""
        if self.ordinal:
            return Position(self.epoch, self.commit, self.ordinal - 1)
        if self.commit:
            return Position(self.epoch, self.commit - 1, _ORDINAL_MAX)
        return Position(self.epoch - 1, _COMMIT_MAX, _ORDINAL_MAX) if self.epoch else None


def commit_text(commit: int) -> str:
    """Formats a commit as in the text of a position: as 16 hexadecimal digits. These texts sort as the numbers do."""
    return f"{commit:016X}"


UNPLACED: Final = Position(0, _COMMIT_MAX, _ORDINAL_MAX)
"""A placeholder for the position of an event that an application publishes itself. Whoever reads the event from Kafka
replaces the placeholder by the result of `at_offset`.
"""


def at_offset(partition: int, offset: int) -> Position:
    """Makes a position for an event that was published without one, from its partition and its offset in Kafka.

    These positions have epoch 0, which no source uses.
    """
    return Position(0, offset, partition)
