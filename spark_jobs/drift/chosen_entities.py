"""Finds the entities that a user chose to compare."""

from collections.abc import Sequence

from changelog.connectors.config import Config
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind


def entities_of(config: Config, names: Sequence[str]) -> list[Entity]:
    """Returns the entities with these names, or all entities if `names` is empty. They are sorted by name.

    Raises ChangelogError (USAGE) for an unknown name.
    """
    by_name = {entity.name: entity for entity in read_entities(config, database(config))}
    unknown = sorted(set(names) - by_name.keys())
    if unknown:
        raise ChangelogError(
            Kind.USAGE, f"the configuration has no entity {unknown[0]}", hint=f"it has: {', '.join(by_name)}"
        )
    return [by_name[name] for name in sorted(names or by_name)]
