"""Writes a view as a table of PostgreSQL. Spark's tasks fill a new table. Then the new table replaces the old one at
once.

Readers see either the complete old table or the complete new one. The comment on the table is the view's record; a
table without such a comment is never replaced. Only one run at a time can write a table. If a run is killed, it leaves
tables, which the next run drops.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from psycopg import sql

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.views.copy_rows import COPIED, ViewColumns, copier
from changelog.spark_jobs.views.postgres_session import Connection, connected
from changelog.spark_jobs.views.to_parquet import FORMAT, View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK: Final = "changelog view "
"""The beginning of the comment on a table that this job wrote. After it, the comment has the view's record as JSON."""

NAME_BYTES_MAX: Final = 50
LOCK_CLASS: Final = 0x76696577  # the first number of our advisory locks: `view` in ASCII
_LOCK_TIMEOUT: Final = "60s"
_TABLE: Final = "r"
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "p": "a partitioned table",
    "S": "a sequence",
    "i": "an index",
    "c": "a type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table to write. If `schema` is None, the table is in the first schema of the session's search path."""

    dsn: str = field(repr=False)
    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def parse(text: str) -> tuple[str | None, str]:
    """Splits `[SCHEMA.]TABLE` into schema and name. Raises ChangelogError (USAGE) if `text` does not have this form."""
    schema, _, name = text.rpartition(".")
    if not name or "." in schema or (schema == "") != ("." not in text) or len(name.encode()) > NAME_BYTES_MAX:
        raise ChangelogError(
            Kind.USAGE, f"{text!r} is not a table name", hint=f"[SCHEMA.]TABLE, of at most {NAME_BYTES_MAX} bytes"
        )
    return schema or None, name


def write(states: "DataFrame", shape: ViewColumns, view: View, table: Target) -> View:
    """Replaces the table by one with the rows `states`. Returns the record that is now the comment on the table.

    1. The name is claimed for this run. It is refused if it belongs to anything but a view that this job wrote.
    2. A new table is created under another name. If a killed run left such a table, it is dropped first.
    3. Tasks copy their rows. A task notes in the same transaction that it is done, so that no rows are copied twice.
    4. In one transaction, the old table is dropped, and the new table gets its name, owner and grants.

    Raises ChangelogError: USAGE for a name that is taken, CONNECTION and ACCESS if the server refuses, IN_USE while
    another run writes the table, PRECONDITION if something depends on the old table.
    """
    with connected(table.dsn, f"writing {table}") as connection:
        table_name = claim(connection, table, MARK)  # 1
        new_table, parts = table_name.named("__new"), table_name.named("__new_parts")
        staging = create_to_fill(connection, new_table, parts, shape)  # 2
        rows, out_of_range, unavailable = fill(connection, states, shape, table.dsn, staging)  # 3
        new_view = View(
            format=FORMAT,
            definition=view.definition,
            position=view.position,
            rows=rows,
            out_of_range=out_of_range,
            unavailable=unavailable,
        )
        _finish(connection, new_table, parts)
        _swap(connection, table_name, new_table, new_view)  # 4
        return new_view


@dataclass(frozen=True, slots=True)
class ClaimedName:
    """The schema and the name of a table that this run has claimed."""

    schema: str
    name: str

    def named(self, suffix: str = "") -> sql.Identifier:
        """Returns the quoted name of the table, or of the table that has this name and `suffix`."""
        return sql.Identifier(self.schema, self.name + suffix)


def claim(connection: Connection, table: Target, mark: str) -> ClaimedName:
    """Claims the table for this session, and returns its name.

    Raises ChangelogError: USAGE if there is no such schema, or if the name belongs to anything but a table whose
    comment begins with `mark`; IN_USE while another run has claimed the table.
    """
    row = connection.execute("SELECT coalesce(%s, current_schema())", [table.schema]).fetchone()
    schema = row[0] if row else None
    if schema is None or not one(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]):
        message = f"the database has no schema {schema}" if schema else f"no schema to create {table} in"
        raise ChangelogError(Kind.USAGE, message, hint="create the schema, or use another --to")
    locked = one(connection, "SELECT pg_try_advisory_lock(%s, hashtext(%s))", [LOCK_CLASS, f"{schema}.{table.name}"])
    if not (locked and locked[0]):
        raise ChangelogError(Kind.IN_USE, f"another run writes the table {table}", hint="wait until it ends")
    table_name = ClaimedName(schema, table.name)
    refuse_taken(connection, table_name, mark)
    return table_name


def one(connection: Connection, query: str, values: Sequence[object]) -> tuple[Any, ...] | None:
    """Runs a query, and returns the first row of its result; None if the result has no rows."""
    return connection.execute(query.encode(), values).fetchone()


def refuse_taken(connection: Connection, table_name: ClaimedName, mark: str) -> None:
    """Raises ChangelogError (USAGE) if the name belongs to anything but a table whose comment begins with `mark`."""
    relation = one(
        connection,
        "SELECT relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s",
        [table_name.schema, table_name.name],
    )
    if relation is None:
        return
    kind, comment = relation
    if kind != _TABLE or not (comment or "").startswith(mark):
        what = _KINDS.get(kind, "a table that this job did not make")
        raise ChangelogError(
            Kind.USAGE,
            f"{table_name.schema}.{table_name.name} is {what}",
            hint="name another table: this job replaces only tables that it wrote",
        )


def tables_with(connection: Connection, schema: str, comment: str) -> list[sql.Identifier]:
    """Returns the names of the tables in a schema that have this comment."""
    rows = connection.execute(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname = %s AND relkind = %s AND obj_description(c.oid, 'pg_class') = %s ORDER BY relname",
        [schema, _TABLE, comment],
    ).fetchall()
    return [sql.Identifier(schema, name) for (name,) in rows]


def declared(columns: Sequence[tuple[str, str]]) -> sql.Composed:
    """Returns SQL that declares columns with these names and types in CREATE TABLE."""
    return sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns)


@dataclass(frozen=True, slots=True)
class Staging:
    """A table that tasks fill, and the table `parts`, which lists the tasks that have copied their rows.

    The table `parts` accepts only tasks that know the `nonce`. So if a task of an earlier run is still running, it can
    copy nothing.
    """

    table: sql.Identifier
    parts: sql.Identifier
    nonce: str


def create_to_fill(
    connection: Connection, table: sql.Identifier, parts: sql.Identifier, shape: ViewColumns, mark: str = ""
) -> Staging:
    """Creates the two tables of a staging, with the comment `mark`. Older tables with these names are dropped."""
    nonce = secrets.token_hex(8)
    claims = "CREATE TABLE {} (part int PRIMARY KEY, counts bigint[] NOT NULL, nonce text NOT NULL CHECK (nonce = {}))"
    with connection.transaction():
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}, {}").format(table, parts))
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table, declared(shape.declared())))
        connection.execute(sql.SQL(claims).format(parts, sql.Literal(nonce)))
        for name in (table, parts):
            connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(mark or None)))
    return Staging(table, parts, nonce)


def fill(
    connection: Connection, states: "DataFrame", shape: ViewColumns, dsn: str, staging: Staging
) -> tuple[int, int, int]:
    """Copies the states into the staging's table. Returns how many rows there are, how many values are out of range,
    and how many are unavailable.
    """
    copy = copier(dsn, staging.table.as_string(connection), staging.parts.as_string(connection), staging.nonce, shape)
    columns = [f"c{number}" for number, _ in enumerate(shape.names())]  # mapInArrow refuses names with a backtick
    numbered = states.select(*shape.names()).toDF(*columns)
    rows, out_of_range, unavailable = numbered.mapInArrow(copy, COPIED).groupBy().sum().collect()[0]
    return int(rows or 0), int(out_of_range or 0), int(unavailable or 0)


def _finish(connection: Connection, new_table: sql.Identifier, parts: sql.Identifier) -> None:
    connection.execute(sql.SQL("DROP TABLE {}").format(parts))
    connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (_key)").format(new_table))
    connection.execute(sql.SQL("ANALYZE {}").format(new_table))


def _swap(connection: Connection, table_name: ClaimedName, new_table: sql.Identifier, view: View) -> None:
    record = msgspec.json.encode(
        {
            "format": view.format,
            "position": view.position,
            "rows": view.rows,
            "out_of_range": view.out_of_range,
            "unavailable": view.unavailable,
            "definition": view.definition,
        }
    ).decode()
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        refuse_taken(connection, table_name, MARK)
        if one(connection, "SELECT to_regclass(%s)", [table_name.named().as_string(connection)]) != (None,):
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(table_name.named()))
            for statement in _rights(connection, table_name, new_table):
                connection.execute(statement)
            connection.execute(sql.SQL("DROP TABLE {}").format(table_name.named()))
        connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(new_table, sql.Identifier(table_name.name)))
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(table_name.named(), sql.Literal(MARK + record)))


def _rights(connection: Connection, table_name: ClaimedName, new_table: sql.Identifier) -> list[sql.Composed]:
    """Returns the statements that give the new table the owner and the grants of the old table.

    Grants on a column are included if both tables have this column.
    """
    old_text, new_text = table_name.named().as_string(connection), new_table.as_string(connection)
    grants = connection.execute(
        "WITH granted AS ("
        " SELECT null::name AS attname, (aclexplode(relacl)).* FROM pg_class WHERE oid = %(old)s::regclass"
        " UNION ALL SELECT attname, (aclexplode(attacl)).* FROM pg_attribute a WHERE attrelid = %(old)s::regclass"
        " AND EXISTS (SELECT FROM pg_attribute b WHERE b.attrelid = %(new)s::regclass AND b.attname = a.attname))"
        " SELECT attname, privilege_type, is_grantable, CASE WHEN grantee <> 0 THEN pg_get_userbyid(grantee) END"
        " FROM granted WHERE grantee <> (SELECT relowner FROM pg_class WHERE oid = %(old)s::regclass)",
        {"old": old_text, "new": new_text},
    ).fetchall()
    statements = []
    for column, privilege, grantable, grantee in grants:
        statements.append(
            sql.SQL("GRANT {}{} ON {} TO {}{}").format(
                sql.SQL(privilege),
                sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL(""),
                new_table,
                sql.Identifier(grantee) if grantee else sql.SQL("PUBLIC"),
                sql.SQL(" WITH GRANT OPTION" if grantable else ""),
            )
        )
    owner = one(connection, "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s::regclass", [old_text])
    assert owner is not None  # the table is locked, so it still exists
    return [*statements, sql.SQL("ALTER TABLE {} OWNER TO {}").format(new_table, sql.Identifier(owner[0]))]
