"""Looks single keys up in a table. An operator's signal names these keys, or a sweep of the changelog finds them.

A ghost is a key that the changelog has and its table may lack. A sweep searches the changelog for ghosts. The lookup
then shows which ghosts the table really lacks.

`Windows` hands out two kinds of tasks, in parts. One kind reads a complete table. The other kind is a `Lookup`. The
parts of a lookup are groups of keys. For each part, the reader writes a message into the database's log. When the
message arrives in the stream, the service publishes the rows of the part's keys, and a delete for each ghost that the
table lacks. If the reader gives a part back instead, the part is handed out once more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Raw

LOOKUP_KEYS = 1_000
"""The most keys in one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ghost:
    """A key that its table may lack, with its partition and the changelog's last row of this key.

    `position` is the text of the row's position, and `current` the row's state. `unavailable`, `json_null` and `mask`
    are members of `source` in the row's provenance.
    """

    key: str
    partition: int
    position: str
    current: Raw
    unavailable: tuple[str, ...]
    json_null: tuple[str, ...]
    mask: str | None

    @property
    def nbytes(self) -> int:
        """Roughly the memory that the ghost takes."""
        return len(bytes(self.current)) + len(self.key) + 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupKeys:
    """A part of a lookup: some keys. `ghosts` has a `Ghost` for each key that is a ghost.

    If the table lacks a ghost, a delete is published for it.
    """

    keys: tuple[str, ...]
    ghosts: Mapping[str, Ghost] = field(default_factory=dict)


class Lookup:
    """The keys of one entity that are still to be looked up.

    If the lookup is `sweeping`, `offer` adds ghosts until `end` is called. A part has at most `keys_max` keys. Callers
    hold the lock of the `Windows` to which the lookup belongs.
    """

    generation = 0

    def __init__(
        self, entity: str, keys: Collection[str] = (), *, sweeping: bool = False, keys_max: int = LOOKUP_KEYS
    ) -> None:
        self.entity, self.sweeping = entity, sweeping
        self._keys_max = keys_max
        self.more = False
        """Whether the sweep ended before it found all ghosts. If so, the next opening of the source sweeps again."""
        self.failed = False
        """Whether the changelog could not be read."""
        self._pending: dict[str, Ghost | None] = dict.fromkeys(keys)
        self._out: set[str] = set()
        self._absent: dict[str, None] = {}
        self._withdrawn: dict[str, Ghost | None] = {}
        self._parts: list[tuple[str, ...]] = []
        self._offering = sweeping

    def offer(self, ghosts: Sequence[Ghost]) -> None:
        """Adds ghosts to look up."""
        self._pending |= {ghost.key: ghost for ghost in ghosts}

    def end(self, *, more: bool = False, failed: bool = False) -> None:
        """Records that no more ghosts will be offered."""
        self.more, self.failed = more, failed
        self._offering = False  # set last, so that a thread that sees a complete sweep also sees `more` and `failed`

    @property
    def idle(self) -> bool:
        """Whether all keys that were added so far are published."""
        return not self._pending

    @property
    def complete(self) -> bool:
        """Whether all keys are published, and no more will be added."""
        return not self._pending and not self._offering

    @property
    def keys_left(self) -> tuple[str, ...]:
        """The keys that are not published yet."""
        return tuple(self._pending)

    @property
    def absent(self) -> tuple[str, ...]:
        """The keys that the table lacked. Empty for a sweep."""
        return tuple(self._absent)

    def next_range(self) -> LookupKeys | None:
        """Hands out the next keys; returns None while all remaining keys are handed out."""
        keys = self._parts.pop() if self._parts else self._next_keys()
        if not keys:
            return None
        self._out.update(keys)
        ghosts = {key: ghost for key in keys if (ghost := self._pending[key]) is not None}
        return LookupKeys(keys=keys, ghosts=ghosts)

    def _next_keys(self) -> tuple[str, ...]:
        return tuple(key for key in self._pending if key not in self._out)[: self._keys_max]

    def admit(self, _part: LookupKeys, _fingerprint: object) -> bool:
        """Returns True: a row can always be read by its key, even if the table's columns or storage have changed."""
        return True

    def give_back(self, part: LookupKeys) -> None:
        """Takes back keys that were handed out, so that they are handed out once more."""
        self._out.difference_update(part.keys)

    def divide(self, part: LookupKeys) -> None:
        """Takes the keys back, to hand them out in smaller parts, because their rows are too large to read at once."""
        size = max(1, len(part.keys) // 4)
        self._parts += [part.keys[begin : begin + size] for begin in range(0, len(part.keys), size)]

    def publish(self, part: LookupKeys, absent_keys: Sequence[str]) -> None:
        """Records that the rows of these keys are published, and removes the keys from `keys_left`.

        `absent_keys` has those keys that the table lacked. They are added to `absent`, unless this is a sweep.
        """
        self.give_back(part)
        self._withdrawn = {key: self._pending.pop(key) for key in part.keys}
        if not self.sweeping:
            self._absent |= dict.fromkeys(absent_keys)

    def withdraw(self, _part: LookupKeys) -> None:
        """Undoes `publish`: the keys were not published after all."""
        self._pending |= self._withdrawn
        for key in self._withdrawn:
            self._absent.pop(key, None)
