"""Remembers, for each published table, its columns and how their values are published. The columns are those in the
table's latest table map in the log.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from changelog.connectors.capture.assembly.assembled import ColumnChanges
from changelog.connectors.sources.mysql.decode.events.events import TableMap
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.decode.rows.bound_table import BoundTable
from changelog.connectors.sources.mysql.decode.statements.effects import TableName
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.envelope.entity import Entity
from changelog.envelope.position import Position

LookUp = Callable[[Entity], tuple[LogColumn, ...]]
"""Returns the columns that the catalogue has now for an entity's table."""


class Declarations(Protocol):
    """Fills in `LogColumn.declared`, for columns whose type the catalogue shows and the log does not."""

    def declare(self, entity: Entity, columns: Sequence[LogColumn]) -> tuple[LogColumn, ...]:
        """Returns the columns of a table map with their declared types."""

    def forget(self, entity: Entity) -> None:
        """Makes `declare` query the catalogue again, because the table was altered."""


class Tables:
    """The current columns of each entity's table.

    `declarations.declare` is called once for each new description of a table. `charsets` maps the id of each collation
    to the name of its character set. `BoundTable.of` explains `noblob`.
    """

    def __init__(
        self,
        binder: Binder,
        entities: Mapping[tuple[str, str], Entity],
        *,
        declarations: Declarations,
        look_up: LookUp,
        charsets: Mapping[int, str],
        noblob: bool = False,
    ) -> None:
        self._noblob = noblob
        self._binder, self._entities, self._declarations, self._look_up = binder, entities, declarations, look_up
        self.charsets = charsets
        self._bound: dict[str, BoundTable] = {}
        self._by_description: dict[bytes, BoundTable] = {}

    def entity(self, table_map: TableMap) -> Entity | None:
        """Returns the entity that the table's rows belong to; None if the table is not published."""
        return self._entities.get((table_map.schema, table_map.table))

    @property
    def names(self) -> Collection[TableName]:
        """The names of all published tables."""
        return [TableName(*name) for name in self._entities]

    def named(self, table: TableName) -> Entity | None:
        """Returns the entity whose table has this name; None if no published table has it."""
        return self._entities.get(table)

    def bound(self, entity: Entity) -> BoundTable:
        """Returns the entity's table as its latest table map described it.

        If the stream has had no table map of the table yet, returns the table as it is in the catalogue.
        """
        present = self._bound.get(entity.name)
        if present is not None:
            return present
        columns = self._look_up(entity)
        return BoundTable.of(entity, columns, self._binder.bind(entity, columns), self.charsets, noblob=self._noblob)

    def present(self, table_map: TableMap) -> BoundTable | None:
        """Returns the table if the last table map that described it was equal to `table_map`. Returns None if it was
        different, if the table was altered after it, or if the table is not published.
        """
        return self._by_description.get(table_map.body)

    def describe(self, entity: Entity, table_map: TableMap) -> tuple[BoundTable | None, BoundTable]:
        """Returns the table as it was described before, and as `table_map` describes it.

        The former is None if this is the first description. The table map must have the names of the columns. Raises
        ChangelogError (PRECONDITION) if a type cannot be published.
        """
        columns = table_map.columns
        assert columns is not None
        declared = self._declarations.declare(entity, columns)
        table = BoundTable.of(entity, declared, self._binder.bind(entity, declared), self.charsets, noblob=self._noblob)
        before = self._bound.get(entity.name)
        self._leave(before)
        self._bound[entity.name] = self._by_description[table_map.body] = table
        return before, table

    def forget(self, entity: Entity) -> None:
        """Discards the table's last description, because the table was altered. `present` then returns None for the
        entity's next table map, so that the caller calls `describe`.
        """
        self._declarations.forget(entity)
        self._leave(self._bound.get(entity.name))

    def _leave(self, table: BoundTable | None) -> None:
        self._by_description = {key: other for key, other in self._by_description.items() if other is not table}


def column_changes(before: BoundTable, after: BoundTable, position: Position) -> ColumnChanges:
    """Returns how the published columns of a table changed at a position."""
    old, new = (
        {field.name: field.codec.column_type for field in table.bound.binding.fields} for table in (before, after)
    )
    return ColumnChanges(
        table=after.bound.binding.table,
        position=position,
        added=tuple(name for name in new if name not in old),
        dropped=tuple(name for name in old if name not in new),
        retyped=tuple(name for name, type_ in new.items() if name in old and old[name] != type_),
    )
