"""Reads the tables, and the entities that the service would publish, before and after the statements of a migration."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from changelog.connectors.config import Config, EntityConfig
from changelog.connectors.findings import Finding, fail
from changelog.connectors.schema_files.migrations.planned import SEE_CHECK
from changelog.connectors.sources import TableInfo, TableName
from changelog.connectors.sources.migrations import Rehearsal
from changelog.connectors.wiring.entities import entity_name, matches, resolve, table_text
from changelog.envelope.entity import Entity
from changelog.envelope.errors import RETRIED, ChangelogError
from changelog.schemas.types import Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """The database as the service would see it. The keys of all mappings except `tables` are names of entities.

    `tables` has all tables. `matching` has the tables that match the section [tables] of the configuration, but had no
    entity before the migration. `resolved` has the entities, including those that the tables in `matching` can become.
    `shapes` has the published columns. `refused` has the errors of entities that do not fit their tables. `findings`
    has the warnings and failures that `changelog check` reports.
    """

    tables: Mapping[TableName, TableInfo]
    matching: Mapping[str, TableName]
    resolved: Mapping[str, Entity]
    shapes: Mapping[str, Struct]
    refused: Mapping[str, ChangelogError]
    findings: Mapping[str, Sequence[Finding]]


def read_state(
    rehearsal: Rehearsal,
    settings: Config,
    resolved: Mapping[str, Entity],
    before: DatabaseState | None = None,
    untouched: Collection[TableName] = (),
) -> DatabaseState:
    """Reads the database as the service would see it now.

    `resolved` has the entities as they were before the migration. For `untouched` tables, the result is copied from
    `before`. Raises ChangelogError if the tables cannot be read.
    """
    tables = {(table.schema, table.name): table for table in rehearsal.tables()}
    matching = _matching(settings, resolved, tables)
    names = {**{name: entity.table for name, entity in resolved.items()}, **matching}
    resolved_now, shapes, refused, findings = dict(resolved), {}, {}, {}
    for name, table in names.items():
        if before is not None and name in before.shapes and table in untouched:
            shapes[name], findings[name] = before.shapes[name], before.findings[name]
            continue
        try:
            resolved_now[name] = _resolve(settings, name, table, tables)
        except ChangelogError as error:
            refused[name] = error
        if table not in tables or name not in resolved_now:
            continue
        try:
            shapes[name] = rehearsal.shape(resolved_now[name])
        except ChangelogError as error:
            if error.kind in RETRIED:  # a lost connection says nothing about the table
                raise
            refused.setdefault(name, error)
        findings[name] = _findings(rehearsal, resolved_now[name])
    return DatabaseState(
        tables=tables, matching=matching, resolved=resolved_now, shapes=shapes, refused=refused, findings=findings
    )


def _matching(
    settings: Config, resolved: Mapping[str, Entity], tables: Mapping[TableName, TableInfo]
) -> dict[str, TableName]:
    """Returns the tables that the section [tables] of the configuration includes and that have no entity yet.

    The keys of the result are the names that their entities will have.
    """
    if settings.tables is None:
        return {}
    include, exclude = settings.tables.include, settings.tables.exclude
    tables_in_use = {entity.table for entity in resolved.values()}
    matching = [table for table in tables if matches(table, include) and not matches(table, exclude)]
    return {
        entity_name(table): table
        for table in matching
        if table not in tables_in_use and entity_name(table) not in resolved
    }


def _resolve(settings: Config, name: str, table: TableName, tables: Mapping[TableName, TableInfo]) -> Entity:
    """Makes one entity from its table and configuration, alone, so that no error is about another entity."""
    entity_config = settings.entities.get(name, EntityConfig()).model_copy(update={"table": table_text(table)})
    config_of_one = settings.model_copy(update={"tables": None, "entities": {name: entity_config}})
    [entity] = resolve(config_of_one, list(tables.values()))
    return entity


def _findings(rehearsal: Rehearsal, entity: Entity) -> list[Finding]:
    """Returns the problems that `changelog check` finds with the entity, its table and the publication."""
    try:
        findings = rehearsal.findings(entity)
    except ChangelogError as error:
        if error.kind in RETRIED:
            raise
        return [fail(entity.name, error.message, error.hint or SEE_CHECK)]
    return [finding for finding in findings if finding.name in (entity.name, "publication") and finding.status != "ok"]
