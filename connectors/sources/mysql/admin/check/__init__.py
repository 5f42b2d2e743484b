"""Checks every precondition of the source. If a precondition is not met, its finding says how to meet it."""

from collections.abc import Sequence

from changelog.connectors.findings import Finding, fail
from changelog.connectors.sources.mysql.admin.catalog import Query, Table
from changelog.connectors.sources.mysql.admin.check import facts, server, tables
from changelog.envelope.entity import Entity

__all__ = ["Finding", "findings"]

_ABSENT = "create it, GRANT SELECT on it, or remove the entity"


def findings(
    query: Query, entities: Sequence[Entity], all_tables: Sequence[Table], *, keeps_state: bool
) -> list[Finding]:
    """Returns all findings: first on the server and the service's user account, then on each table. Changes nothing.

    `query` must run in a session of that account. `all_tables` are the tables of the server. `keeps_state` means the
    same as in `changelog.connectors.sources.mysql.settings.Settings`.
    """
    by_name = {(table.schema, table.name): table for table in all_tables}
    present = facts.read(query)
    return [
        *server.findings(present, keeps_state=keeps_state),
        *(
            fail(
                entity.name,
                f"there is no table {'.'.join(entity.table)}",
                _ABSENT,
            )
            for entity in entities
            if entity.table not in by_name
        ),
        *(
            finding
            for entity in entities
            if entity.table in by_name
            for finding in tables.findings(entity, by_name[entity.table], present.version)
        ),
    ]
