"""Creates the tables and indexes of a view in PostgreSQL. If an earlier view left a table that fits the new view, this
table is used again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql
from psycopg.errors import FeatureNotSupported

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.views.postgres_session import Connection
from changelog.spark_jobs.views.to_postgres import declared

_SHAPE: Final = """SELECT array_agg(
        (attname, format_type(atttypid, atttypmod), attnotnull, attcollation, attidentity, attgenerated)::text
        ORDER BY attnum
    ), (
        SELECT array_agg(attname) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
        WHERE indrelid = to_regclass(%(table)s) AND indisprimary
    ) FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped"""

_INDEXES: Final = """SELECT indexrelid::regclass::text, obj_description(indexrelid, 'pg_class') FROM pg_index
    WHERE indrelid = to_regclass(%s)"""


@dataclass(frozen=True, slots=True)
class ViewIndex:
    """An index on these columns of a table."""

    table: sql.Identifier
    columns: Sequence[str]


def create_or_empty(
    connection: Connection, table: sql.Identifier, columns: Sequence[tuple[str, str]], trial: sql.Identifier
) -> None:
    """Creates an empty table with columns of these names and types, and the primary key `_key`.

    If the table exists and has the same columns and the same key, it is only emptied: its indexes, its grants and SQL
    views of it stay, and publications still contain it. If it exists with other columns or another key, it is dropped
    first. `trial` is a name for a table that this function creates to compare shapes, and then drops. Raises
    ChangelogError (PRECONDITION) if the table has to be emptied, and a foreign key references it.
    """
    creating = sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY (_key))")
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(trial))
    connection.execute(creating.format(trial, declared(columns)))
    has_same_shape = _shape(connection, table) == _shape(connection, trial)
    connection.execute(sql.SQL("DROP TABLE {}").format(trial))
    if has_same_shape:
        _empty(connection, table)
        return
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
    connection.execute(creating.format(table, declared(columns)))


def _empty(connection: Connection, table: sql.Identifier) -> None:
    try:
        connection.execute(sql.SQL("TRUNCATE {}").format(table))
    except FeatureNotSupported as error:
        message = f"the table {table.as_string(connection)} cannot be emptied, because a foreign key references it"
        hint = "drop the foreign key, and create it again once the view is complete"
        raise ChangelogError(Kind.PRECONDITION, message, hint=hint) from error


def create_index(connection: Connection, index: ViewIndex, mark: str) -> None:
    """Creates an index, and gives it the comment `mark`."""
    columns, earlier = sql.SQL(", ").join(map(sql.Identifier, index.columns)), _indexes(connection, index.table)
    connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(index.table, columns))
    (name,) = _indexes(connection, index.table).keys() - earlier.keys()
    connection.execute(f"COMMENT ON INDEX {name} IS '{mark}'".encode())


def drop_indexes(connection: Connection, table: sql.Identifier, mark: str) -> None:
    """Drops the indexes of a table that have the comment `mark`."""
    for name, comment in _indexes(connection, table).items():
        if comment == mark:
            connection.execute(f"DROP INDEX {name}".encode())


def _indexes(connection: Connection, table: sql.Identifier) -> dict[str, str | None]:
    """Returns the comments of a table's indexes, by the quoted names of the indexes."""
    return dict(connection.execute(_INDEXES, [table.as_string(connection)]).fetchall())


def _shape(connection: Connection, table: sql.Identifier) -> tuple[Any, ...] | None:
    """Returns the columns of a table, and the columns of its primary key."""
    return connection.execute(_SHAPE, {"table": table.as_string(connection)}).fetchone()
