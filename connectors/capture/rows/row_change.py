"""What a decoder gives of one row: it was inserted, updated or deleted, and each value as the log has it.

A value is null, absent because it did not change (`UNCHANGED`), or the server's text.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""A TOASTed value that did not change and so was not sent."""


LARGE_BYTES = 1 << 20
"""From so many bytes on, a value is a view of its message, and a row goes one by one: so it is held fewer times."""


Value = bytes | memoryview | None | Unchanged
"""A column's value: the server's text, NULL, or not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A new row."""

    relid: int
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A changed row; `old_kind` is O (the whole old row), K (its replica identity alone) or None."""

    relid: int
    old_kind: Literal["O", "K"] | None
    old: tuple[Value, ...] | None
    new: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A deleted row; `old_kind` as for Update."""

    relid: int
    old_kind: Literal["O", "K"]
    old: tuple[Value, ...]
