"""Checks whether tables have changes that the database's log does not show, and how the service notices them."""

from collections.abc import Iterator

import psycopg

from changelog.connectors.findings import Finding, fail, ok, warn
from changelog.connectors.sources.postgres.admin import ddl, evidence
from changelog.connectors.sources.postgres.admin.check.finding import Requirements
from changelog.connectors.sources.postgres.admin.evidence import Evidence
from changelog.connectors.sources.postgres.admin.lineage import cluster_of
from changelog.connectors.sources.postgres.admin.slot import read_database
from changelog.connectors.sources.postgres.values.lsn import lsn_text
from changelog.envelope.checkpoint import Checkpoint

EXACT = "the event trigger is installed: edits are noticed at once, with exact log positions"
COMPARED = "edits are noticed by comparing the catalogue; `changelog init --event-trigger` adds exact log positions"


def findings(
    connection: psycopg.Connection[tuple[object, ...]], requirements: Requirements, checkpoint: Checkpoint | None
) -> Iterator[Finding]:
    """Yields a finding on how the service notices changes that the log lacks, then a finding for each such change that
    the service has not noticed yet.

    The changelog's `checkpoint` has the state of the catalogue at an earlier time, and the present catalogue is
    compared with that state. `checkpoint` is None before the changelog begins.
    """
    yield ok("publication edits", EXACT if ddl.is_installed(connection) else COMPARED)
    old_evidence = None if checkpoint is None else Evidence.parse(checkpoint.source.get("publication", {}))
    if checkpoint is None or old_evidence is None or cluster_of(checkpoint) != read_database(connection)[0]:
        return
    policies = {entity.name: entity.on_unlogged for entity in requirements.entities}
    new_evidence = evidence.read(connection, requirements.publication, requirements.entities)
    for change in evidence.unlogged(evidence.prove(connection, old_evidence, new_evidence), new_evidence):
        message = f"{change.why} after log position {lsn_text(change.since)}; the log may lack changes of rows"
        if policies[change.entity] == "stop":
            yield fail(change.entity, message, f'set on_unlogged = "rebuild" in [entities.{change.entity}]')
        elif policies[change.entity] == "rebuild":
            yield warn(change.entity, message, "`changelog run` reads the table again")
        else:
            yield warn(change.entity, message, f"`changelog rebuild {change.entity}` reads the table again")
