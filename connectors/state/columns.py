"""Keeps the versions of each entity's columns. They say whether a stored value can still be the table's value."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

from changelog.envelope.versions import Version

UNKNOWN: Final = 0
"""The version of a row that is older than the first known version. No value of such a row can be used."""

_FACT = "versions/"

_entries_decoder = msgspec.json.Decoder(list[tuple[str, Raw]])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedVersion:
    """A version, and the position of the first row with its columns."""

    position: str
    version: Version


class ColumnVersions:
    """The versions of each entity's columns, oldest first."""

    def __init__(self) -> None:
        self._versions: dict[str, list[PlacedVersion]] = {}
        self._usable: dict[tuple[str, int], frozenset[str]] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    @classmethod
    def from_facts(cls, facts: Mapping[str, bytes]) -> "ColumnVersions":
        """Reads the versions from those of the store's facts that `fact` made."""
        columns = cls()
        for name, fact in facts.items():
            if name.startswith(_FACT):
                for position, state in _entries_decoder.decode(fact):
                    columns.add(PlacedVersion(position=position, version=Version.parse(state)))
        return columns

    def fact(self, entity: str) -> tuple[str, bytes]:
        """Returns the name and the value of the fact that stores the entity's versions."""
        versions = [(entry.position, Raw(entry.version.state)) for entry in self._versions[entity]]
        return _FACT + entity, msgspec.json.encode(versions)

    def add(self, entry: PlacedVersion) -> bool:
        """Adds a version. Returns whether the entity's earlier rows can no longer be used.

        Earlier rows cannot be used if the entity's settings, such as its masks, have changed. Nor can they be used if
        the changelog was started again; then the versions begin with 1 again.
        """
        version = entry.version
        earlier = self._versions.get(version.entity, [])
        last = earlier[-1].version if earlier else None
        continues = last is not None and version.number > last.number and version.settings == last.settings
        self._versions[version.entity] = [*earlier, entry] if continues else [entry]
        self._names[version.entity] = tuple(name for name, _ in version.columns.fields)
        self._usable = {key: usable for key, usable in self._usable.items() if key[0] != version.entity}
        return last is not None and not continues

    def number(self, entity: str) -> int:
        """Returns the number of the entity's present version, UNKNOWN if there is none."""
        versions = self._versions.get(entity)
        return versions[-1].version.number if versions else UNKNOWN

    def names(self, entity: str) -> tuple[str, ...]:
        """Returns the names of the entity's present columns, in the order that the version has."""
        return self._names.get(entity, ())

    def number_at(self, entity: str, position: str) -> int:
        """Returns the number of the version of a row at this position; UNKNOWN if the row is older than any version."""
        versions = self._versions.get(entity, [])
        index = bisect_right(versions, position, key=lambda entry: entry.position)
        return versions[index - 1].version.number if index else UNKNOWN

    def usable(self, entity: str, number: int) -> frozenset[str]:
        """Returns the present columns whose values in a row of version `number` are still those of the table.

        Every later version must have the column with the same type, and must not have *restated* it. A version restates
        a column if values that were published before may differ from those in the table.
        """
        usable = self._usable.get((entity, number))
        if usable is None:
            usable = self._usable[entity, number] = self._find_usable(entity, number)
        return usable

    def _find_usable(self, entity: str, number: int) -> frozenset[str]:
        versions = [entry.version for entry in self._versions.get(entity, []) if entry.version.number >= number]
        if number == UNKNOWN or not versions or versions[0].number != number:
            return frozenset()
        usable = dict(versions[0].columns.fields)
        for version in versions[1:]:
            types = dict(version.columns.fields)
            usable = {
                name: type_
                for name, type_ in usable.items()
                if types.get(name) == type_ and name not in version.restated
            }
        return frozenset(usable)
