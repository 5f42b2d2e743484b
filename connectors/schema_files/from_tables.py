"""The entities as a live database has them now."""

from collections.abc import Sequence

from connectors.config import Config
from connectors.sources.postgres.admin.catalog import read_tables
from connectors.sources.postgres.session.connection import connect
from connectors.sources.postgres.snapshot.table_reads import bind_table
from connectors.sources.postgres.source import CATALOG_SETTINGS
from connectors.wiring import entities
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from schemas.types import Struct


def live_entities(settings: Config, names: Sequence[str]) -> list[tuple[Entity, Struct]]:
    """Entities with the columns that the service would publish, were the stream's those in the catalogue.

    Of the entities `names`, or of all, by name. Raises ChangelogError (USAGE) when there is none of such a name.
    """
    hmac_key = b"" if settings.mask is None else settings.mask.key.encode()
    with connect(settings.source.dsn, settings=CATALOG_SETTINGS) as connection:
        tables = read_tables(connection)
        resolved = {entity.name: entity for entity in entities.resolve(settings, tables)}
        by_name = {(table.schema, table.name): table for table in tables}
        for name in names:
            if name not in resolved:
                raise ChangelogError(
                    Kind.USAGE, f"there is no entity {name}", hint=f"there are: {', '.join(sorted(resolved))}"
                )
        return [
            (entity, bind_table(connection, entity, by_name[entity.table], hmac_key).shape)
            for entity in map(resolved.__getitem__, names or resolved)
        ]
