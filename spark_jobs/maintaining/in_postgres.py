"""Keeps a view in a table of PostgreSQL. Spark's tasks copy a batch into a staging table. One transaction then applies
the batch, and stores the progress.

There are further tables: `<table>__deleted` with a *marker* for each deleted key (the position and the time of the
delete), `<table>__progress`, and, if the view has totals, `<table>__totals`. If the view has documents, the rows of
each array are in a table `<table>__<array>`, and their markers in a table `<table>__<array>__deleted`. The changes of
these rows are applied in the same way as those of the view's own rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from psycopg import sql

from changelog.connectors.config import TotalsConfig
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.states.fold import BEGUN
from changelog.schemas.avro import Column
from changelog.schemas.types import Primitive
from changelog.spark_jobs.maintaining.derived import documents, totals_columns
from changelog.spark_jobs.maintaining.derived.derivation import Derivation
from changelog.spark_jobs.maintaining.derived.documents import NestedArrays
from changelog.spark_jobs.maintaining.derived.sessions import Sessions
from changelog.spark_jobs.maintaining.derived.totals import Totals
from changelog.spark_jobs.maintaining.parts import ViewPart
from changelog.spark_jobs.maintaining.postgres_tables import create_index, create_or_empty, drop_indexes
from changelog.spark_jobs.maintaining.progress import REBUILD
from changelog.spark_jobs.maintaining.target import StateBatch, TargetSettings
from changelog.spark_jobs.views import to_postgres
from changelog.spark_jobs.views.copy_rows import ViewColumns
from changelog.spark_jobs.views.postgres_session import Connection, connected
from changelog.spark_jobs.views.to_postgres import ClaimedName, declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Names = Mapping[str, sql.Identifier]
"""The names of the tables of one part of a view. The mapping has the keys of `_SUFFIXES` or of `_ARRAY_SUFFIXES`."""

MARK: Final = "changelog maintained view"
"""The comment by which this job recognises its own tables. Tables of `rebuild_view` have another comment."""

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
"""Each table's name is the view's name and this suffix. The last four tables exist only while a batch is applied."""

_ARRAY_SUFFIXES: Final = {
    "rows": "",
    "deleted": "__deleted",
    "batch": "__batch",
    "parts": "__batch_parts",
    "values": "__batch_on",
}
"""The name of an array's table is the result of `documents.table_of`, followed by this suffix."""

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
"""SQL for the new values of those columns that list names of columns."""

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
"""The statements that apply a batch, in this order. Positions are compared as bytes (COLLATE "C"), whatever collation
the database has."""


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
        paths = [array.path for array in settings.arrays]
        documents.refuse_names(table_name, [*_SUFFIXES.values()], paths, [*_ARRAY_SUFFIXES.values()])
        for array_name in (documents.table_of(table_name, path) for path in paths):
            for suffix in _ARRAY_SUFFIXES.values():
                suffixed_name = replace(array_name, name=array_name.name + suffix)
                to_postgres.refuse_taken(connection, suffixed_name, documents.mark_of(table_name))
        yield PostgresTarget(connection, table_name, settings)


class PostgresTarget:
    """A table that this run has claimed."""

    def __init__(self, connection: Connection, table: ClaimedName, settings: TargetSettings) -> None:
        assert settings.dsn is not None  # see `opened`
        self._connection, self._dsn, self._reach = connection, settings.dsn, settings.reach
        self._table, self._totals = table, settings.totals
        self._names = {name: table.named(suffix) for name, suffix in _SUFFIXES.items()}
        self._lasting_names = ["rows", "deleted", "progress", *([] if settings.totals is None else ["totals"])]
        self._arrays = {array.path: _array_tables(table, array) for array in settings.arrays}
        self._derivations = _derivations(settings.totals, self._arrays, self._names)

    def progress(self) -> str | None:
        """Returns the progress that was stored last; None if there is no table.

        Raises ChangelogError (PRECONDITION) if only some of the tables exist.
        """
        own_tables = [self._names[name] for name in self._lasting_names]
        tables = [*own_tables, *(array.names[name] for array in self._arrays.values() for name in ("rows", "deleted"))]
        texts = [table.as_string(self._connection) for table in tables]
        missing_names = [
            text for text in texts if to_postgres.one(self._connection, "SELECT to_regclass(%s)", [text]) == (None,)
        ]
        if len(missing_names) == len(texts):
            return None
        if missing_names:
            raise ChangelogError(
                Kind.PRECONDITION, f"the table {missing_names[0]} of the view is missing", hint=REBUILD
            )
        row = self._connection.execute(self._sql("SELECT record FROM {progress}")).fetchone()
        return None if row is None else str(row[0])

    def create(self, columns: Sequence[Column], progress: str) -> None:
        """Creates the tables. If an earlier view left a table with the same columns, the table is emptied; with other
        columns, it is dropped.
        """
        with self._connection.transaction():
            self._create_table("rows", [*ViewColumns(columns).declared(), *documents.declared((), self._arrays)])
            if self._totals is None:
                self._connection.execute(self._sql("DROP TABLE IF EXISTS {totals}"))
            else:
                self._create_table("totals", totals_columns.declared(self._totals, columns))
            for statement in (
                "DROP TABLE IF EXISTS {deleted}, {progress}",
                "CREATE TABLE {deleted} (key text PRIMARY KEY, position text NOT NULL, at timestamptz NOT NULL)",
                "CREATE TABLE {progress} (record text NOT NULL, newest timestamp)",
                *(f"COMMENT ON TABLE {{{name}}} IS {{mark}}" for name in self._lasting_names),
            ):
                self._connection.execute(self._sql(statement, mark=sql.Literal(MARK)))
            self._create_arrays()
            for index in (index for derivation in self._derivations for index in derivation.indexes()):
                create_index(self._connection, index, MARK)
            self._connection.execute(self._sql("INSERT INTO {progress} VALUES (%s)"), [progress])

    def _create_table(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        create_or_empty(self._connection, self._names[name], columns, self._names["batch"])
        drop_indexes(self._connection, self._names[name], MARK)

    def _create_arrays(self) -> None:
        """Creates the tables for arrays. If an earlier view left such tables, first drops them all."""
        mark = documents.mark_of(self._table)
        for table in to_postgres.tables_with(self._connection, self._table.schema, mark):
            self._connection.execute(sql.SQL("DROP TABLE {}").format(table))
        for path, array in self._arrays.items():
            columns = [*ViewColumns(array.columns).declared(), *documents.declared(path, self._arrays)]
            for statement in (
                "CREATE TABLE {rows} ({declared}, PRIMARY KEY (_key))",
                "CREATE TABLE {deleted} (key text PRIMARY KEY, position text NOT NULL, at timestamptz NOT NULL)",
                "COMMENT ON TABLE {rows} IS {mark}",
                "COMMENT ON TABLE {deleted} IS {mark}",
            ):
                words = {"declared": declared(columns), "mark": sql.Literal(mark)}
                self._connection.execute(sql.SQL(statement).format(**array.names, **words))

    def apply(self, batch: StateBatch) -> None:
        """Applies a batch.

        1. Spark's tasks copy the states into a staging table. If a run is killed, this table stays, and the next run
           drops it.
        2. One transaction applies the states, and stores the progress.
        """
        self._stage(self._names, MARK, batch.columns, batch.states)  # 1
        for path, array in self._arrays.items():
            states = None if batch.arrays[path].is_empty else batch.arrays[path].states
            self._stage(array.names, documents.mark_of(self._table), array.columns, states)
        self._reach("view:staged")
        with self._connection.transaction():  # 2
            for statement in self._merging(batch):
                self._connection.execute(statement)
            self._connection.execute(self._sql("UPDATE {progress} SET record = %s"), [batch.progress])
            for names in self._names_of_parts():
                self._connection.execute(sql.SQL("DROP TABLE {batch}, {parts}").format(**names))

    def forget(self, before: datetime) -> None:
        """Removes the markers of deletes that were applied before this time."""
        for names in self._names_of_parts():
            self._connection.execute(sql.SQL("DELETE FROM {deleted} WHERE at < %s").format(**names), [before])

    def _names_of_parts(self) -> list[Names]:
        return [self._names, *(array.names for array in self._arrays.values())]

    def _stage(self, names: Names, mark: str, columns: Sequence[Column], states: "DataFrame | None") -> None:
        shape = ViewColumns([*columns, _BEGUN_COLUMN])
        staging = to_postgres.create_to_fill(self._connection, names["batch"], names["parts"], shape, mark)
        if states is not None:
            to_postgres.fill(self._connection, states, shape, self._dsn, staging)

    def _merging(self, batch: StateBatch) -> Iterator[sql.Composed]:
        """Yields the statements that apply a batch."""
        for names in self._names_of_parts():
            yield from (sql.SQL(text).format(**names) for text in _PREPARING)
        for derivation in self._derivations:
            yield from derivation.before(batch)
        yield from _merging(self._names, batch.columns, batch.truncated)
        for path, array in self._arrays.items():
            yield from _merging(array.names, array.columns, batch.arrays[path].truncated)
        for derivation in self._derivations:
            yield from derivation.after()

    def _sql(self, text: str, **more: sql.Composable) -> sql.Composed:
        return sql.SQL(text).format(**self._names, **more)


def _derivations(totals: TotalsConfig | None, arrays: documents.Arrays, names: Names) -> list[Derivation]:
    derivations: list[Derivation] = []
    if totals is not None and totals.session is not None:
        derivations.append(Sessions(totals, totals.session, names))
    elif totals is not None:
        derivations.append(Totals(totals, names))
    return [*derivations, NestedArrays(arrays, names)] if arrays else derivations


def _array_tables(table: ClaimedName, array: ViewPart) -> documents.ArrayTables:
    name = documents.table_of(table, array.path)
    return documents.ArrayTables(
        array=array, names={table_name: name.named(suffix) for table_name, suffix in _ARRAY_SUFFIXES.items()}
    )


def _merging(names: Names, columns: Sequence[Column], truncated: str | None) -> Iterator[sql.Composed]:
    """Yields the statements that apply the states in the table `batch` to the tables `rows` and `deleted`."""
    column_names = [name for name, _ in ViewColumns(columns).declared()]
    own_names = {column.name for column in columns}
    words = {
        "delete": sql.Literal(Op.DELETE.value),
        "truncated": sql.Literal(truncated),
        "names": sql.SQL(", ").join(map(sql.Identifier, column_names)),
        "merged": sql.SQL(", ").join(_merged(name, is_own=name in own_names) for name in column_names),
    }
    truncating = () if truncated is None else _TRUNCATING
    return (sql.SQL(text).format(**names, **words) for text in (*truncating, *_MERGING))


def _merged(name: str, *, is_own: bool) -> sql.Composed:
    """Returns the SQL that assigns a column's new value. `is_own` says that the column is one of the view's own
    columns, not one of those that describe the state.
    """
    column = sql.Identifier(name)
    if is_own:
        keeps = sql.SQL("NOT now._begun AND {} = ANY (now._unavailable)").format(sql.Literal(name))
        return sql.SQL("{0} = CASE WHEN {1} THEN was.{0} ELSE now.{0} END").format(column, keeps)
    return sql.SQL("{} = {}").format(
        column, sql.SQL(_MERGED[name]) if name in _MERGED else sql.SQL("now.{}").format(column)
    )
