"""Defines an optional event trigger for PostgreSQL. It writes the names of some DDL statements into the database's log.

These statements, such as ALTER PUBLICATION, can keep changes of rows out of the log. The service notices these
statements by reading the catalogue every few seconds. Without the trigger, it knows only between which two readings a
statement ran. With the trigger, it knows the exact log positions of the statements. On most servers, only a superuser
can create the trigger.
"""

from collections import deque
from typing import Any

import msgspec
import psycopg

from changelog.connectors.sources.postgres.admin.evidence import Unlogged
from changelog.connectors.sources.postgres.decode.messages import DDL_PREFIX
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.values.lsn import lsn_text

NAME = "changelog_ddl"
"""The name of the function, and of the trigger on `ddl_command_end`. The trigger on `sql_drop` is called NAME_drop."""

SCRIPT = f"""\
-- Run this as a superuser. The trigger writes the name of each statement listed below, and the names of its objects,
-- into the log, in the statement's own transaction. It ignores its own errors, so it never makes a statement fail.
CREATE OR REPLACE FUNCTION {NAME}() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    objects text[];
BEGIN
    IF tg_event = 'sql_drop' THEN
        SELECT array_agg(object_identity) INTO objects FROM pg_event_trigger_dropped_objects() WHERE NOT is_temporary;
    ELSE
        SELECT array_agg(object_identity) INTO objects FROM pg_event_trigger_ddl_commands();
    END IF;
    IF objects IS NOT NULL THEN
        PERFORM pg_logical_emit_message(
            true, '{DDL_PREFIX}', json_build_object('command', tg_tag, 'objects', objects[1:100])::text
        );
    END IF;
EXCEPTION WHEN OTHERS THEN
    NULL;
END $$;
CREATE EVENT TRIGGER {NAME} ON ddl_command_end
    WHEN TAG IN ('CREATE PUBLICATION', 'ALTER PUBLICATION', 'ALTER TABLE', 'ALTER SCHEMA', 'ALTER TYPE')
    EXECUTE FUNCTION {NAME}();
CREATE EVENT TRIGGER {NAME}_drop ON sql_drop
    WHEN TAG IN ('ALTER PUBLICATION', 'DROP PUBLICATION', 'ALTER TABLE', 'DROP TABLE', 'DROP SCHEMA', 'DROP OWNED')
    EXECUTE FUNCTION {NAME}();
ALTER EVENT TRIGGER {NAME} ENABLE ALWAYS;
ALTER EVENT TRIGGER {NAME}_drop ENABLE ALWAYS;
"""


_STATEMENTS_MAX = 1000


class Statements:
    """Keeps the latest statements that the event trigger wrote into the log, to find the log positions of changes."""

    def __init__(self) -> None:
        self._statements: deque[tuple[int, str]] = deque(maxlen=_STATEMENTS_MAX)

    def add(self, content: bytes, commit: int) -> None:
        """Adds the statement in a message that was committed at `commit`.

        Any role may write such messages, so invalid content is ignored.
        """
        try:
            statement = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if isinstance(statement, dict) and isinstance(statement.get("command"), str):
            self._statements.append((commit, statement["command"]))

    def bounds(self, change: Unlogged) -> tuple[str, str]:
        """Returns the log positions of the first and the last statement that can have made the change.

        If no such statement is known, returns the positions between which the change was made.
        """
        commits = [
            commit
            for commit, command in self._statements
            if change.since <= commit <= change.until and any(word in command for word in change.statements)
        ]
        first, last = (min(commits), max(commits)) if commits else (change.since, change.until)
        return lsn_text(first), lsn_text(last)


def is_installed(connection: psycopg.Connection[Any]) -> bool:
    """Returns whether both triggers exist and are enabled."""
    names = [NAME, f"{NAME}_drop"]
    with translated("looking for the event trigger"):
        rows = connection.execute(
            "SELECT FROM pg_event_trigger WHERE evtname = ANY (%s) AND evtenabled IN ('O', 'A')",
            [names],
        ).fetchall()
    return len(rows) == len(names)
