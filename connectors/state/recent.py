"""Keeps in memory the rows that were last written to the store, so that frequent keys need no lookup there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NBYTES_MAX: Final = 64 << 20
"""About how many bytes of keys and rows are kept in memory."""

_OVERHEAD: Final = 150
"""About how many bytes Python needs for a key and a row in addition to their content."""

ABSENT: Final = b"absent"
"""Stands for a key that is not in memory. It is recognized by its identity."""


@dataclass(slots=True)
class RecentRows:
    """Rows in two generations. When the younger one has half of `nbytes_max` bytes, it takes the place of the older
    one.
    """

    nbytes_max: int = NBYTES_MAX
    _young: dict[bytes, bytes | None] = field(default_factory=dict)
    _old: dict[bytes, bytes | None] = field(default_factory=dict)
    _nbytes: int = 0

    def add(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Adds rows that were written to the store; None stands for a row that was deleted there."""
        self._young.update(rows)
        self._nbytes += sum(map(len, rows)) + sum(map(len, filter(None, rows.values()))) + _OVERHEAD * len(rows)
        if self._nbytes >= self.nbytes_max // 2:
            self._old, self._young, self._nbytes = self._young, {}, 0

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the row of each of these keys: None if the row was deleted, ABSENT if the key is not in memory."""
        young, old = self._young.get, self._old.get
        rows = [young(key, ABSENT) for key in keys]
        if self._old:
            rows = [old(key, ABSENT) if row is ABSENT else row for key, row in zip(keys, rows, strict=True)]
        return rows

    def forget(self, entity: str) -> None:
        """Removes the rows of an entity after they were deleted from the store."""
        prefix = entity.encode() + b"\0"
        self._young, self._old = (
            {key: row for key, row in rows.items() if not key.startswith(prefix)} for rows in (self._young, self._old)
        )
