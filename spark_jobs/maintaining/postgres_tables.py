"""Creates the tables and indexes of a view in PostgreSQL. What an earlier view left stays if it fits the new one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from changelog.spark_jobs.views import to_postgres
from changelog.spark_jobs.views.postgres_session import Connection

_SHAPE: Final = """SELECT
    array_agg((attname, format_type(atttypid, atttypmod), attnotnull)::text ORDER BY attnum),
    EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass(%(table)s) AND indisprimary)
    FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped"""

_INDEXED: Final = """SELECT FROM pg_index
    WHERE indrelid = to_regclass(%s) AND indisvalid AND indpred IS NULL AND %s::name[] = (
        SELECT array_agg(attname ORDER BY place) FROM unnest(indkey) WITH ORDINALITY AS key (number, place)
        LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = number
    )"""


@dataclass(frozen=True, slots=True)
class ViewIndex:
    """An index of a table, by these columns."""

    table: sql.Identifier
    columns: Sequence[str]


def create_or_empty(
    connection: Connection, table: sql.Identifier, columns: Sequence[tuple[str, str]], trial: sql.Identifier
) -> None:
    """Creates an empty table with columns of these names and types, and the primary key `_key`.

    If the table exists and has the same columns, it is emptied, and keeps its indexes, grants, SQL views and its place
    in publications. A table with other columns is dropped first. `trial` is the name of a table that does not last.
    """
    creating = sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY (_key))")
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(trial))
    connection.execute(creating.format(trial, declared(columns)))
    has_same_shape = _shape(connection, table) == _shape(connection, trial)
    connection.execute(sql.SQL("DROP TABLE {}").format(trial))
    if has_same_shape:
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
        return
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    connection.execute(creating.format(table, declared(columns)))


def create_index(connection: Connection, index: ViewIndex) -> None:
    """Creates an index, unless the table has one by the same columns."""
    table = index.table.as_string(connection)
    if to_postgres.one(connection, _INDEXED, [table, [*index.columns]]) is None:
        columns = sql.SQL(", ").join(map(sql.Identifier, index.columns))
        connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(index.table, columns))


def declared(columns: Sequence[tuple[str, str]]) -> sql.Composed:
    """Returns the declarations of columns with these names and types, for CREATE TABLE."""
    return sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns)


def _shape(connection: Connection, table: sql.Identifier) -> tuple[Any, ...] | None:
    """Returns the columns of a table, and whether it has a primary key."""
    return connection.execute(_SHAPE, {"table": table.as_string(connection)}).fetchone()
