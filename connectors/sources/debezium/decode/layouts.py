"""Finds out the columns of tables, and the types of these columns, from the schemas of messages.

A schema comes inside a message in JSON, or from the registry. For JSON without a schema, the configuration declares the
types.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from changelog.connectors.sources.debezium.decode import schemas
from changelog.connectors.sources.debezium.decode.events import EventTable
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.tables import ReadColumn, RowsReader, described
from changelog.connectors.sources.debezium.values.cells import cell_of
from changelog.connectors.sources.debezium.values.declared_types import declared_type
from changelog.connectors.sources.debezium.values.placeholders import Placeholders
from changelog.connectors.sources.debezium.values.semantics import semantics
from changelog.envelope.connect.schema import ConnectSchema
from changelog.envelope.errors import ChangelogError, Kind

Name = tuple[str, str]
"""The schema (or database, or keyspace) of a table, and the table's own name."""

TABLES_MAX = 65_536
"""How many tables are remembered for one schema of messages, or for all messages without a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """A table and the reader of its rows. `key_places` are the places of the key's columns in a row.

    `key_places` is None if a column of the key is not in the rows.
    """

    table: EventTable
    rows: RowsReader
    key_places: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A schema of messages (None for JSON without a schema), and the tables of the messages that had this schema.

    `row` is the schema of the rows before and after a change.
    """

    schema: ConnectSchema | None
    row: ConnectSchema | None
    tables: dict[tuple[Name, tuple[str, ...], str, tuple[str, ...]], TableRows] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: ConnectSchema | None) -> "Layout":
        """Returns the layout of messages with this schema."""
        rows = [] if schema is None else [schemas.field(schema, name) for name in ("after", "before")]
        return cls(schema, next((row for row in rows if row is not None), None))


class Layouts:
    """Makes the descriptions of tables."""

    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._warned: set[str] = set()
        self.placeholders = Placeholders(settings.placeholder)

    def rows(
        self,
        layout: Layout,
        name: Name,
        key: tuple[str, ...],
        connector: str,
        names: tuple[str, ...],
        fields: Callable[[], Sequence[tuple[str, ConnectSchema | None]]],
    ) -> TableRows:
        """Returns the table of this name, with the reader of its rows.

        `key` has the names of the fields in the message's key. `names` has the names of the row's columns; it is empty
        if the layout has them, or if all tables have the same (documents). `fields` returns the columns with their
        schemas. Raises ChangelogError: PRECONDITION if a column has neither a schema nor a declared type, USAGE if a
        declared type does not exist.
        """
        description = name, key, connector, names
        rows = layout.tables.get(description)
        if rows is None:
            if len(layout.tables) >= TABLES_MAX:
                layout.tables.clear()
            rows = layout.tables[description] = self.table(name, self.columns(name, fields(), connector), key)
        return rows

    def table(self, name: Name, columns: Sequence[ReadColumn], key: tuple[str, ...]) -> TableRows:
        """Describes a table with these columns."""
        places = {column.name: place for place, column in enumerate(columns)}
        return TableRows(
            table=described(name, columns, key),
            rows=RowsReader(columns, self.placeholders),
            key_places=tuple(places[column] for column in key) if all(column in places for column in key) else None,
        )

    def columns(
        self, table: Name, fields: Sequence[tuple[str, ConnectSchema | None]], connector: str
    ) -> list[ReadColumn]:
        """Returns the columns with these names and schemas. Raises the errors of `rows`."""
        declared = self._settings.types.get(table, {})
        return [self._column(table, column, schema, declared.get(column), connector) for column, schema in fields]

    def _column(
        self, table: Name, column: str, schema: ConnectSchema | None, declared: str | None, connector: str
    ) -> ReadColumn:
        cell = connector == "cassandra" and (schema is None or cell_of(schema) is not None)
        if declared is not None:
            type_ = declared_type(declared, connector)
            return ReadColumn(name=column, schema=type_.schema, semantics=type_.semantics, cell=cell)
        if schema is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"column {column} of the table {'.'.join(table)} has no declared type, and messages carry no schema",
                hint=f'add {column} = "…" to [entities.X.types], where X is the entity of {".".join(table)}',
            )
        value = cell_of(schema) if cell else None
        value_schema = schema if value is None else value
        type_of = semantics(value_schema, connector, self._unknown_type(table, column))
        return ReadColumn(name=column, schema=value_schema, semantics=type_of, cell=cell)

    def _unknown_type(self, table: Name, column: str) -> Callable[[str], None]:
        def warn(name: str) -> None:
            self._warn(
                f"column {column} of the table {'.'.join(table)} has the unknown type {name}; values are published as "
                "its base type"
            )

        return warn

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._settings.warn(sentence)
