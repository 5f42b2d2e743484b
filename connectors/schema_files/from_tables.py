"""Reads the entities from the database, with the columns that their tables have now."""

from collections.abc import Sequence

from changelog.connectors.config import Config
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Struct


def live_entities(settings: Config, names: Sequence[str]) -> list[tuple[Entity, Struct]]:
    """Returns the entities `names`, or all entities, each with the columns that the service would publish for it now.

    The result is in the order of `names`; if there are no names, it is sorted by name. Raises ChangelogError (USAGE) if
    one of the names is not that of an entity.
    """
    source = database(settings)
    entity_by_name = {entity.name: entity for entity in read_entities(settings, source)}
    for name in names:
        if name not in entity_by_name:
            raise ChangelogError(
                Kind.USAGE, f'there is no entity "{name}"', hint=f"there are: {', '.join(sorted(entity_by_name))}"
            )
    entities = [entity_by_name[name] for name in names or entity_by_name]
    return list(zip(entities, source.shapes(entities), strict=True))
