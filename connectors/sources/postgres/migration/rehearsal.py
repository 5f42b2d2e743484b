"""Runs statements in a transaction that is rolled back, and reads the catalogue after each of them."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import errors, pq

from changelog.connectors.sources.migrations import Statement
from changelog.connectors.sources.postgres.session.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnState:
    """A column in the catalogue. A column that is renamed keeps its `number`.

    `type` includes the modifiers. `holds` says that even rows from before the column was added have a value in it: the
    column's default or a generated value.
    """

    number: int
    name: str
    type: str
    not_null: bool
    default: str | None
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table in the catalogue.

    `keys` describes its unique indexes, and `identities` the replica identities of the table and its partitions.
    `partitions` maps the OIDs of its partitions to their names. `files` maps the OID of each table or partition that
    stores rows to its file number; a rewrite of the rows changes this number. `access` is a string that changes with
    the owner, the rights, the row security or the persistence of the table.
    """

    oid: int
    schema: str
    name: str
    published: bool
    columns: Mapping[int, ColumnState]
    keys: tuple[str, ...]
    identities: tuple[str, ...]
    partitions: Mapping[str, str]
    files: Mapping[str, int]
    access: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalScope:
    """Which tables to read after each statement: those with the OIDs `tables`, and all tables that are not in `known`.

    A table counts as published if it is in `publication`.
    """

    tables: Collection[int]
    known: Collection[int]
    publication: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedStep:
    """A statement, and the state of the tables after it, by OID. A dropped table is left out."""

    statement: Statement
    states: Mapping[int, TableState]


class RehearsalError(Exception):
    """The server refused a statement; `error` says why."""

    def __init__(self, statement: Statement, error: psycopg.Error) -> None:
        super().__init__()
        self.statement, self.error = statement, error


def rehearse(
    connection: Connection,
    statements: Sequence[Statement],
    scope: RehearsalScope,
    *,
    lock_timeout_s: float,
    statement_timeout_s: float,
) -> Iterator[RehearsedStep]:
    """Runs the statements one by one in the open transaction, and yields the state of the tables after each.

    Raises RehearsalError for the first statement that fails. Each statement is sent to the server separately, so the
    server rejects a text that contains two statements. The timeouts are set again before each statement, so a script
    cannot change them.
    """
    bounds = (
        f"SET LOCAL lock_timeout = {round(lock_timeout_s * 1000)};"
        f" SET LOCAL statement_timeout = {round(statement_timeout_s * 1000)}"
    )
    for statement in statements:
        try:
            connection.execute(bounds.encode())
            _run(connection.pgconn, statement)
            states = read_states(connection, scope)
        except psycopg.Error as error:
            raise RehearsalError(statement, error) from error
        yield RehearsedStep(statement=statement, states=states)


def _run(link: pq.abc.PGconn, statement: Statement) -> None:
    result = link.exec_params(statement.text.encode(), [])
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY):
        raise errors.error_from_result(result, encoding="utf-8")
    if link.transaction_status != pq.TransactionStatus.INTRANS:
        raise errors.InvalidTransactionTermination("the statement ended the transaction of the rehearsal")


@contextlib.contextmanager
def reading_catalogue(connection: Connection) -> Iterator[None]:
    """Lets the block read the catalogue inside the transaction, with our own role and settings.

    After the block, the role and the settings of the script apply again.
    """
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL SESSION AUTHORIZATION DEFAULT; SET LOCAL ROLE NONE")
        connection.execute("SET LOCAL search_path = pg_catalog; SET LOCAL quote_all_identifiers = off")
        yield


def read_states(connection: Connection, scope: RehearsalScope) -> dict[int, TableState]:
    """Reads the present state of the tables; returns it by OID."""
    with reading_catalogue(connection):
        parameters = {"name": scope.publication, "tables": list(scope.tables), "known": list(scope.known)}
        rows = connection.execute(_STATES, parameters).fetchall()
    return {
        oid: TableState(
            oid=oid,
            schema=schema,
            name=name,
            published=published,
            columns={column["number"]: ColumnState(**column) for column in columns or ()},
            keys=tuple(keys),
            identities=tuple(identities),
            partitions=partitions or {},
            files=files or {},
            access=access,
        )
        for oid, schema, name, published, columns, keys, identities, partitions, files, access in rows
    }


def shared(connection: Connection, publication: str) -> str:
    """Returns a hash of the definitions that several tables share: the types and the publication."""
    with reading_catalogue(connection):
        row = connection.execute(_SHARED, {"name": publication}).fetchone()
    assert row is not None
    return str(row[0])


_STATES = """
WITH published AS MATERIALIZED (
    SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %(name)s
)
SELECT c.oid::int8, n.nspname::text, c.relname::text, p.tablename IS NOT NULL,
    (
        SELECT jsonb_agg(jsonb_build_object(
            'number', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
            'not_null', a.attnotnull,
            'default', CASE WHEN a.attidentity <> '' THEN 'identity' ELSE pg_get_expr(d.adbin, d.adrelid) END,
            'holds', a.attgenerated = 's' OR EXISTS (
                SELECT FROM pg_attribute AS l
                WHERE l.attrelid = ANY (t.oids) AND l.attname = a.attname AND l.atthasmissing
            )
        ))
        FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ),
    ARRAY(
        SELECT CASE WHEN i.indisprimary THEN 'PRIMARY KEY' ELSE 'UNIQUE' END || ' (' || (
            SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', ' ORDER BY k)
            FROM generate_series(1, i.indnkeyatts) AS k
        ) || ')' || coalesce(' WHERE ' || pg_get_expr(i.indpred, i.indrelid), '')
        || CASE WHEN i.indimmediate THEN '' ELSE ' DEFERRABLE' END
        FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
        ORDER BY 1
    ),
    ARRAY(
        SELECT DISTINCT CASE l.relreplident WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' ELSE coalesce(
            CASE l.relreplident WHEN 'd' THEN 'DEFAULT (' ELSE 'INDEX (' END || (
                SELECT string_agg(pg_get_indexdef(i.indexrelid, k, true), ', ' ORDER BY k)
                FROM pg_index AS i, generate_series(1, i.indnkeyatts) AS k
                WHERE i.indrelid = l.oid
                    AND CASE l.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END
            ) || ')', CASE l.relreplident WHEN 'd' THEN 'DEFAULT (no primary key)' ELSE 'INDEX (gone)' END
        ) END
        FROM pg_class AS l WHERE l.oid = ANY (t.oids)
        ORDER BY 1
    ),
    (
        SELECT jsonb_object_agg(l.oid, m.nspname || '.' || l.relname)
        FROM pg_class AS l JOIN pg_namespace AS m ON m.oid = l.relnamespace
        WHERE l.oid = ANY (t.oids) AND l.oid <> c.oid
    ),
    (
        SELECT jsonb_object_agg(l.oid, coalesce(pg_relation_filenode(l.oid), 0))
        FROM pg_class AS l WHERE l.oid = ANY (t.oids) AND l.relkind = 'r'
    ),
    concat_ws(' ', n.nspacl, (
        SELECT string_agg(concat_ws(' ', l.relowner, l.relacl, l.relrowsecurity, l.relpersistence), ' ' ORDER BY l.oid)
        FROM pg_class AS l WHERE l.oid = ANY (t.oids)
    ))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT array_agg(relid::oid) AS oids FROM (SELECT relid FROM pg_partition_tree(c.oid) UNION SELECT c.oid) AS found
) AS t
LEFT JOIN published AS p ON p.schemaname = n.nspname AND p.tablename = c.relname
WHERE c.relkind IN ('r', 'p') AND (c.oid = ANY (%(tables)s::int8[]::oid[]) OR (
    NOT c.oid = ANY (%(known)s::int8[]::oid[]) AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
))
"""

_SHARED = """
SELECT md5(concat_ws(
    ' ',
    (
        SELECT string_agg(concat_ws(' ', a.attrelid, a.attname, a.atttypid, a.atttypmod), ' ' ORDER BY attrelid, attnum)
        FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid AND c.relkind = 'c' WHERE NOT a.attisdropped
    ),
    (
        SELECT string_agg(concat_ws(' ', oid, typbasetype, typtypmod), ' ' ORDER BY oid)
        FROM pg_type WHERE typtype = 'd'
    ),
    (SELECT p::text FROM pg_publication AS p WHERE pubname = %(name)s),
    (
        SELECT string_agg(r::text, ' ' ORDER BY r.oid)
        FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid WHERE pubname = %(name)s
    )
))
"""
