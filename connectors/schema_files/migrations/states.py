"""The database as the service would find it, before a migration and after it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from changelog.connectors.config import Config, EntityConfig
from changelog.connectors.findings import Finding, fail
from changelog.connectors.schema_files.migrations.planned import SEE_CHECK
from changelog.connectors.sources import TableInfo, TableName
from changelog.connectors.sources.migrations import Rehearsal
from changelog.connectors.wiring.entities import entity_name, matches, resolve, table_text
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.schemas.types import Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The database as the service would find it: the tables, each entity as it is resolved then, and what is wrong.

    `matching` are the tables that [tables] would make entities of beside those that are known, by entity.
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
    before: State | None = None,
    untouched: Collection[TableName] = (),
) -> State:
    """What the service would find now; of the tables that are `untouched`, what it found `before`."""
    tables = {(table.schema, table.name): table for table in rehearsal.tables()}
    matching = _matching(settings, resolved, tables)
    names = {**{name: entity.table for name, entity in resolved.items()}, **matching}
    again, shapes, refused, findings = dict(resolved), {}, {}, {}
    for name, table in names.items():
        if before is not None and name in before.shapes and table in untouched:
            shapes[name], findings[name] = before.shapes[name], before.findings[name]
            continue
        try:
            again[name] = _resolve(settings, name, table, tables)
        except ChangelogError as error:
            refused[name] = error
        if table not in tables or name not in again:
            continue
        try:
            shapes[name] = rehearsal.shape(again[name])
        except ChangelogError as error:
            refused.setdefault(name, error)
        findings[name] = _findings(rehearsal, again[name])
    return State(tables=tables, matching=matching, resolved=again, shapes=shapes, refused=refused, findings=findings)


def _matching(
    settings: Config, resolved: Mapping[str, Entity], tables: Mapping[TableName, TableInfo]
) -> dict[str, TableName]:
    """Entities that [tables] makes of tables which are those of no entity yet."""
    if settings.tables is None:
        return {}
    include, exclude = settings.tables.include, settings.tables.exclude
    taken = {entity.table for entity in resolved.values()}
    matching = [table for table in tables if matches(table, include) and not matches(table, exclude)]
    return {
        entity_name(table): table for table in matching if table not in taken and entity_name(table) not in resolved
    }


def _resolve(settings: Config, name: str, table: TableName, tables: Mapping[TableName, TableInfo]) -> Entity:
    """One entity alone, so that what is wrong with another is not said of it."""
    chosen = settings.entities.get(name, EntityConfig()).model_copy(update={"table": table_text(table)})
    alone = settings.model_copy(update={"tables": None, "entities": {name: chosen}})
    [entity] = resolve(alone, list(tables.values()))
    return entity


def _findings(rehearsal: Rehearsal, entity: Entity) -> list[Finding]:
    """What `changelog check` has against the entity, its table and its place in the publication."""
    try:
        findings = rehearsal.findings(entity)
    except ChangelogError as error:
        return [fail(entity.name, error.message, error.hint or SEE_CHECK)]
    return [finding for finding in findings if finding.name in (entity.name, "publication") and finding.status != "ok"]
