"""Writes the SQL that creates a role for setting the service up, and a role with few rights for running it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from changelog.connectors.sources.postgres.admin.catalog import Table
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.session.quoting import printable
from changelog.connectors.terminal import safe

SETUP, RUN = "changelog_setup", "changelog_run"

_OWNERS = """
SELECT n.nspname, c.relname, pg_get_userbyid(c.relowner), r.rolsuper, c.relrowsecurity
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE c.oid = ANY (%s::int8[]::oid[]) ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTable:
    """A table or partition, with the facts that decide which rights our roles need for it."""

    schema: str
    name: str
    owner: str
    by_superuser: bool
    row_security: bool


def read_owned(connection: psycopg.Connection[Any], tables: Sequence[Table]) -> list[OwnedTable]:
    """Reads the tables and their partitions, sorted by name."""
    oids = [oid for table in tables for oid in (table.oid, *(leaf.oid for leaf in table.leaves))]
    with translated("reading who owns the tables"):
        rows = connection.execute(_OWNERS, [oids]).fetchall()
    names = ("schema", "name", "owner", "by_superuser", "row_security")
    return [OwnedTable(**dict(zip(names, row, strict=True))) for row in rows]


def grants(owned: Sequence[OwnedTable], *, database: str) -> str:
    """Returns the SQL script for the administrator of `database`; the script sets no passwords."""
    return "\n".join([*_head(database), *_setup(owned, database), "", *_run(owned, database), ""])


def _head(database: str) -> Iterator[str]:
    yield f"-- Run this as a superuser in database {safe(database)}. It sets no passwords:"
    yield f"-- use \\password {SETUP} and \\password {RUN} in psql."
    yield ""


def _setup(owned: Sequence[OwnedTable], database: str) -> Iterator[str]:
    yield "-- The role for `changelog check --fix`, needed only when something is set up or changed. It creates"
    yield "-- the publication, which requires ownership of each table, and sets replica identities."
    yield f"CREATE ROLE {SETUP} LOGIN REPLICATION;"
    yield f"GRANT CONNECT, CREATE ON DATABASE {printable(database)} TO {SETUP};"
    for owner in sorted({table.owner for table in owned if not table.by_superuser}):
        yield f"GRANT {printable(owner)} TO {SETUP};"
    for owner in sorted({table.owner for table in owned if table.by_superuser}):
        yield f"-- The superuser {safe(owner)} owns some tables, and no role should join it: give them another owner,"
        yield f"-- or run `changelog check --fix` once as {safe(owner)}."
    yield from _read(owned, SETUP)


def _run(owned: Sequence[OwnedTable], database: str) -> Iterator[str]:
    yield "-- The role for `changelog run`. It reads the log and the tables, and writes messages into the log."
    yield f"CREATE ROLE {RUN} LOGIN REPLICATION;"
    yield f"GRANT CONNECT ON DATABASE {printable(database)} TO {RUN};"
    yield from _read(owned, RUN)
    if any(table.row_security for table in owned):
        yield f"ALTER ROLE {RUN} BYPASSRLS;  -- row security would hide rows from the changelog"


def _read(owned: Sequence[OwnedTable], role: str) -> Iterator[str]:
    for schema in sorted({table.schema for table in owned}):
        yield f"GRANT USAGE ON SCHEMA {printable(schema)} TO {role};"
    for table in owned:
        yield f"GRANT SELECT ON TABLE {printable(table.schema, table.name)} TO {role};"
