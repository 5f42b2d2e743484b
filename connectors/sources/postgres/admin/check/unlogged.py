"""Whether the tables changed in ways that the log does not tell, and how exactly that is noticed."""

from collections.abc import Iterator

import psycopg

from connectors.findings import Finding, fail, ok, warn
from connectors.sources.postgres.admin import ddl, evidence
from connectors.sources.postgres.admin.check.finding import Requirements
from connectors.sources.postgres.admin.evidence import Evidence
from connectors.sources.postgres.admin.lineage import cluster_of
from connectors.sources.postgres.admin.slot import read_database
from connectors.sources.postgres.values.lsn import lsn_text
from envelope.checkpoint import Checkpoint

EXACT = "edits are noticed at once, with exact bounds: the event trigger is there"
COMPARED = "edits are noticed by comparing the catalogue; `changelog init --event-trigger` has what gives exact bounds"


def findings(
    connection: psycopg.Connection[tuple[object, ...]], wanted: Requirements, stored: Checkpoint | None
) -> Iterator[Finding]:
    """What the service will notice at its next look; `stored` is the changelog's checkpoint."""
    yield ok("publication edits", EXACT if ddl.is_installed(connection) else COMPARED)
    known = None if stored is None else Evidence.parse(stored.source.get("publication", {}))
    if stored is None or known is None or cluster_of(stored) != read_database(connection)[0]:
        return
    policies = {entity.name: entity.on_unlogged for entity in wanted.entities}
    now = evidence.read(connection, wanted.publication, wanted.entities)
    for change in evidence.unlogged(evidence.prove(connection, known, now), now):
        message = f"{change.why} after log position {lsn_text(change.since)}; the log does not tell what"
        if policies[change.entity] == "stop":
            yield fail(change.entity, message, f'set on_unlogged = "rebuild" in [entities.{change.entity}]')
        elif policies[change.entity] == "rebuild":
            yield warn(change.entity, message, "`changelog run` reads it again")
        else:
            yield warn(change.entity, message, f"`changelog rebuild {change.entity}` reads it again")
