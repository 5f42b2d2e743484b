"""The rows of the store, together with the changes that are not in the store yet."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from changelog.connectors.state.changes import Changes, Store
from changelog.connectors.state.columns import Columns, PlacedVersion

FILLED_BYTES_MAX: Final = 256 << 20
"""The most bytes that are filled into the rows of one piece. The log of an update can be tiny although its row is
large; without this limit, a piece could take any amount of memory."""

_MASK = "mask/"


class Pending:
    """The store's rows as they are after all changes so far, in or outside of the store.

    Changes go through three steps. *Staged* changes belong to rows that the sink may still refuse. *Added* changes
    belong to rows that the sink has, but has not committed. *Committed* changes are being written to the store.

    `columns` has the versions of each entity's columns. `moved` has the rows that left a key and did not arrive at the
    next one yet, by the store's key of the latter. `budget` is how many bytes may still be filled into this piece.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        """Drops all changes that are not in the store."""
        facts = self._store.facts()
        self.columns = Columns.from_facts(facts)
        self.moved: dict[bytes, bytes | None] = {}
        self.budget = FILLED_BYTES_MAX
        self._staged, self._added, self._committed = Changes(), Changes(), Changes()
        self._fetched: dict[bytes, bytes | None] = {}
        self._masks = {name[len(_MASK) :]: fact for name, fact in facts.items() if name.startswith(_MASK)}
        self._settings: Mapping[str, Any] = {}
        self._tracked: frozenset[str] = frozenset()

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Follows the settings of the entities (`Checkpoint.settings`).

        The rows of an entity are forgotten if the secret of its masks has changed. Immutable entities have no rows
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
        """Returns whether the store has rows of this entity."""
        return entity in self._tracked

    # Rows

    def fetch(self, entity: str, keys: Collection[bytes]) -> None:
        """Reads rows of an entity from the store, so that `get` has them."""
        if any(entity in changes.forgotten for changes in self._layers()):
            return
        layers = self._layers()
        missing = sorted({key for key in keys if not any(key in changes.rows for changes in layers)})
        if missing:
            self._fetched.update(zip(missing, self._store.get(missing), strict=True))

    def get(self, entity: str, key: bytes) -> bytes | None:
        """Returns the present row of an entity and the store's key, as `StoredRow.encode` makes it; None if unknown."""
        for changes in self._layers():
            if key in changes.rows:
                return changes.rows[key]
            if entity in changes.forgotten:
                return None
        if key not in self._fetched:
            [self._fetched[key]] = self._store.get([key])
        return self._fetched[key]

    def put(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Stages rows; None stands for a row that was deleted."""
        self._staged.rows.update(rows)

    def forget(self, entity: str) -> None:
        """Stages the deletion of all rows of an entity."""
        self._staged.forget(entity)

    def see_version(self, placed: PlacedVersion) -> None:
        """Adds a version of an entity's columns."""
        entity = placed.version.entity
        if self.columns.add(placed):
            self.forget(entity)
        name, fact = self.columns.fact(entity)
        self._staged.facts[name] = fact

    # Steps

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begins a piece, whose checkpoint has these settings. Drops what was staged and not added."""
        self._staged = Changes()
        self._fetched.clear()
        self.budget = FILLED_BYTES_MAX
        self.configure(settings)

    def add(self) -> None:
        """Turns the staged changes into added ones."""
        self._added.add(self._staged)
        self._staged = Changes()

    def commit(self, facts: Mapping[str, bytes]) -> Changes:
        """Returns the added changes, with further facts, to be written to the store. They count as committed."""
        self._committed, self._added = self._added, Changes()
        self._committed.facts.update(facts)
        return self._committed

    def written(self) -> None:
        """Records that the committed changes are in the store."""
        self._committed = Changes()

    def _layers(self) -> tuple[Changes, Changes, Changes]:
        return self._staged, self._added, self._committed
