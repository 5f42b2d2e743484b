"""Combines the rows of the store with the changes that are not in the store yet."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from changelog.connectors.state.changes import Changes, StateStore
from changelog.connectors.state.columns import ColumnVersions, PlacedVersion
from changelog.connectors.state.recent import ABSENT, RecentRows

FILLED_BYTES_MAX: Final = 256 << 20
"""The most bytes that are filled into one piece (rows that go to the sink together).

The log of an update can be tiny although its row is large, so without this limit a piece could take any amount of
memory.
"""

_MASK = "mask/"

_UNCHANGED: Final = b"unchanged"
"""Stands for a row that no pending change touches. It is recognized by its identity."""


class Pending:
    """The store's rows after all changes so far, whether the store already has these changes or not.

    Changes go through three steps. *Staged* changes belong to rows that the sink may still refuse. *Added* changes
    belong to rows that the sink has, but has not committed. *Committed* changes are being written to the store.

    `columns` has the versions of each entity's columns. `moved` has the rows that left their old key but have not
    arrived at the new key yet; its keys are the new keys, in the store's form. `budget` is how many bytes may still be
    filled into this piece.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        """Drops all changes that are not in the store."""
        facts = self._store.facts()
        self.columns = ColumnVersions.from_facts(facts)
        self.moved: dict[bytes, bytes | None] = {}
        self.budget = FILLED_BYTES_MAX
        self._staged, self._added, self._committed = Changes(), Changes(), Changes()
        self._fetched: dict[bytes, bytes | None] = {}
        self._recent = RecentRows()
        self._masks = {name[len(_MASK) :]: fact for name, fact in facts.items() if name.startswith(_MASK)}
        self._settings: Mapping[str, Any] = {}
        self._tracked: frozenset[str] = frozenset()

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Takes over the present settings of the entities (`Checkpoint.settings`).

        The rows of an entity are forgotten if its masks or their secret have changed. Immutable entities have no rows
        here, because their messages have no originals.
        """
        if settings is self._settings:
            return
        self._settings = settings
        self._tracked = frozenset(name for name, of_entity in settings.items() if not of_entity.get("immutable"))
        for entity in self._tracked:
            mask = (settings[entity].get("mask_id") or "").encode()
            if self._masks.get(entity, mask) != mask:
                self.forget(entity)
            if self._masks.get(entity) != mask:
                self._masks[entity] = self._staged.facts[_MASK + entity] = mask

    def mask(self, entity: str) -> str:
        """Returns the id of the entity's masks, empty if nothing is masked."""
        return self._masks.get(entity, b"").decode()

    def tracks(self, entity: str) -> bool:
        """Returns whether the store keeps rows of this entity."""
        return entity in self._tracked

    # Rows

    def fetch(self, entity: str, keys: Collection[bytes]) -> None:
        """Reads rows of an entity at once, so that `get` need not read them singly."""
        distinct = list(set(keys))
        self._fetched.update(zip(distinct, self.lookup(entity, distinct), strict=True))

    def lookup(self, entity: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the present rows of an entity for these keys of the store, in the form of `StoredRow.encode`.

        A row is None if it was deleted, or is unknown.
        """
        values: list[bytes | None] = [_UNCHANGED] * len(keys)
        for changes in self._layers():
            if changes.rows:
                changed = changes.rows.get
                values = [
                    changed(key, _UNCHANGED) if value is _UNCHANGED else value
                    for key, value in zip(keys, values, strict=True)
                ]
            if entity in changes.forgotten:
                return [None if value is _UNCHANGED else value for value in values]
        unchanged = [number for number, value in enumerate(values) if value is _UNCHANGED]
        store_values = self._stored([keys[number] for number in unchanged])
        for number, value in zip(unchanged, store_values, strict=True):
            values[number] = value
        return values

    def get(self, entity: str, key: bytes) -> bytes | None:
        """Returns the same as `lookup`, for one key."""
        for changes in self._layers():
            value = changes.rows.get(key, _UNCHANGED)
            if value is not _UNCHANGED:
                return value
            if entity in changes.forgotten:
                return None
        if key not in self._fetched:
            [self._fetched[key]] = self._stored([key])
        return self._fetched[key]

    def _stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values that the store has for these keys."""
        values = self._recent.get(keys)
        absent = [number for number, value in enumerate(values) if value is ABSENT]
        if absent:
            for number, value in zip(absent, self._store.get([keys[number] for number in absent]), strict=True):
                values[number] = value
        return values

    def put(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Stages rows; None stands for a row that was deleted."""
        self._staged.rows.update(rows)

    def forget(self, entity: str) -> None:
        """Stages the deletion of all rows of an entity."""
        self._staged.forget(entity)

    def see_version(self, entry: PlacedVersion) -> None:
        """Records a version of an entity's columns."""
        entity = entry.version.entity
        if self.columns.add(entry):
            self.forget(entity)
        name, fact = self.columns.fact(entity)
        self._staged.facts[name] = fact

    # Steps

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begins a piece. `settings` are those of its checkpoint. Drops changes that were staged but not added."""
        self._staged = Changes()
        self._fetched.clear()
        self.budget = FILLED_BYTES_MAX
        self.configure(settings)

    def add(self) -> None:
        """Turns the staged changes into added ones."""
        self._added.add(self._staged)
        self._staged = Changes()

    def commit(self, facts: Mapping[str, bytes]) -> Changes:
        """Returns the added changes and `facts`, to be written to the store. The changes now count as committed.

        Call `written` before the next `commit`.
        """
        self._committed, self._added = self._added, Changes()
        self._committed.facts.update(facts)
        return self._committed

    def written(self) -> None:
        """Records that the committed changes are in the store."""
        for entity in self._committed.forgotten:
            self._recent.forget(entity)
        self._recent.add(self._committed.rows)
        self._committed = Changes()

    def _layers(self) -> tuple[Changes, Changes, Changes]:
        return self._staged, self._added, self._committed
