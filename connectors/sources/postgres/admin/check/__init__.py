"""Checks every precondition of the source. The finding for a precondition that is not met says how to meet it."""

from collections.abc import Sequence
from typing import Any

import psycopg

from changelog.connectors.findings import Finding, fail
from changelog.connectors.sources.postgres.admin.catalog import Table
from changelog.connectors.sources.postgres.admin.check import publication, rights, server, tables
from changelog.connectors.sources.postgres.admin.check.finding import Requirements
from changelog.connectors.sources.postgres.admin.slot import slot_state
from changelog.connectors.sources.postgres.session.connection import translated

__all__ = ["Finding", "Requirements", "findings"]


def findings(
    connection: psycopg.Connection[Any], requirements: Requirements, all_tables: Sequence[Table]
) -> list[Finding]:
    """Returns all findings: first on the server, then on the slot and the publication, then on each table.

    `connection` must be a session of the role that runs the service. `all_tables` are the tables of the database.
    Changes nothing.
    """
    by_name = {(table.schema, table.name): table for table in all_tables}
    entity_tables = [(entity, by_name[entity.table]) for entity in requirements.entities if entity.table in by_name]
    with translated("checking the preconditions"):
        facts = server.read(connection)
        relations = rights.read(connection, [table for _, table in entity_tables])
        publication_state = publication.read(connection, requirements.publication)
        slot = slot_state(connection, requirements.slot)
        return [
            *server.findings(facts, requirements),
            *server.slot(facts, slot, requirements),
            *server.retention(facts),
            *publication.findings(
                connection, publication_state, facts, requirements.publication, entity_tables, relations
            ),
            *(
                fail(
                    entity.name, f"there is no table {'.'.join(entity.table)}", "create the table, or remove the entity"
                )
                for entity in requirements.entities
                if entity.table not in by_name
            ),
            *(
                finding
                for entity, table in entity_tables
                for finding in tables.findings(
                    entity, table, publication_state, relations, facts, keeps_state=requirements.keeps_state
                )
            ),
        ]
