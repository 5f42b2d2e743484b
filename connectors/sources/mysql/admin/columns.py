"""Reads the columns of a table from the catalogue, including the declared types, which the binary log lacks."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Self

from changelog.connectors.sources.mysql.admin.catalog import Query, TableName, json_columns, read_tables
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.values.catalog_columns import COLLATIONS, FIELDS, CatalogColumn, column_of
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.types import DECLARED, STRINGS
from changelog.envelope.entity import Entity


class ColumnCatalog:
    """Reads columns from the catalogue, in the form in which the binary log describes them.

    `flavour` is the flavour of the server, and `collations` maps the names of its collations to their ids.
    """

    def __init__(self, query: Query, flavour: Flavour, collations: Mapping[str, int]) -> None:
        self._query, self._flavour, self._collations = query, flavour, collations

    @classmethod
    def of(cls, query: Query, flavour: Flavour) -> Self:
        """Returns the catalogue of the server on which `query` runs SQL."""
        collations = query(COLLATIONS[flavour], ())
        return cls(query, flavour, {name: int(number) for name, number in collations if number is not None})

    def through(self, query: Query) -> Self:
        """Returns the same catalogue, read through another session."""
        return type(self)(query, self._flavour, self._collations)

    def rows(self, table: TableName) -> Sequence[CatalogColumn]:
        """Returns the columns that a table has now, in order. If the table does not exist, there are no columns."""
        rows = self._query(f"SELECT {FIELDS} {_OF_TABLE}", table)
        json = json_columns(self._query, self._flavour, table)
        return [_declared(CatalogColumn(*row), is_json=(*table, row[0]) in json) for row in rows]

    def all_rows(self, tables: Sequence[TableName]) -> Mapping[TableName, Sequence[CatalogColumn]]:
        """Returns the columns of each of these tables that exists."""
        if not tables:
            return {}
        names = ", ".join(["(%s, %s)"] * len(tables))
        rows = self._query(_OF_TABLES.format(names), [name for table in tables for name in table])
        json = json_columns(self._query, self._flavour, None)
        grouped = itertools.groupby(rows, key=lambda row: (row[0], row[1]))
        return {
            table: [_declared(CatalogColumn(*row[2:]), is_json=(*table, row[2]) in json) for row in group]
            for table, group in grouped
        }

    def column(self, row: CatalogColumn) -> LogColumn:
        """Returns a row of the catalogue in the form in which the log describes a column."""
        return column_of(row, self._collations)

    def columns(self, entity: Entity) -> tuple[LogColumn, ...]:
        """Returns the columns of an entity's table."""
        return tuple(map(self.column, self.rows(entity.table)))

    @property
    def charsets(self) -> Mapping[int, str]:
        """Maps the id of each collation to its character set, with whose name the name of the collation begins."""
        return {number: name.partition("_")[0] for name, number in self._collations.items()}


def _declared(row: CatalogColumn, *, is_json: bool) -> CatalogColumn:
    """Returns the row with the declared type: MariaDB shows a column that was declared as `json` as a `longtext`."""
    return row._replace(column_type="json") if is_json else row


class CatalogDeclarations:
    """Finds the declared types of columns whose types look alike in the log, such as MariaDB's `uuid` and `binary(16)`.

    The source queries the catalogue when the log describes such a column for the first time. It stores the answer in
    the checkpoint, so that the same rows are published in the same way after a restart.
    """

    def __init__(self, query: Query, declarations: Mapping[str, Mapping[str, str]]) -> None:
        self._query = query
        self._declared = {entity: dict(columns) for entity, columns in declarations.items()}

    def to_json(self) -> Mapping[str, Mapping[str, str]]:
        """Returns the declared types from the catalogue, by entity and column.

        The type is an empty text for a column whose type the log already tells.
        """
        return {entity: dict(columns) for entity, columns in self._declared.items()}

    def declare(self, entity: Entity, columns: Sequence[LogColumn]) -> tuple[LogColumn, ...]:
        """Returns the columns of an entity's table with their declared types."""
        ambiguous = [column.name for column in columns if column.type in STRINGS]
        declarations = self._declared.setdefault(entity.name, {})
        if any(name not in declarations for name in ambiguous):
            declared = self._ask(entity)
            declarations |= {name: declared.get(name, "") for name in ambiguous if name not in declarations}
        return tuple(replace(column, declared=declarations.get(column.name, "")) for column in columns)

    def forget(self, entity: Entity) -> None:
        """Makes `declare` query the catalogue again, because the table was altered."""
        self._declared.pop(entity.name, None)

    def _ask(self, entity: Entity) -> Mapping[str, str]:
        tables = read_tables(self._query, only=entity.table)
        return {
            column.name: column.declared if column.declared.partition("(")[0] in DECLARED else ""
            for table in tables
            for column in table.columns
        }


def filled_columns(query: Query, entity: Entity, columns: Sequence[str]) -> Collection[str]:
    """Returns those of a table's new `columns` that may have a value in older rows.

    An example is a column that was added with a default. Rows that are older than the column have the default as their
    value, but the log does not show that. A new column without a default is null in older rows.
    """
    names = ", ".join(["%s"] * len(columns))
    rows = query(_EMPTY.format(names), [*entity.table, *columns])
    return set(columns) - {name for (name,) in rows}


_OF_TABLE = "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"

_OF_TABLES = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, {FIELDS} FROM information_schema.COLUMNS
WHERE (TABLE_SCHEMA, TABLE_NAME) IN ({{}}) ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""

_EMPTY = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND COLUMN_NAME IN ({})
    AND IS_NULLABLE = 'YES' AND (COLUMN_DEFAULT IS NULL OR COLUMN_DEFAULT = 'NULL') AND GENERATION_EXPRESSION = ''
"""
