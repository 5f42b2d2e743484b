"""Implements the store of current rows in memory. It can lose its last writes, as if the machine had crashed."""

from collections.abc import Iterator, Sequence

from changelog.connectors.state.changes import Changes


class MemoryStore:
    """Implements `changelog.connectors.state.changes.StateStore`. `writes` counts the calls of `write`."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._facts: dict[str, bytes] = {}
        self._earlier: list[tuple[dict[bytes, bytes], dict[str, bytes]]] = []
        self.writes = self.cleared = 0

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def write(self, changes: Changes, *, bulk: bool = False) -> None:
        self._earlier = [*self._earlier[-3:], (dict(self.rows), dict(self._facts))]
        self.writes += 1
        for entity in changes.forgotten:
            prefix = entity.encode() + b"\0"
            self.rows = {key: value for key, value in self.rows.items() if not key.startswith(prefix)}
        for key, value in changes.rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self._facts |= changes.facts

    def facts(self) -> dict[str, bytes]:
        return dict(self._facts)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self.rows.items())

    def nbytes(self) -> int:
        return sum(map(len, self.rows.values()))

    def clear(self) -> None:
        self.rows, self._facts, self._earlier = {}, {}, []
        self.cleared += 1

    def lose(self, writes: int) -> None:
        """Undoes the last `writes` calls of `write`, at most the last four."""
        if writes and self._earlier:
            self.rows, self._facts = self._earlier[-min(writes, len(self._earlier))]

    def close(self) -> None:
        pass
