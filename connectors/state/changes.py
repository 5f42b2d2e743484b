"""Defines the changes that are to be written to a store of current rows, and the interface of such stores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Changes:
    """Changes that are written to the store in one step.

    First, all rows of the entities in `forgotten` are deleted. Then each key of `rows` gets its value; None deletes the
    key. `facts` holds what the store knows besides rows, by name.
    """

    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    facts: dict[str, bytes] = field(default_factory=dict)

    def forget(self, entity: str) -> None:
        """Deletes all rows of an entity."""
        prefix = entity.encode() + b"\0"
        self.rows = {key: value for key, value in self.rows.items() if not key.startswith(prefix)}
        self.forgotten.add(entity)

    def add(self, later: "Changes") -> None:
        """Adds changes that were made after these."""
        for entity in later.forgotten:
            self.forget(entity)
        self.rows.update(later.rows)
        self.facts.update(later.facts)

    def __bool__(self) -> bool:
        return bool(self.rows or self.forgotten or self.facts)


class StateStore(Protocol):
    """Keeps rows and facts in this process or on disk. Every method raises ChangelogError (STORAGE) if it fails.

    A crash may lose the last writes. A write is either stored as a whole, or lost. If a write is stored, all writes
    before it are stored, too.
    """

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of these keys, None for a key that is not there."""

    def write(self, changes: Changes, *, bulk: bool = False) -> None:
        """Writes the changes in one step. If `bulk`, a crash may lose them until the next write that is not `bulk`."""

    def facts(self) -> dict[str, bytes]:
        """Returns all facts."""

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the key and the value of every row. Writes during the scan are not seen."""

    def nbytes(self) -> int:
        """Returns about how many bytes the store takes."""

    def clear(self) -> None:
        """Deletes everything."""

    def close(self) -> None:
        """Releases the store."""
