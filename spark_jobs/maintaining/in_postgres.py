"""Keeps a view in a table of PostgreSQL. Spark's tasks copy a batch into a table of its own, and one transaction then
applies it, together with the progress.

Beside the view's table there are `<table>__deleted`, the markers of deleted keys, `<table>__progress`, and, if the view
has totals, `<table>__totals`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Final

from psycopg import sql

from changelog.connectors.config import TotalsConfig
from changelog.connectors.failpoints import Reach
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.states.fold import BEGUN
from changelog.schemas.avro import Column
from changelog.schemas.types import Primitive
from changelog.spark_jobs.maintaining import sessions, totals_columns
from changelog.spark_jobs.maintaining import totals as totals_table
from changelog.spark_jobs.maintaining.progress import REBUILD
from changelog.spark_jobs.maintaining.target import StateBatch, TargetSettings
from changelog.spark_jobs.views import to_postgres
from changelog.spark_jobs.views.copy_rows import ViewColumns
from changelog.spark_jobs.views.postgres_session import Connection, connected
from changelog.spark_jobs.views.to_postgres import ClaimedName

MARK: Final = "changelog maintained view"
"""The comment on tables that this job made. It differs from that on tables which `rebuild_view` replaces."""

_SUFFIXES: Final = {
    "rows": "",
    "deleted": "__deleted",
    "progress": "__progress",
    "totals": "__totals",
    "batch": "__batch",
    "parts": "__batch_parts",
    "changes": "__batch_sums",
    "spans": "__batch_spans",
}
"""The suffix that each table adds to the view's name. The last four tables exist only while a batch is applied."""

_BEGUN_COLUMN: Final = Column(name=BEGUN, type=Primitive.BOOLEAN, nullable=True)

_MERGED: Final = {
    "_unavailable": """CASE WHEN now._begun THEN now._unavailable ELSE ARRAY(
        SELECT name FROM unnest(now._unavailable) name WHERE name = ANY (was._unavailable) ORDER BY name COLLATE "C"
    ) END""",
    "_out_of_range": """CASE WHEN now._begun THEN now._out_of_range ELSE ARRAY(
        SELECT name FROM unnest(now._out_of_range || ARRAY(
            SELECT name FROM unnest(was._out_of_range) name WHERE name = ANY (now._unavailable)
        )) name ORDER BY name COLLATE "C"
    ) END""",
}
"""The new values of columns that list the names of columns."""

_PREPARING: Final = ("ALTER TABLE {batch} ADD PRIMARY KEY (_key)", "ANALYZE {batch}")

_TRUNCATING: Final = (
    """DELETE FROM {rows} WHERE _position < {truncated} COLLATE "C" """,
    """DELETE FROM {deleted} WHERE position < {truncated} COLLATE "C" """,
)

_MERGING: Final = (
    """DELETE FROM {rows} was USING {batch} now
        WHERE now._key = was._key AND now._position > was._position COLLATE "C" AND now._op = {delete}""",
    """INSERT INTO {deleted} AS was SELECT _key, _position, now() FROM {batch} now
        WHERE _op = {delete} AND NOT EXISTS (SELECT FROM {rows} WHERE _key = now._key)
        ON CONFLICT (key) DO UPDATE SET position = excluded.position, at = excluded.at
        WHERE excluded.position > was.position COLLATE "C" """,
    """UPDATE {rows} was SET {merged} FROM {batch} now
        WHERE now._key = was._key AND now._position > was._position COLLATE "C" AND now._op <> {delete}""",
    """INSERT INTO {rows} ({names}) SELECT {names} FROM {batch} now
        WHERE _op <> {delete} AND NOT EXISTS (
            SELECT FROM {deleted} WHERE key = now._key AND position >= now._position COLLATE "C"
        )
        ON CONFLICT (_key) DO NOTHING""",
)
"""The statements that apply a batch, in this order. Positions are compared as bytes, whatever the database's
collation."""


@contextmanager
def opened(settings: TargetSettings) -> Iterator["PostgresTarget"]:
    """Opens the table `[SCHEMA.]TABLE` that the settings name, and claims it for this run.

    Raises ChangelogError: USAGE for wrong settings, or a table that this job did not make; CONNECTION and ACCESS if the
    server refuses; IN_USE while another run has the table. An error of psycopg within the block becomes a
    ChangelogError.
    """
    if settings.dsn is None:
        hint = "--dsn env:NAME, or file:PATH: never the connection string itself"
        raise ChangelogError(Kind.USAGE, "--output postgres needs --dsn", hint=hint)
    schema, name = to_postgres.parse(settings.to)
    table = to_postgres.Target(dsn=settings.dsn, schema=schema, name=name)
    with connected(table.dsn, f"maintaining {table}") as connection:
        table_name = to_postgres.claim(connection, table, MARK)
        for suffix in _SUFFIXES.values():
            to_postgres.refuse_taken(connection, replace(table_name, name=table_name.name + suffix), MARK)
        yield PostgresTarget(connection, table_name, table.dsn, settings.totals, settings.reach)


class PostgresTarget:
    """A table that this run has claimed."""

    def __init__(
        self, connection: Connection, table: ClaimedName, dsn: str, totals: TotalsConfig | None, reach: Reach
    ) -> None:
        self._connection, self._dsn, self._totals, self._reach = connection, dsn, totals, reach
        self._names = {name: table.named(suffix) for name, suffix in _SUFFIXES.items()}
        self._lasting_names = ["rows", "deleted", "progress", *([] if totals is None else ["totals"])]

    def progress(self) -> str | None:
        """Returns the progress that was stored last; None if there is no table.

        Raises ChangelogError (PRECONDITION) if only some of the tables exist.
        """
        missing_names = []
        for name in self._lasting_names:
            text = self._names[name].as_string(self._connection)
            if to_postgres.one(self._connection, "SELECT to_regclass(%s)", [text]) == (None,):
                missing_names.append(text)
        if len(missing_names) == len(self._lasting_names):
            return None
        if missing_names:
            raise ChangelogError(
                Kind.PRECONDITION, f"the table {missing_names[0]} of the view is missing", hint=REBUILD
            )
        row = self._connection.execute(self._sql("SELECT record FROM {progress}")).fetchone()
        return None if row is None else str(row[0])

    def create(self, columns: Sequence[Column], progress: str) -> None:
        """Creates the tables. Drops those that an earlier view left."""
        declared = _declared(ViewColumns(columns).declared())
        totals = None if self._totals is None else _declared(totals_columns.declared(self._totals, columns))
        with self._connection.transaction():
            for statement in (
                "DROP TABLE IF EXISTS {rows}, {deleted}, {progress}, {totals}",
                "CREATE TABLE {rows} ({declared}, PRIMARY KEY (_key))",
                "CREATE TABLE {deleted} (key text PRIMARY KEY, position text NOT NULL, at timestamptz NOT NULL)",
                "CREATE TABLE {progress} (record text NOT NULL, newest timestamp)",
                *([] if totals is None else ["CREATE TABLE {totals} ({totals_columns}, PRIMARY KEY (_key))"]),
                *(f"COMMENT ON TABLE {{{name}}} IS {{mark}}" for name in self._lasting_names),
            ):
                words = {"declared": declared, "totals_columns": totals or sql.SQL(""), "mark": sql.Literal(MARK)}
                self._connection.execute(self._sql(statement, **words))
            if self._totals is not None and self._totals.session is not None:
                for index in sessions.indexes(self._totals, self._names):
                    self._connection.execute(index)
            self._connection.execute(self._sql("INSERT INTO {progress} VALUES (%s)"), [progress])

    def apply(self, batch: StateBatch) -> None:
        """Applies a batch.

        1. Tasks copy the states into a table of their own. A killed run leaves this table; the next one drops it.
        2. One transaction applies the states and stores the progress.
        """
        shape = ViewColumns([*batch.columns, _BEGUN_COLUMN])
        staging = to_postgres.create_to_fill(self._connection, self._names["batch"], self._names["parts"], shape, MARK)
        to_postgres.fill(self._connection, batch.states, shape, self._dsn, staging)  # 1
        self._reach("view:staged")
        with self._connection.transaction():  # 2
            self._merge(batch)
            self._connection.execute(self._sql("UPDATE {progress} SET record = %s"), [batch.progress])
            self._connection.execute(self._sql("DROP TABLE {batch}, {parts}"))

    def forget(self, before: datetime) -> None:
        """Removes the markers of deletes that were applied before this time."""
        self._connection.execute(self._sql("DELETE FROM {deleted} WHERE at < %s"), [before])

    def _merge(self, batch: StateBatch) -> None:
        names = [name for name, _ in ViewColumns(batch.columns).declared()]
        own_names = {column.name for column in batch.columns}
        words = {
            "delete": sql.Literal(Op.DELETE.value),
            "truncated": sql.Literal(batch.truncated),
            "names": sql.SQL(", ").join(map(sql.Identifier, names)),
            "merged": sql.SQL(", ").join(_merged(name, is_own=name in own_names) for name in names),
        }
        truncating = () if batch.truncated is None else _TRUNCATING
        totals = self._totals
        before, after = (totals_table.before, totals_table.after)
        if totals is not None and totals.session is not None:
            before, after = (sessions.before, sessions.after)
        statements = [
            *(self._sql(text) for text in _PREPARING),
            *(before(totals, batch.truncated, self._names) if totals else ()),
            *(self._sql(text, **words) for text in (*truncating, *_MERGING)),
            *(after(totals, self._names) if totals else ()),
        ]
        for statement in statements:
            self._connection.execute(statement)

    def _sql(self, text: str, **more: sql.Composable) -> sql.Composed:
        return sql.SQL(text).format(**self._names, **more)


def _declared(columns: Sequence[tuple[str, str]]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns)


def _merged(name: str, *, is_own: bool) -> sql.Composed:
    """Returns the assignment of a column's new value."""
    column = sql.Identifier(name)
    if is_own:
        keeps = sql.SQL("NOT now._begun AND {} = ANY (now._unavailable)").format(sql.Literal(name))
        return sql.SQL("{0} = CASE WHEN {1} THEN was.{0} ELSE now.{0} END").format(column, keeps)
    return sql.SQL("{} = {}").format(
        column, sql.SQL(_MERGED[name]) if name in _MERGED else sql.SQL("now.{}").format(column)
    )
