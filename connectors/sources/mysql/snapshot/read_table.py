"""Works out how to read a table: which of its present columns the entity needs, and the SQL that selects them."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from changelog.connectors.capture.rows.json_columns import CompiledBinding
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import ChunkRows
from changelog.connectors.sources.mysql.admin.columns import ColumnCatalog
from changelog.connectors.sources.mysql.decode.rows.binder import Binder, needed
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.names import quoted
from changelog.connectors.sources.mysql.session.results import TextRows, read_portions, read_text_rows
from changelog.connectors.sources.mysql.snapshot.key_columns import KeyColumn, key_column
from changelog.connectors.sources.mysql.snapshot.text_rows import convert_columns, parse_rows
from changelog.connectors.sources.mysql.values.catalog_columns import CatalogColumn
from changelog.connectors.sources.mysql.values.selected import Selected, selected
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

CHUNK_BYTES_MAX = 32 << 20
"""A chunk has at most this many bytes of text, unless a single row is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """How to read an entity's table as long as its `signature`, a hash of its columns and their types, stays the same.

    `bound` binds the entity to all columns of the table. `places` are the indexes of the columns that are read, and
    `selections` has the SQL for each of them. `where` is the entity's row filter. `key` is the SQL of the key columns.
    """

    entity: Entity
    signature: str
    bound: CompiledBinding
    places: tuple[int, ...]
    selections: tuple[Selected, ...]
    where: str | None
    key: tuple[KeyColumn, ...]

    @property
    def name(self) -> str:
        """The table's name, quoted for SQL."""
        return quoted(*self.entity.table)

    def rows(self, connection: Connection, origin: Origin, condition: str, *, read_at: int) -> ChunkRows:
        """Reads the rows that fulfil a condition. Raises ChangelogError and ResultTooLargeError."""
        text_rows = read_text_rows(connection, self._query(condition), bytes_max=CHUNK_BYTES_MAX)
        return self._encoded(origin, text_rows, read_at=read_at)

    def portions(self, connection: Connection, origin: Origin, *, rows_max: int, bytes_max: int) -> Iterator[ChunkRows]:
        """Reads all rows that pass the entity's row filter, and yields them in portions; see `read_portions`.

        Raises ChangelogError.
        """
        for portion in read_portions(connection, self._query("TRUE"), rows_max=rows_max, bytes_max=bytes_max):
            yield self._encoded(origin, portion, read_at=0)

    def _query(self, condition: str) -> str:
        columns = ", ".join(selection.sql for selection in self.selections)
        return f"SELECT {columns} FROM {self.name} WHERE {self.filtered(condition)}"

    def _encoded(self, origin: Origin, text_rows: TextRows, *, read_at: int) -> ChunkRows:
        parsed = parse_rows(text_rows, self.places, self.bound.binding.width)
        selections = list(zip(self.places, self.selections, strict=True))
        data = convert_columns(text_rows.data, parsed, selections)
        return ChunkRows.encode(origin, self.bound, data, parsed, read_at=read_at)

    def filtered(self, condition: str) -> str:
        """Returns the condition together with the entity's row filter."""
        return condition if self.where is None else f"({condition}) AND ({self.where})"


def read_table(catalog: ColumnCatalog, binder: Binder, entity: Entity) -> ReadTable:
    """Returns how an entity's table is read now.

    Raises ChangelogError. ALTERED: there is no such table. PRECONDITION: the table lacks a column of the entity's key,
    or a column of the key has a type by which rows cannot be found.
    """
    rows = catalog.rows(entity.table)
    if not rows:
        raise ChangelogError(
            Kind.ALTERED,
            f"there is no table {'.'.join(entity.table)} for the entity {entity.name}, or the account may not read it",
            hint="create the table, GRANT SELECT on it, or remove the entity",
        )
    columns = [catalog.column(row) for row in rows]
    bound = binder.bind(entity, columns)
    if bound.binding.lost is not None:
        raise ChangelogError(
            Kind.PRECONDITION, bound.binding.lost, hint=f"name the new key in [entities.{entity.name}]"
        )
    places = tuple(needed(bound.binding))
    by_name = {row.name: row for row in rows}
    return ReadTable(
        entity=entity,
        signature=signature(rows),
        bound=bound,
        places=places,
        selections=tuple(selected(columns[place]) for place in places),
        where=entity.where,
        key=tuple(_key_column(entity, by_name[name]) for name in entity.key),
    )


def signature(rows: Sequence[CatalogColumn]) -> str:
    """Returns a hash of a table's columns and their types."""
    return hashlib.md5(repr([tuple(row) for row in rows]).encode(), usedforsecurity=False).hexdigest()


def _key_column(entity: Entity, row: CatalogColumn) -> KeyColumn:
    collation = row.collation or "binary"
    # MariaDB stores a `json` as a `longtext`. The same JSON value can be written in different ways, so a row cannot be
    # found by the text of its value.
    data_type = row.column_type if row.column_type == "json" else row.data_type
    column = key_column(row.name, data_type, collation.partition("_")[0], collation)
    if column is None:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"rows cannot be found by column {row.name} of the key, because its type is {row.column_type}",
            hint=f"name another key in [entities.{entity.name}]",
        )
    return column
