"""Checks that the publication sends what the entities need, or that it can be created."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.sources.postgres.admin.catalog import Table
from changelog.connectors.sources.postgres.admin.check.finding import mend
from changelog.connectors.sources.postgres.admin.check.rights import RelationRights
from changelog.connectors.sources.postgres.admin.check.server import ROW_FILTERS, ServerFacts
from changelog.connectors.sources.postgres.admin.slot import OPERATIONS, publication_sql, published_as
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

EntityTables = Sequence[tuple[Entity, Table]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table in a publication. `filter` is its row filter, as the server prints it; `filter_columns` are the columns
    in the filter.
    """

    schema: str
    name: str
    column_list: bool
    filter: str | None
    filter_columns: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationState:
    """The state of an existing publication.

    `via_root` says that the publication sends partitions under the name of their partitioned table. `all_operations`
    says that it sends all kinds of change, and `generated` that it sends stored generated columns.
    """

    via_root: bool
    all_operations: bool
    generated: bool
    tables: Mapping[tuple[str, str], PublishedTable]


# These queries read some columns through to_jsonb, because older servers lack the columns: a query that named them
# would fail there.
_PUBLICATION = """
SELECT pubviaroot, pubinsert AND pubupdate AND pubdelete AND pubtruncate,
    coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's'
FROM pg_publication AS p WHERE pubname = %s
"""

_TABLES = r"""
SELECT t.schemaname AS schema, t.tablename AS name, to_jsonb(r) ->> 'prattrs' IS NOT NULL AS column_list,
    to_jsonb(t) ->> 'rowfilter' AS filter,
    ARRAY(
        SELECT a.attname::text FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum IN (
            SELECT found[1]::int FROM regexp_matches(to_jsonb(r) ->> 'prqual', ':varattno (\d+)', 'g') AS found
        )
    ) AS filter_columns
FROM pg_publication_tables AS t
JOIN pg_publication AS p ON p.pubname = t.pubname
JOIN pg_namespace AS n ON n.nspname = t.schemaname
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE t.pubname = %s
"""


def read(connection: psycopg.Connection[Any], name: str) -> PublicationState | None:
    """Returns the present state of the publication `name`; None if it does not exist."""
    row = connection.execute(_PUBLICATION, [name]).fetchone()
    if row is None:
        return None
    via_root, all_operations, generated = row
    with connection.cursor(row_factory=class_row(PublishedTable)) as cursor:
        tables = {(table.schema, table.name): table for table in cursor.execute(_TABLES, [name])}
    return PublicationState(via_root=via_root, all_operations=all_operations, generated=generated, tables=tables)


def findings(
    connection: psycopg.Connection[Any],
    publication: PublicationState | None,
    facts: ServerFacts,
    name: str,
    entity_tables: EntityTables,
    relations: Mapping[int, RelationRights],
) -> Iterator[Finding]:
    """Yields a finding for each thing that the service needs and the publication `name` does not send. If nothing is
    missing, yields one finding that says so.

    If there is no publication yet (`publication` is None), yields one finding, which says whether our role can create
    it.
    """
    if publication is None:
        yield _absent(connection, facts, name, entity_tables, relations)
        return
    problems = [
        *_options(name, publication, entity_tables),
        *(
            problem
            for entity, table in entity_tables
            for problem in _table(connection, name, publication, entity, table)
        ),
    ]
    yield from problems or [ok("publication", f"publication {name} has every configured table")]


def _absent(
    connection: psycopg.Connection[Any],
    facts: ServerFacts,
    name: str,
    entity_tables: EntityTables,
    relations: Mapping[int, RelationRights],
) -> Finding:
    foreign_owners = sorted({relation.owner for relation in relations.values() if not relation.owned})
    if facts.may_create and not foreign_owners:
        entities = [entity for entity, _ in entity_tables]
        create = publication_sql(name, entities, server_version=connection.info.server_version)
        message = f"publication {name} does not exist yet; `changelog run` or --fix creates it"
        refused = facts.version < ROW_FILTERS and any(entity.where for entity in entities)  # see `tables.findings`
        return ok("publication", message, fix=(create,) if entities and not refused else ())
    if foreign_owners:
        why = f"the tables have other owners: {', '.join(foreign_owners)}"
    else:
        why = f"the role lacks CREATE on database {facts.database}"
    return fail(
        "publication",
        f"there is no publication {name}, and role {facts.role} may not create it: {why}",
        "run the SQL that `changelog init --grants` prints, then `changelog check --fix` as the setup role",
    )


def _options(name: str, publication: PublicationState, entity_tables: EntityTables) -> Iterator[Finding]:
    unsent_tables = [
        f"{table.schema}.{table.name}"
        for _, table in entity_tables
        if any(column.generated and column.published for column in table.columns)
    ]
    for is_wrong, message, setting in (
        (not publication.via_root, "publishes partitions under their own names", "publish_via_partition_root = true"),
        (not publication.all_operations, "leaves out some kinds of change", f"publish = '{OPERATIONS}'"),
        (
            not publication.generated and unsent_tables,
            f"leaves out the generated columns of {', '.join(unsent_tables)}",
            "publish_generated_columns = stored",
        ),
    ):
        if is_wrong:
            yield mend(
                "publication", f"publication {name} {message}", f"ALTER PUBLICATION {identifier(name)} SET ({setting})"
            )


def _table(
    connection: psycopg.Connection[Any], name: str, publication: PublicationState, entity: Entity, table: Table
) -> Iterator[Finding]:
    text = ".".join(entity.table)
    published_table = publication.tables.get(entity.table)
    if table.kind == "p" and not publication.via_root:
        return  # the publication lists the table's partitions instead of the table, until `via_root` is fixed
    if published_table is None:
        add = f"ALTER PUBLICATION {identifier(name)} ADD TABLE {published_as(entity)}"
        yield mend("publication", f"publication {name} lacks table {text}", add)
    elif published_table.column_list:
        yield fail(
            "publication",
            f"publication {name} has a column list on table {text}",
            "remove the list and use [entities.X] exclude_columns instead",
        )
    else:
        yield from _row_filter(connection, name, published_table, entity)


def _row_filter(
    connection: psycopg.Connection[Any], name: str, published_table: PublishedTable, entity: Entity
) -> Iterator[Finding]:
    text = f"the row filter of table {'.'.join(entity.table)}"
    sent = f"the publication's filter is {' '.join((published_table.filter or 'empty').split())}"
    hint = f"{sent}; set the same filter in both places"
    try:
        is_same = _is_same(connection, published_table.filter, entity)
    except ChangelogError as error:
        if error.kind is Kind.PRECONDITION:
            yield fail("publication", error.message, hint)
        elif error.kind is not Kind.ACCESS:  # a missing right to read the table is a finding of `rights`
            raise
        return
    if not is_same:
        message = f"publication {name} and the setting `where` of [entities.{entity.name}] disagree on {text}"
        yield fail("publication", message, hint)


def _is_same(connection: psycopg.Connection[Any], rendered: str | None, entity: Entity) -> bool:
    """Returns whether the publication's filter `rendered` and the entity's `where` mean the same.

    The server parses both filters and prints them in its own form, and this function compares the printed texts. The
    server only plans the query, so the role needs no other right than to read the table.
    """
    if rendered is None or entity.where is None:
        return rendered == entity.where
    both = f"SELECT ({entity.where}), ({rendered}) FROM ONLY {identifier(*entity.table)}"
    with translated(f"comparing [entities.{entity.name}] where with the row filter of table {'.'.join(entity.table)}"):
        [[[plan]]] = connection.execute(f"EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) {both}".encode()).fetchall()
    return len(set(plan["Plan"]["Output"])) == 1
