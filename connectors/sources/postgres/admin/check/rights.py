"""Checks what the role may do with tables and their partitions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from changelog.connectors.findings import Finding, fail
from changelog.connectors.sources.postgres.admin.catalog import Table
from changelog.connectors.sources.postgres.session.quoting import identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRights:
    """What our role may do with a table or a partition.

    - `logged`: its changes are in the database's log.
    - `owned`: our role has the rights of its owner.
    - `readable`: our role may read it. `reachable`: our role may use its schema.
    - `row_security`: policies can hide some of its rows from our role.
    """

    oid: int
    schema: str
    name: str
    logged: bool
    owned: bool
    owner: str
    readable: bool
    reachable: bool
    row_security: bool


_RELATIONS = """
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relpersistence = 'p' AS logged,
    pg_has_role(c.relowner, 'USAGE') AS owned, pg_get_userbyid(c.relowner) AS owner,
    has_table_privilege(c.oid, 'SELECT') AS readable, has_schema_privilege(n.oid, 'USAGE') AS reachable,
    row_security_active(c.oid) AS row_security
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::int8[]::oid[])
"""


def read(connection: psycopg.Connection[Any], tables: Sequence[Table]) -> dict[int, RelationRights]:
    """Reads what our role may do with the tables and their partitions; keyed by OID."""
    oids = [oid for table in tables for oid in (table.oid, *(leaf.oid for leaf in table.leaves))]
    with connection.cursor(row_factory=class_row(RelationRights)) as cursor:
        return {relation.oid: relation for relation in cursor.execute(_RELATIONS, [oids])}


def access(name: str, table: Table, relations: Mapping[int, RelationRights], role: str) -> Iterator[Finding]:
    """Yields a finding if our role cannot read all rows of entity `name`, or if the log lacks changes of these rows."""
    for oid in dict.fromkeys((table.oid, *(leaf.oid for leaf in table.leaves))):
        if oid in relations:
            yield from _access(name, relations[oid], role)


def _access(name: str, relation: RelationRights, role: str) -> Iterator[Finding]:
    text, quoted = f"{relation.schema}.{relation.name}", identifier(relation.schema, relation.name)
    if not relation.logged:
        yield fail(
            name, f"table {text} is unlogged, so the log has none of its changes", f"ALTER TABLE {quoted} SET LOGGED"
        )
    if not relation.reachable:
        grant = f"GRANT USAGE ON SCHEMA {identifier(relation.schema)} TO {identifier(role)}"
        yield fail(name, f"role {role} may not use schema {relation.schema}", grant)
    elif not relation.readable:
        yield fail(
            name, f"role {role} may not read table {text}", f"GRANT SELECT ON TABLE {quoted} TO {identifier(role)}"
        )
    elif relation.row_security:
        yield fail(
            name,
            f"row security hides rows of table {text} from role {role}",
            f"as a superuser: ALTER ROLE {identifier(role)} BYPASSRLS",
        )
