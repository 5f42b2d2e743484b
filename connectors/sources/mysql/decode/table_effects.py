"""Reacts to statements that altered, emptied, replaced or dropped a published table."""

from changelog.connectors.capture.assembly.assembly import AssemblyRun
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.connectors.sources.mysql.decode.rows.row_texts import RowTexts
from changelog.connectors.sources.mysql.decode.rows.tables import Tables
from changelog.connectors.sources.mysql.decode.statements.effects import (
    Altered,
    Created,
    DatabaseDropped,
    Dml,
    Dropped,
    Effect,
    PartitionExchanged,
    PartitionTruncated,
    Renamed,
    TableName,
    TablespaceReplaced,
    Truncated,
    Unsure,
)
from changelog.connectors.sources.mysql.decode.stops import SKIP, Stops
from changelog.envelope.errors import OVER_GAP, Kind


class TableEffects:
    """Handles the statements of one block. `run` assembles the block, and `texts` collects its rows."""

    def __init__(self, state: LogState, tables: Tables, run: AssemblyRun, texts: RowTexts, stops: Stops) -> None:
        self._state, self._tables, self._run, self._texts, self._stops = state, tables, run, texts, stops

    def apply(self, effect: Effect) -> None:
        """Handles one effect of a statement. Ignores effects on tables that are not published."""
        match effect:
            case Truncated(table=table):
                self._truncate(table)
            case Altered(table=table):
                self._altered(table)
            case Dropped(table=table):
                self._dropped(table)
            case DatabaseDropped(schema=schema):
                self._drop_database(schema)
            case Unsure(table=table):
                self._unsure(table)
            case Renamed(table=table, new=new):
                self._dropped(table)
                self._replaced(new)
            case Created(table=table, if_missing=True):
                self._create_missing(table)
            case Created(table=table) | PartitionTruncated(table=table) | TablespaceReplaced(table=table):
                self._replaced(table)
            case PartitionExchanged(table=table, other=other):
                self._replaced(table)
                self._replaced(other)
            case Dml(tables=tables):
                self._refuse_statement(tables)

    def _truncate(self, table: TableName) -> None:
        entity = self._tables.named(table)
        if entity is not None:
            self._state.check_order()
            self._altered(table)
            self._texts.truncate(self._tables.bound(entity))
            self._run.take(1)

    def _altered(self, table: TableName) -> None:
        """Makes current reads of the table start again, and lets the next table map describe the table anew."""
        entity = self._tables.named(table)
        if entity is not None:
            self._run.discard(entity.table)
            self._tables.forget(entity)

    def _unsure(self, table: TableName | None) -> None:
        for unsure in self._tables.names if table is None else [table]:
            self._altered(unsure)

    def _dropped(self, table: TableName) -> None:
        """Records that a published table is gone. Its rows stay in the changelog until another table has its name."""
        entity = self._tables.named(table)
        if entity is not None:
            self._altered(table)
            self._state.exists(entity.name, exists=False)

    def _drop_database(self, schema: str) -> None:
        for table in self._tables.names:
            if table.schema == schema:
                self._dropped(table)

    def _create_missing(self, table: TableName) -> None:
        """Handles CREATE TABLE IF NOT EXISTS. MySQL logs this statement even if the table existed already, so it counts
        only if the table was dropped before.
        """
        entity = self._tables.named(table)
        if entity is not None and self._state.is_dropped(entity.name):
            self._replaced(table)

    def _replaced(self, table: TableName) -> None:
        """Records that another table has taken the name of a published one. The log may lack the new table's rows."""
        entity = self._tables.named(table)
        if entity is not None:
            self._altered(table)
            self._state.exists(entity.name, exists=True)
            self.missed(table, "another table has taken the name of its table")

    def missed(self, table: TableName, reason: str) -> None:
        """Records that the log lacks rows of a published table. The source reads the table if `on_unlogged` says so.

        Raises ChangelogError (GAP), with this place as its position, if the entity's `on_unlogged` is `stop`.
        """
        entity = self._tables.named(table)
        if entity is not None:
            if entity.on_unlogged == "stop":
                message = f"rows of the entity {entity.name} are not in the log: {reason}"
                raise self._stops.error(message, OVER_GAP, kind=Kind.GAP)
            self._run.discard(entity.table)
            self._state.miss(entity.name, reason)

    def _refuse_statement(self, tables: frozenset[TableName] | None) -> None:
        """Refuses a statement that changed rows of `tables`, if one of these tables is published.

        `tables` is None if the statement may have changed any table; then it is refused too.
        """
        published = sorted(table for table in tables or () if self._tables.named(table) is not None)
        if tables is None or published:
            names = ", ".join(".".join(table) for table in published) or "an unknown table"
            self._stops.unless_skipped(
                f"the log has a statement that changed {names}, but not the changed rows",
                f"set binlog_format = ROW for every session; run `{SKIP}`, then `changelog rebuild`",
            )
