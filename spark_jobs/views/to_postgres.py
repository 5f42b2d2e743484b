"""Writes a view as a table of PostgreSQL: Spark's tasks fill a new table, which then replaces the old one at once.

Readers see either the whole old table or the whole new one. The table's comment holds the view's record; a table
without such a comment is never replaced. One run at a time writes a table; the next run drops what a killed one left.
"""

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
"""The beginning of the comment on a table that this job wrote; the view's record follows, as JSON."""

NAME_BYTES_MAX: Final = 50
LOCK_CLASS: Final = 0x76696577  # of advisory locks; `view` in ASCII
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
    """The table to write; `schema` None means the first schema of the session's search path."""

    dsn: str = field(repr=False)
    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def parse(text: str) -> tuple[str | None, str]:
    """Schema and name of `[SCHEMA.]TABLE`, exactly as written. Raises ChangelogError (USAGE)."""
    schema, _, name = text.rpartition(".")
    if not name or "." in schema or (schema == "") != ("." not in text) or len(name.encode()) > NAME_BYTES_MAX:
        raise ChangelogError(
            Kind.USAGE, f"{text!r} is not a table name", hint=f"[SCHEMA.]TABLE, of at most {NAME_BYTES_MAX} bytes"
        )
    return schema or None, name


def write(states: "DataFrame", shape: ViewColumns, view: View, table: Target) -> View:
    """Replaces the table's contents with `states`, and returns the record that its comment now holds.

    1. The name is claimed for this run; a name that belongs to anything but a view of this job is refused.
    2. A new table is created beside it, and what a killed run left is dropped.
    3. Tasks copy their rows, each in one transaction that also notes the task: a repeated task copies nothing twice.
    4. In one transaction the old table is dropped, and the new one takes its name, owner and grants.

    Raises ChangelogError: USAGE for a name that is taken, CONNECTION and ACCESS if the server refuses, IN_USE while
    another run writes the table, PRECONDITION if something depends on the old table.
    """
    with connected(table.dsn, f"writing {table}") as connection:
        place = _claim(connection, table)  # 1
        beside, parts = _make_beside(connection, place, shape)  # 2
        copy = copier(table.dsn, beside.as_string(connection), parts.as_string(connection), shape)
        columns = [f"c{number}" for number, _ in enumerate(shape.names())]  # mapInArrow refuses names with a backtick
        numbered = states.select(*shape.names()).toDF(*columns)
        counts = numbered.mapInArrow(copy, COPIED).groupBy().sum().collect()[0]  # 3
        rows, out_of_range, unavailable = (int(count or 0) for count in counts)
        new_view = View(
            format=FORMAT,
            definition=view.definition,
            position=view.position,
            rows=rows,
            out_of_range=out_of_range,
            unavailable=unavailable,
        )
        _finish(connection, beside, parts)
        _swap(connection, place, beside, new_view)  # 4
        return new_view


@dataclass(frozen=True, slots=True)
class _Place:
    schema: str
    name: str

    def named(self, suffix: str = "") -> sql.Identifier:
        return sql.Identifier(self.schema, self.name + suffix)


def _claim(connection: Connection, table: Target) -> _Place:
    row = connection.execute("SELECT coalesce(%s, current_schema())", [table.schema]).fetchone()
    schema = row[0] if row else None
    if schema is None or not _one(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]):
        message = f"the database has no schema {schema}" if schema else f"no schema to create {table} in"
        raise ChangelogError(Kind.USAGE, message, hint="create the schema, or use another --to")
    locked = _one(connection, "SELECT pg_try_advisory_lock(%s, hashtext(%s))", [LOCK_CLASS, f"{schema}.{table.name}"])
    if not (locked and locked[0]):
        raise ChangelogError(Kind.IN_USE, f"another run writes {table}", hint="wait until it ends")
    place = _Place(schema, table.name)
    _refuse_taken(connection, place)
    return place


def _one(connection: Connection, query: str, values: Sequence[object]) -> tuple[Any, ...] | None:
    return connection.execute(query.encode(), values).fetchone()


def _refuse_taken(connection: Connection, place: _Place) -> None:
    relation = _one(
        connection,
        "SELECT relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s",
        [place.schema, place.name],
    )
    if relation is None:
        return
    kind, comment = relation
    if kind != _TABLE or not (comment or "").startswith(MARK):
        what = _KINDS.get(kind, "a table that this job did not make")
        raise ChangelogError(
            Kind.USAGE,
            f"{place.schema}.{place.name} is {what}",
            hint="name another table: this job replaces only tables that it wrote",
        )


def _make_beside(connection: Connection, place: _Place, shape: ViewColumns) -> tuple[sql.Identifier, sql.Identifier]:
    beside, parts = place.named("__new"), place.named("__new_parts")
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in shape.declared()
    )
    with connection.transaction():
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}, {}").format(beside, parts))
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(beside, columns))
        connection.execute(sql.SQL("CREATE TABLE {} (part int PRIMARY KEY, counts bigint[] NOT NULL)").format(parts))
    return beside, parts


def _finish(connection: Connection, beside: sql.Identifier, parts: sql.Identifier) -> None:
    connection.execute(sql.SQL("DROP TABLE {}").format(parts))
    connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (_key)").format(beside))
    connection.execute(sql.SQL("ANALYZE {}").format(beside))


def _swap(connection: Connection, place: _Place, beside: sql.Identifier, view: View) -> None:
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
        _refuse_taken(connection, place)
        if _one(connection, "SELECT to_regclass(%s)", [place.named().as_string(connection)]) != (None,):
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(place.named()))
            for statement in _rights(connection, place, beside):
                connection.execute(statement)
            connection.execute(sql.SQL("DROP TABLE {}").format(place.named()))
        connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(beside, sql.Identifier(place.name)))
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(place.named(), sql.Literal(MARK + record)))


def _rights(connection: Connection, place: _Place, beside: sql.Identifier) -> list[sql.Composed]:
    """Statements that give `beside` the table's grants, those on columns that exist in both, and its owner."""
    old_table, new_table = place.named().as_string(connection), beside.as_string(connection)
    grants = connection.execute(
        "WITH granted AS ("
        " SELECT null::name AS attname, (aclexplode(relacl)).* FROM pg_class WHERE oid = %(old)s::regclass"
        " UNION ALL SELECT attname, (aclexplode(attacl)).* FROM pg_attribute a WHERE attrelid = %(old)s::regclass"
        " AND EXISTS (SELECT FROM pg_attribute b WHERE b.attrelid = %(new)s::regclass AND b.attname = a.attname))"
        " SELECT attname, privilege_type, is_grantable, CASE WHEN grantee <> 0 THEN pg_get_userbyid(grantee) END"
        " FROM granted WHERE grantee <> (SELECT relowner FROM pg_class WHERE oid = %(old)s::regclass)",
        {"old": old_table, "new": new_table},
    ).fetchall()
    statements = []
    for column, privilege, grantable, grantee in grants:
        statements.append(
            sql.SQL("GRANT {}{} ON {} TO {}{}").format(
                sql.SQL(privilege),
                sql.SQL(" ({})").format(sql.Identifier(column)) if column else sql.SQL(""),
                beside,
                sql.Identifier(grantee) if grantee else sql.SQL("PUBLIC"),
                sql.SQL(" WITH GRANT OPTION" if grantable else ""),
            )
        )
    owner = _one(connection, "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s::regclass", [old_table])
    assert owner is not None  # the table is locked
    return [*statements, sql.SQL("ALTER TABLE {} OWNER TO {}").format(beside, sql.Identifier(owner[0]))]
