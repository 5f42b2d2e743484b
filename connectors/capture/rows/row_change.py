"""Defines a decoder's result for one row: whether the row was inserted, updated or deleted, and its values.

A value is the server's text, None for NULL, or `UNCHANGED` if the database's log lacks the value because it did not
change. A decoder makes a result for every row, so the results are msgspec structs: a dataclass would take about ten
times as long to make.
"""

from enum import Enum
from typing import Final, Literal

import msgspec


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""A large value that the server did not send, because it did not change (in PostgreSQL, unchanged TOAST)."""


LARGE_BYTES = 1 << 20
"""A value or a row of at least this many bytes counts as large. A large value is a view of its message and not a copy.
A large row is converted alone and not together with others. Both rules keep the number of copies in memory small.
"""


Value = bytes | memoryview | None | Unchanged
"""The value of a column: the server's text, None for NULL, or `UNCHANGED`."""


class Insert(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A new row."""

    relid: int
    new: tuple[Value, ...]


class Update(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A changed row.

    `old_kind` is O if `old` is the complete old row, and K if `old` has only the columns of the replica identity. If
    the log has nothing of the old row, `old_kind` and `old` are None.
    """

    relid: int
    old_kind: Literal["O", "K"] | None
    old: tuple[Value, ...] | None
    new: tuple[Value, ...]


class Delete(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A deleted row; `old_kind` is O or K, as for `Update`."""

    relid: int
    old_kind: Literal["O", "K"]
    old: tuple[Value, ...]
