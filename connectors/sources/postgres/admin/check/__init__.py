"""Every precondition of the source, each tested and each with its fix."""

from collections.abc import Sequence
from typing import Any

import psycopg

from connectors.findings import Finding, fail
from connectors.sources.postgres.admin.catalog import Table
from connectors.sources.postgres.admin.check import publication, rights, server, tables
from connectors.sources.postgres.admin.check.finding import Requirements
from connectors.sources.postgres.admin.slot import slot_state
from connectors.sources.postgres.session.connection import translated
from envelope.errors import ChangelogError, Kind

__all__ = ["Finding", "Requirements", "findings", "refuse"]


def findings(connection: psycopg.Connection[Any], wanted: Requirements, found: Sequence[Table]) -> list[Finding]:
    """All findings, of the server first, then of slot and publication, then of each table.

    `connection` is one of the role that the service runs as, `found` the database's tables. Changes nothing.
    """
    by_name = {(table.schema, table.name): table for table in found}
    bound = [(entity, by_name[entity.table]) for entity in wanted.entities if entity.table in by_name]
    with translated("checking the preconditions"):
        facts = server.read(connection)
        relations = rights.read(connection, [table for _, table in bound])
        published = publication.read(connection, wanted.publication)
        slot = slot_state(connection, wanted.slot)
        return [
            *server.findings(facts, wanted),
            *server.slot(facts, slot, wanted),
            *server.retention(facts),
            *publication.findings(connection, published, facts, wanted.publication, bound, relations),
            *(
                fail(entity.name, f"there is no table {'.'.join(entity.table)}", "create it, or take the entity off")
                for entity in wanted.entities
                if entity.table not in by_name
            ),
            *(each for entity, table in bound for each in tables.findings(entity, table, published, relations, facts)),
        ]


def refuse(found: Sequence[Finding]) -> None:
    """Raises ChangelogError(PRECONDITION) for the first failure, and says how many more there are."""
    failed = [finding for finding in found if finding.status == "fail"]
    if failed:
        more = f" (and {len(failed) - 1} more: see `changelog check`)" if len(failed) > 1 else ""
        first = failed[0]
        raise ChangelogError(Kind.PRECONDITION, f"{first.name}: {first.message}{more}", hint=first.hint)
