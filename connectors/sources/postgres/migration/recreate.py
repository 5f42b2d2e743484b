"""Reads a database's definitions from its catalogue and recreates them in an empty database, to rehearse a migration.

Rows, owners, grants, policies, rules, aggregates and comments are not copied. Reading the definitions takes no lock and
needs no right except the right to connect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from changelog.connectors.sources.migrations import LostDefinition
from changelog.connectors.sources.postgres.session.connection import Connection, explain, translated

_SCHEMAS_PUBLISHED = 150000


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One object of the database: its name for people (`what`), and the SQL `statement` that creates it.

    `instead` is SQL that creates a substitute if the statement fails.
    """

    what: str
    statement: str
    instead: str | None = None


def definitions(connection: Connection, publication: str) -> list[Definition]:
    """Returns all definitions that `recreate` needs, roughly in an order in which they can be created.

    The only publication among them is `publication`. The connection's search_path must be pg_catalog, so that the
    server prints every name with its schema.
    """
    with translated("reading the definitions"):
        objects = [
            Definition(what=what, statement=statement, instead=instead)
            for query in _DEFINITIONS
            for what, statement, instead in connection.execute(query.encode()).fetchall()
        ]
        return [*objects, *_publication(connection, publication)]


def recreate(connection: Connection, objects: Sequence[Definition]) -> list[LostDefinition]:
    """Creates the objects, each as soon as its dependencies exist.

    Returns the objects that could not be created, and those for which only a substitute was created.
    """
    connection.execute("SET check_function_bodies = off; SET search_path = pg_catalog; SET client_min_messages = error")
    lost_definitions: list[LostDefinition] = []
    pending = list(objects)
    while pending:
        refusals = [
            (definition, why)
            for definition in pending
            if (why := _refused(connection, definition.statement)) is not None
        ]
        if len(refusals) == len(pending):
            refusals, replaced = _replace(connection, refusals)
            lost_definitions += replaced
            if not replaced:
                return lost_definitions + [
                    LostDefinition(what=definition.what, why=why, stands_in=False) for definition, why in refusals
                ]
        pending = [definition for definition, _ in refusals]
    return lost_definitions


def _replace(
    connection: Connection, refusals: Sequence[tuple[Definition, str]]
) -> tuple[list[tuple[Definition, str]], list[LostDefinition]]:
    """Creates substitutes; returns the definitions that have no substitute, and those that a substitute replaced."""
    rest, replaced = [], []
    for definition, why in refusals:
        if definition.instead is not None and _refused(connection, definition.instead) is None:
            replaced.append(LostDefinition(what=definition.what, why=why, stands_in=True))
        else:
            rest.append((definition, why))
    return rest, replaced


def _refused(connection: Connection, statement: str) -> str | None:
    """Runs a statement; returns the server's message if it fails, otherwise None."""
    try:
        connection.execute(statement.encode())
    except psycopg.errors.Error as error:
        if connection.closed:
            raise
        return explain(error.sqlstate, error.diag.message_primary or str(error), "recreating it").message
    return None


def _publication(connection: Connection, name: str) -> Iterator[Definition]:
    """Yields the definition of the publication, with its tables, schemas and options, if the publication exists."""
    row = connection.execute(_PUBLICATION.encode(), [name]).fetchone()
    if row is None:
        return
    all_tables, options, quoted = row
    parts = [text for (text,) in connection.execute(_PUBLICATION_TABLES.encode(), [name]).fetchall()]
    if connection.info.server_version >= _SCHEMAS_PUBLISHED:
        parts += [text for (text,) in connection.execute(_PUBLICATION_SCHEMAS.encode(), [name]).fetchall()]
    scope = "FOR ALL TABLES" if all_tables else f"FOR {', '.join(parts)}" if parts else ""
    yield Definition(what=f"publication {name}", statement=f"CREATE PUBLICATION {quoted} {scope} WITH ({options})")


_OURS = "n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'"

_NO_EXTENSION = "NOT EXISTS (SELECT FROM pg_depend AS e WHERE e.objid = {oid} AND e.deptype = 'e')"

_ROLES = """
SELECT 'role ' || rolname, format('CREATE ROLE %I', rolname), NULL
FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> 'postgres'
"""

_SCHEMAS = f"""
SELECT 'schema ' || nspname, format('CREATE SCHEMA %I', nspname), NULL
FROM pg_namespace AS n WHERE {_OURS} AND nspname <> 'public'
"""

# If the empty server lacks an extension, the substitute creates its types as domains over text, because values of these
# types are published as text. For the type hstore, this is only an approximation: its values are published as objects.
_EXTENSIONS = """
SELECT 'extension ' || x.extname, format('CREATE EXTENSION IF NOT EXISTS %I SCHEMA %I CASCADE', x.extname, n.nspname), (
    SELECT string_agg(format('CREATE DOMAIN %I.%I AS text', m.nspname, t.typname), '; ')
    FROM pg_depend AS d JOIN pg_type AS t ON t.oid = d.objid JOIN pg_namespace AS m ON m.oid = t.typnamespace
    WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid AND d.classid = 'pg_type'::regclass
        AND t.typtype = 'b' AND t.typelem = 0
)
FROM pg_extension AS x JOIN pg_namespace AS n ON n.oid = x.extnamespace WHERE x.extname <> 'plpgsql'
"""

_TYPES = f"""
SELECT 'type ' || format_type(t.oid, NULL), CASE t.typtype
    WHEN 'e' THEN format('CREATE TYPE %I.%I AS ENUM (%s)', n.nspname, t.typname, (
        SELECT string_agg(quote_literal(enumlabel), ', ' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid
    ))
    WHEN 'd' THEN format('CREATE DOMAIN %I.%I AS %s', n.nspname, t.typname, format_type(t.typbasetype, t.typtypmod))
        || coalesce(' DEFAULT ' || pg_get_expr(t.typdefaultbin, 0), '')
        || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
        || coalesce((
            SELECT string_agg(format(' CONSTRAINT %I %s', k.conname, pg_get_constraintdef(k.oid)), '')
            FROM pg_constraint AS k WHERE k.contypid = t.oid AND k.contype = 'c'
        ), '')
    WHEN 'c' THEN format('CREATE TYPE %I.%I AS (%s)', n.nspname, t.typname, (
        SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
    ))
    ELSE format('CREATE TYPE %I.%I AS RANGE (SUBTYPE = %s, MULTIRANGE_TYPE_NAME = %s)', n.nspname, t.typname,
        format_type(r.rngsubtype, NULL), format_type(r.rngmultitypid, NULL))
END, NULL
FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace
LEFT JOIN pg_range AS r ON r.rngtypid = t.oid
WHERE {_OURS} AND {_NO_EXTENSION.format(oid="t.oid")} AND (
    t.typtype IN ('e', 'd', 'r') OR t.typtype = 'c' AND (SELECT relkind FROM pg_class WHERE oid = t.typrelid) = 'c'
)
ORDER BY t.oid
"""

_FUNCTIONS = f"""
SELECT 'function ' || f.oid::regprocedure, pg_get_functiondef(f.oid), NULL
FROM pg_proc AS f JOIN pg_namespace AS n ON n.oid = f.pronamespace
WHERE {_OURS} AND f.prokind <> 'a' AND {_NO_EXTENSION.format(oid="f.oid")}
ORDER BY f.oid
"""

_SEQUENCES = f"""
SELECT 'sequence ' || c.oid::regclass,
    format('CREATE SEQUENCE %s AS %s', c.oid::regclass, format_type(s.seqtypid, NULL)), NULL
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_sequence AS s ON s.seqrelid = c.oid
WHERE {_OURS} AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = c.oid AND d.deptype IN ('i', 'e'))
"""

# Defaults are created separately, because the functions that they call may be missing. The substitute of a table leaves
# out the modifiers of extensions' types, such as the `(3)` of `vector(3)`: a domain over text may have replaced the
# type, and a domain takes no modifier.
_TABLES = f"""
SELECT 'table ' || c.oid::regclass, s.head || s.columns || s.tail, s.head || s.plain || s.tail
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT format('CREATE %sTABLE %s (', CASE c.relpersistence WHEN 'u' THEN 'UNLOGGED ' ELSE '' END, c.oid::regclass)
            AS head,
        coalesce(string_agg(a.name || format_type(a.atttypid, a.atttypmod) || a.rest, ', ' ORDER BY a.attnum), '')
            AS columns,
        coalesce(string_agg(a.name || format_type(
            a.atttypid,
            CASE WHEN EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = a.atttypid AND d.deptype = 'e') THEN -1
            ELSE a.atttypmod END
        ) || a.rest, ', ' ORDER BY a.attnum), '') AS plain,
        ')' || CASE WHEN c.relispartition THEN '' ELSE coalesce((
            SELECT ' INHERITS (' || string_agg(i.inhparent::regclass::text, ', ' ORDER BY i.inhseqno) || ')'
            FROM pg_inherits AS i WHERE i.inhrelid = c.oid
        ), '') END || coalesce(' PARTITION BY ' || pg_get_partkeydef(c.oid), '') AS tail
    FROM (
        SELECT a.attnum, a.atttypid, a.atttypmod, format('%I ', a.attname) AS name,
            CASE WHEN a.attgenerated = '' THEN '' ELSE format(
                ' GENERATED ALWAYS AS (%s) %s', pg_get_expr(d.adbin, d.adrelid),
                CASE a.attgenerated WHEN 's' THEN 'STORED' ELSE 'VIRTUAL' END
            ) END
            || CASE WHEN c.relispartition THEN '' WHEN a.attidentity = 'a' THEN ' GENERATED ALWAYS AS IDENTITY'
                WHEN a.attidentity = 'd' THEN ' GENERATED BY DEFAULT AS IDENTITY' ELSE '' END
            || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS rest
        FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS a
) AS s
WHERE {_OURS} AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {_NO_EXTENSION.format(oid="c.oid")}
ORDER BY c.oid
"""

_PARTITIONS = f"""
SELECT 'partition ' || c.oid::regclass, format(
    'ALTER TABLE %s ATTACH PARTITION %s %s', i.inhparent::regclass, c.oid::regclass, pg_get_expr(c.relpartbound, c.oid)
), NULL
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE {_OURS} AND c.relispartition AND c.relkind IN ('r', 'p')
ORDER BY c.oid
"""

_DEFAULTS = f"""
SELECT format('default of %s.%s', c.oid::regclass, a.attname), format(
    'ALTER TABLE ONLY %s ALTER COLUMN %I SET DEFAULT %s', c.oid::regclass, a.attname, pg_get_expr(d.adbin, d.adrelid)
), NULL
FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = ''
JOIN pg_class AS c ON c.oid = d.adrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE {_OURS} AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {_NO_EXTENSION.format(oid="c.oid")}
UNION ALL
SELECT 'owner of sequence ' || d.objid::regclass, format(
    'ALTER SEQUENCE %s OWNED BY %s.%I', d.objid::regclass, d.refobjid::regclass, a.attname
), NULL
FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.objid AND c.relkind = 'S'
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE {_OURS} AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'a'
"""

_CONSTRAINTS = f"""
SELECT format('constraint %s of %s', k.conname, c.oid::regclass),
    format('ALTER TABLE %s ADD CONSTRAINT %I %s', c.oid::regclass, k.conname, pg_get_constraintdef(k.oid)), NULL
FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE {_OURS} AND k.contype IN ('p', 'u', 'x', 'c', 'f') AND k.conparentid = 0 AND k.conislocal
    AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {_NO_EXTENSION.format(oid="c.oid")}
ORDER BY k.contype = 'f', k.contype <> 'p', k.oid
"""

_INDEXES = f"""
SELECT 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid), NULL
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE {_OURS} AND i.indisvalid AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
    AND {_NO_EXTENSION.format(oid="c.oid")}
    AND NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
    AND NOT EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhrelid = i.indexrelid)
"""

_IDENTITIES = f"""
SELECT 'replica identity of ' || c.oid::regclass, format('ALTER TABLE ONLY %s REPLICA IDENTITY %s', c.oid::regclass,
    CASE c.relreplident WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' ELSE 'USING INDEX ' || (
        SELECT quote_ident(x.relname) FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisreplident
    ) END
), NULL
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE {_OURS} AND c.relkind IN ('r', 'p') AND c.relreplident <> 'd'
"""

_VIEWS = f"""
SELECT 'view ' || c.oid::regclass, format(
    CASE c.relkind WHEN 'v' THEN 'CREATE VIEW %s AS %s' ELSE 'CREATE MATERIALIZED VIEW %s AS %s WITH NO DATA' END,
    c.oid::regclass, rtrim(pg_get_viewdef(c.oid), ';')
), NULL
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE {_OURS} AND c.relkind IN ('v', 'm') AND {_NO_EXTENSION.format(oid="c.oid")}
ORDER BY c.oid
"""

_TRIGGERS = f"""
SELECT format('trigger %s of %s', g.tgname, c.oid::regclass), pg_get_triggerdef(g.oid), NULL
FROM pg_trigger AS g JOIN pg_class AS c ON c.oid = g.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE {_OURS} AND NOT g.tgisinternal AND g.tgparentid = 0
"""

_DEFINITIONS = (
    _ROLES,
    _SCHEMAS,
    _EXTENSIONS,
    _TYPES,
    _FUNCTIONS,
    _SEQUENCES,
    _TABLES,
    _PARTITIONS,
    _DEFAULTS,
    _CONSTRAINTS,
    _INDEXES,
    _IDENTITIES,
    _VIEWS,
    _TRIGGERS,
)

# These queries read some columns from the row as JSON (to_jsonb), because older servers lack the columns: a query that
# named them would fail there.
_PUBLICATION = """
SELECT puballtables, concat_ws(
    ', ',
    format('publish = %%L', concat_ws(
        ', ', CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
        CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END
    )),
    format('publish_via_partition_root = %%s', pubviaroot::text),
    CASE WHEN to_jsonb(p) ->> 'pubgencols' = 's' THEN 'publish_generated_columns = stored' END
), quote_ident(pubname)
FROM pg_publication AS p WHERE pubname = %s
"""

_PUBLICATION_TABLES = """
SELECT format('TABLE ONLY %%s', r.prrelid::regclass) || CASE WHEN to_jsonb(r) ->> 'prattrs' IS NULL THEN '' ELSE (
        SELECT ' (' || string_agg(quote_ident(name), ', ') || ')'
        FROM jsonb_array_elements_text(to_jsonb(t) -> 'attnames') AS name
    ) END || coalesce(' WHERE (' || (to_jsonb(t) ->> 'rowfilter') || ')', '')
FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
JOIN pg_class AS c ON c.oid = r.prrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_publication_tables AS t
    ON t.pubname = p.pubname AND t.schemaname = n.nspname AND t.tablename = c.relname
WHERE p.pubname = %s
"""

_PUBLICATION_SCHEMAS = """
SELECT format('TABLES IN SCHEMA %%I', n.nspname)
FROM pg_publication AS p JOIN pg_publication_namespace AS s ON s.pnpubid = p.oid
JOIN pg_namespace AS n ON n.oid = s.pnnspid
WHERE p.pubname = %s
"""
