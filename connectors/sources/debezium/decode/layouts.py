"""What a schema of messages says: the columns of rows, and the tables whose rows it describes.

A schema comes inside a message in JSON, or from the registry; rows in JSON without a schema have declared types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from changelog.connectors.sources.debezium.decode import schemas
from changelog.connectors.sources.debezium.decode.events import Table
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.tables import ReadColumn, Rows, described
from changelog.connectors.sources.debezium.values.declared_types import declared_type
from changelog.connectors.sources.debezium.values.placeholders import Placeholders
from changelog.connectors.sources.debezium.values.semantics import semantics
from changelog.envelope.connect.schema import ConnectSchema
from changelog.envelope.errors import ChangelogError, Kind

TableKey = tuple[tuple[str, str], tuple[str, ...], str, tuple[str, ...]]
"""The name of a table, the names of its key, the connector, and the names of the columns if there is no schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """A table and the reader of its rows. `key_places` are the places of the key's columns in a row.

    `key_places` is None if a column of the key is not in the rows.
    """

    table: Table
    rows: Rows
    key_places: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The schema of messages, and the tables of which such messages came. The schema is None for JSON without one."""

    schema: ConnectSchema | None
    tables: dict[TableKey, TableRows] = field(default_factory=dict)

    @property
    def row(self) -> ConnectSchema | None:
        """The schema of the rows before and after a change."""
        if self.schema is None:
            return None
        return schemas.field(self.schema, "after") or schemas.field(self.schema, "before")


class Layouts:
    """Makes the descriptions of tables."""

    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._warned: set[str] = set()
        self.placeholders = Placeholders(settings.placeholder)

    def table(
        self,
        name: tuple[str, str],
        row: ConnectSchema | None,
        names: Sequence[str],
        key: tuple[str, ...],
        connector: str,
    ) -> TableRows:
        """Describes a table, from the schema `row`, or if that is None, from declared types of the columns `names`.

        Raises ChangelogError: PRECONDITION if a column has neither, USAGE if a declared type does not exist.
        """
        columns = self.columns(name, [(column, None) for column in names] if row is None else row.fields, connector)
        places = {column.name: place for place, column in enumerate(columns)}
        return TableRows(
            table=described(name, columns, key),
            rows=Rows(columns, self.placeholders),
            key_places=tuple(places[column] for column in key) if all(column in places for column in key) else None,
        )

    def columns(
        self, table: tuple[str, str], fields: Sequence[tuple[str, ConnectSchema | None]], connector: str
    ) -> list[ReadColumn]:
        """Returns the columns with these names and schemas."""
        declared = self._settings.types.get(table, {})
        return [self._column(table, column, schema, declared.get(column), connector) for column, schema in fields]

    def _column(
        self, table: tuple[str, str], column: str, schema: ConnectSchema | None, declared: str | None, connector: str
    ) -> ReadColumn:
        if declared is not None:
            type_ = declared_type(declared, connector)
            return ReadColumn(name=column, schema=type_.schema, semantics=type_.semantics)
        if schema is None:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"column {column} of {'.'.join(table)} has no declared type, and the messages carry no schema",
                hint=f'declare it: {column} = "…" in [entities.X.types] of the entity of {".".join(table)}',
            )
        return ReadColumn(
            name=column, schema=schema, semantics=semantics(schema, connector, self._unknown_type(table, column))
        )

    def _unknown_type(self, table: tuple[str, str], column: str):
        def warn(name: str) -> None:
            self.warn(f"column {column} of {'.'.join(table)} has the unknown type {name}: published as its base type")

        return warn

    def warn(self, sentence: str) -> None:
        """Passes on a sentence, once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._settings.warn(sentence)
