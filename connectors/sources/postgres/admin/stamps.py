"""Defines an optional trigger for PostgreSQL. It writes stamps into the log, so that applications need not write them.

A stamp says who makes the changes of a transaction. Before the first change in a transaction, the trigger writes the
stamp that is in the setting `changelog.provenance`. It writes again before a later change if the setting has another
value by then. If the setting is empty, the trigger writes the name of the application and the role of the session.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from changelog.connectors.findings import Finding, ok, warn
from changelog.connectors.sources.postgres.admin.catalog import Table
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.session.quoting import printable
from changelog.connectors.terminal import safe
from changelog.envelope.stamp import CONTEXT_NBYTES_MAX, NBYTES_MAX, PREFIX, SESSION_CONTEXT, SESSION_PREFIX

NAME = "changelog_stamp"
"""The name of the function, and of the trigger on each table."""

SETTING = "changelog.provenance"
"""The setting in which an application leaves the stamp of its transaction."""

_NBYTES_MAX = 2 * (NBYTES_MAX + CONTEXT_NBYTES_MAX)
"""If the setting has more bytes than this, the trigger ignores it. This is twice the size of the longest valid stamp.
"""

_NAMED_MAX = 20
"""A finding names at most this many tables without a trigger."""

# The message is emitted outside the block with the exception handler, because that block is a subtransaction. A message
# from a subtransaction could reach the service after the first row that the stamp is for.
_HEAD = f"""\
-- Run this as the owner of the tables. Each CREATE TRIGGER waits until no transaction writes to its table, and blocks
-- later writers meanwhile. To make it give up instead of waiting: SET lock_timeout = '2s'.
--
-- Before the first change of a transaction, the trigger writes a message into the log: the stamp in the setting
-- {SETTING} or, without one, the names of the application and the role. If this is impossible, for example
-- because the role may not write messages, the trigger goes on without it: it never makes a statement fail.
CREATE OR REPLACE FUNCTION {NAME}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stamp text;
    before text;  -- of the last message: the transaction id, a letter and the stamp
    mark text;    -- the same, of the message that this statement needs
    prefix text := '{PREFIX}';
    content bytea;
BEGIN
    BEGIN
        stamp := nullif(current_setting('{SETTING}', true), '');
        before := coalesce(current_setting('changelog.stamped', true), '');
        mark := pg_current_xact_id()::text;
        IF octet_length(stamp) <= {_NBYTES_MAX} THEN
            mark := mark || ' a' || stamp;
        ELSE
            stamp := json_build_object(
                'serviceName', coalesce(nullif(current_setting('application_name'), ''), session_user),
                'context', json_build_object(
                    '{SESSION_CONTEXT}',
                    json_build_object('user', session_user, 'application', current_setting('application_name'))
                )
            );
            -- If the application writes stamps as messages of its own, this one must not replace them.
            IF NOT starts_with(before, mark || ' a') THEN
                prefix := '{SESSION_PREFIX}';
            END IF;
            mark := mark || ' s' || stamp;
        END IF;
        IF before <> mark AND has_function_privilege(coalesce(
            to_regprocedure('pg_logical_emit_message(boolean, text, bytea, boolean)'),
            to_regprocedure('pg_logical_emit_message(boolean, text, bytea)')
        ), 'EXECUTE') THEN
            -- A rollback to a savepoint takes back this mark together with the message.
            PERFORM set_config('changelog.stamped', mark, true);
            content := convert_to(stamp, 'UTF8');
        END IF;
    EXCEPTION WHEN OTHERS THEN
        content := NULL;
    END;
    IF content IS NOT NULL THEN
        PERFORM pg_logical_emit_message(true, prefix, content);
    END IF;
    RETURN NULL;
END $$;
"""

_TRIGGER = """\
CREATE OR REPLACE TRIGGER {name} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {name}();
"""

# A statement that names a partition fires only the triggers of that partition, so each level needs its own trigger. The
# bits of tgtype are TRUNCATE, UPDATE, DELETE, INSERT, BEFORE and ROW, from 32 down to 1.
_RELATIONS = """
SELECT n.nspname, c.relname, EXISTS (
    SELECT FROM pg_trigger AS g
    WHERE g.tgrelid = c.oid AND g.tgname = %s AND g.tgenabled IN ('O', 'A') AND g.tgtype = 62
)
FROM (
    SELECT u.oid FROM unnest(%s::int8[]::oid[]) AS u(oid)
    UNION SELECT relid::oid FROM unnest(%s::int8[]::oid[]) AS u(oid), pg_partition_tree(u.oid)
) AS t
JOIN pg_class AS c ON c.oid = t.oid AND c.relkind IN ('r', 'p')
JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedTable:
    """A table or partition; `stamped` says that it has the trigger and that the trigger is enabled."""

    schema: str
    name: str
    stamped: bool


def read(connection: psycopg.Connection[Any], tables: Sequence[Table]) -> list[StampedTable]:
    """Reads which of the tables and their partitions, at all levels, have the trigger. Sorted by schema and name."""
    oids = [table.oid for table in tables]
    with translated("reading the triggers of tables"):
        rows = connection.execute(_RELATIONS, [NAME, oids, oids]).fetchall()
    return [StampedTable(schema=schema, name=name, stamped=stamped) for schema, name, stamped in rows]


def script(tables: Collection[StampedTable]) -> str:
    """Returns the SQL that creates the function, and the trigger of each table. The SQL may be run repeatedly."""
    return "".join([_HEAD, *_triggers(tables)])


def _triggers(tables: Collection[StampedTable]) -> Iterator[str]:
    for table in tables:
        yield _TRIGGER.format(name=NAME, table=printable(table.schema, table.name))


def finding(tables: Collection[StampedTable]) -> Finding:
    """Returns a finding about the tables without the trigger.

    It is a warning only if some tables have the trigger and others do not.
    """
    without = [safe(f"{table.schema}.{table.name}") for table in tables if not table.stamped]
    if not without:
        return ok("stamps", "each table has the trigger that stamps changes" if tables else "there are no tables")
    if len(without) == len(tables):
        return ok("stamps", "no table has the trigger that stamps changes: `changelog init --stamps` prints it")
    further = f" and {len(without) - _NAMED_MAX} more" if len(without) > _NAMED_MAX else ""
    message = f"these tables lack the trigger that stamps changes: {', '.join(without[:_NAMED_MAX])}{further}"
    return warn("stamps", message, "run what `changelog init --stamps` prints")
