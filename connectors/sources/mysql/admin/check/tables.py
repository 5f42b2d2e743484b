"""Checks that the log contains everything that an entity needs from its table."""

from collections.abc import Iterator

from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.sources.mysql.admin.catalog import ENGINE, Table
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.session.names import quoted
from changelog.connectors.sources.mysql.values.types import lacks_size
from changelog.envelope.entity import Entity

LOGS_CASCADES = (9, 6, 0)
"""The first version of MySQL that logs what foreign keys change in child tables."""


def findings(entity: Entity, table: Table, version: ServerVersion) -> Iterator[Finding]:
    """Yields all findings on one entity and its table."""
    problems = [*_engine(entity, table), *_layout(entity, table), *_cascades(entity, table, version)]
    yield from problems or [ok(entity.name, f"{table.schema}.{table.name} by {', '.join(entity.key)}")]


def _engine(entity: Entity, table: Table) -> Iterator[Finding]:
    text = f"{table.schema}.{table.name}"
    if table.engine != ENGINE:
        yield fail(
            entity.name,
            f"the table {text} is stored in {table.engine or 'no engine'}, whose changes cannot be rolled back",
            f"{_alter(table)} ENGINE = {ENGINE}",
        )
    if table.versioned:
        yield fail(
            entity.name,
            f"the table {text} has system versioning: the log shows old versions of a row as further rows with its key",
            f"exclude it, or {_alter(table)} DROP SYSTEM VERSIONING, which deletes its history",
        )


def _layout(entity: Entity, table: Table) -> Iterator[Finding]:
    name = next((column.name for column in table.columns if lacks_size(column.declared)), None)
    if name is not None:
        yield fail(
            entity.name,
            f"column {name} of the table {table.schema}.{table.name} has an old layout that hides the size of values",
            f"SET GLOBAL mysql56_temporal_format = ON, then {_alter(table)} FORCE",
        )


def _cascades(entity: Entity, table: Table, version: ServerVersion) -> Iterator[Finding]:
    logs_cascades = version.flavour is Flavour.MYSQL and version.numbers >= LOGS_CASCADES
    if table.cascades and not logs_cascades:
        yield fail(
            entity.name,
            f"{version} does not log what the foreign key {table.cascades[0]} changes in {table.schema}.{table.name}",
            "replace CASCADE and SET NULL by RESTRICT, and change child rows by statements; or exclude the table",
        )


def _alter(table: Table) -> str:
    return f"ALTER TABLE {quoted(table.schema, table.name)}"
