"""Reads changes and their stamps from a replication slot, without the service's code for decoding the log."""

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from changelog.connectors.sources.postgres.candidate import PostgresCandidate

_SLOT = "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')"
_CHANGES = "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL, 'include-xids', 'off')"
_MESSAGE = re.compile(r"message: transactional: 1 prefix: provenance(-session)?, sz: \d+ content:(.*)", re.DOTALL)
_CHANGE = re.compile(r"table (.+?): ([A-Z]+):(.*)", re.DOTALL)

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
STAMP = '{"serviceName": "shop"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedChange:
    """A change in the log. `stamp` is the last stamp before the change in the same transaction; None if there is none.

    If the application has emitted a stamp, later stamps that only describe the session do not count.
    """

    table: str
    op: str
    columns: str
    stamp: dict[str, Any] | None

    @property
    def service(self) -> str | None:
        return None if self.stamp is None else self.stamp["serviceName"]


class StampedDatabase:
    """A database with a session of an administrator, and a slot from which the database's log is read."""

    def __init__(self, dsn: str, slot: str) -> None:
        self.dsn, self._slot = dsn, slot
        self.admin = psycopg.connect(dsn, autocommit=True, application_name="admin")

    def install(self, *tables: str) -> None:
        """Creates the triggers of these tables in `public`, as `changelog init --stamps` prints them."""
        self.admin.execute(PostgresCandidate(self.dsn).stamps({("public", name) for name in tables}).encode())

    def start(self) -> None:
        """Creates the slot. The server does so only once all transactions that write have ended."""
        self.admin.execute(_SLOT, [self._slot])

    def messages_and_changes(self) -> list[str]:
        """Returns the log that the slot has, as lines of text, and removes it from the slot."""
        return [line for (line,) in self.admin.execute(_CHANGES, [self._slot]).fetchall()]

    def changes(self) -> list[LoggedChange]:
        """Returns the changes that the slot has, and removes them from the slot."""
        changes: list[LoggedChange] = []
        stamp: dict[str, Any] | None = None
        by_application = False
        for line in self.messages_and_changes():
            if line == "BEGIN":
                stamp, by_application = None, False
            elif message := _MESSAGE.fullmatch(line):
                if not (message[1] and by_application):
                    stamp, by_application = json.loads(message[2]), not message[1]
            elif change := _CHANGE.fullmatch(line):
                changes.append(LoggedChange(table=change[1], op=change[2], columns=change[3].strip(), stamp=stamp))
        return changes

    def services(self) -> list[str | None]:
        """Returns the service that stamped each change in the slot, and removes the changes from the slot."""
        return [change.service for change in self.changes()]


@contextmanager
def stamped_database(dsn: str, slot: str) -> Iterator[StampedDatabase]:
    """Adds an empty table `t` with the trigger, and a slot, to the database."""
    database = StampedDatabase(dsn, slot)
    try:
        database.admin.execute(TABLE)
        database.install("t")
        database.start()
        yield database
    finally:
        database.admin.close()


ROLE = "stamps_application"
EMIT = "pg_logical_emit_message(boolean, text, text, boolean)"
SET_CONFIG = "set_config(text, text, boolean)"


class Tables:
    """Two tables, `t` with the trigger and `bare` without it, and a role that may only insert into them."""

    def __init__(self, database: StampedDatabase) -> None:
        self.database = database
        self.keys = itertools.count()
        database.admin.execute("CREATE TABLE bare (id int)")
        database.admin.execute(sql.SQL("GRANT INSERT ON t, bare TO {}").format(sql.Identifier(ROLE)))
        self.dsn = make_conninfo(database.dsn, user=ROLE, application_name="app")

    def insert(self, table: str = "t") -> str:
        """Returns a statement that inserts a new row."""
        return f"INSERT INTO {table} VALUES ({next(self.keys)})"

    def services(self) -> list[str | None]:
        """Returns the service that stamped each change in the slot, and removes the changes from the slot."""
        return self.database.services()

    @contextmanager
    def refusing(self, function: str) -> Iterator[None]:
        """Revokes the right to call a function while the body of the `with` statement runs."""
        self.database.admin.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC".encode())
        try:
            yield
        finally:
            self.database.admin.execute(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC".encode())
