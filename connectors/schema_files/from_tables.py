"""The entities as a live database has them now."""

from collections.abc import Sequence

from changelog.connectors.config import Config
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Struct


def live_entities(settings: Config, names: Sequence[str]) -> list[tuple[Entity, Struct]]:
    """Entities with the columns that the service would publish, were the stream's those in the catalogue.

    Of the entities `names`, or of all, by name. Raises ChangelogError (USAGE) when there is none of such a name.
    """
    source = database(settings)
    resolved = {entity.name: entity for entity in read_entities(settings, source)}
    for name in names:
        if name not in resolved:
            raise ChangelogError(
                Kind.USAGE, f"there is no entity {name}", hint=f"there are: {', '.join(sorted(resolved))}"
            )
    chosen = [resolved[name] for name in names or resolved]
    return list(zip(chosen, source.shapes(chosen), strict=True))
