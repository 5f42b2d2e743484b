"""Opens connections to PostgreSQL and translates the server's errors into ours."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from changelog.connectors import libpq
from changelog.connectors.patience import Patience, PatientConnection
from changelog.connectors.sources.postgres.session.quoting import literal
from changelog.envelope.errors import ChangelogError, Kind

Connection = psycopg.Connection[tuple[Any, ...]]
"""A session whose rows are tuples: one that `connect` returned, or any other connection of psycopg."""

_REMEDIES = libpq.Remedies(
    dsn="[source] dsn",
    rejections=(
        ("authentication failed", Kind.ACCESS, "check user and password in [source] dsn"),
        ("no password supplied", Kind.ACCESS, "put a password into [source] dsn"),
        (r"pg_hba\.conf", Kind.ACCESS, "let the user connect from this host: add a line to the server's pg_hba.conf"),
        ("permission denied", Kind.ACCESS, "run the SQL that `changelog init --grants` prints"),
        ("must be superuser or replication role", Kind.ACCESS, "ALTER ROLE … REPLICATION"),
        ("is not permitted to log in", Kind.ACCESS, "ALTER ROLE … LOGIN"),
        ('role ".*" does not exist', Kind.ACCESS, "check the user in [source] dsn"),
        ('database ".*" does not exist', Kind.PRECONDITION, "check the database in [source] dsn"),
    ),
    states=(
        ("28", Kind.ACCESS, "check user and password in [source] dsn"),
        ("42501", Kind.ACCESS, "run the SQL that `changelog init --grants` prints"),
        ("53400", Kind.PRECONDITION, "raise max_replication_slots on the server, or drop unused slots"),
        ("55006", Kind.IN_USE, "stop the other session first"),
        *libpq.LOST,
    ),
)

_TRANSACTION_TIMEOUT = 170000  # servers from this version on have transaction_timeout


def connect(
    dsn: str,
    *,
    settings: Mapping[str, str] | None = None,
    replication: bool = False,
    patience: Patience | None = None,
) -> PatientConnection:
    """Opens a connection in autocommit mode and applies `settings` to the session; `patience` limits its waits.

    If `settings` is given, `transaction_timeout` is switched off, too: it would abort the replay of a large
    transaction.

    Raises ChangelogError: USAGE if `dsn` is not a connection string, ACCESS or PRECONDITION if the server refuses us,
    CONNECTION if the server cannot be reached now.
    """
    parameters = libpq.parameters(dsn, _REMEDIES)
    if replication:
        parameters["replication"] = "database"
    try:
        connection = PatientConnection.open(parameters, patience or Patience())
    except psycopg.OperationalError as error:
        raise libpq.rejection(error, _REMEDIES) from error
    except UnicodeError as error:  # no host can have this name
        raise libpq.malformed(_REMEDIES) from error
    if settings:
        with translated("setting up the session"):
            limits = {"transaction_timeout": "0"} if connection.info.server_version >= _TRANSACTION_TIMEOUT else {}
            connection.execute(_set_all({**limits, **settings}))
    return connection


@contextlib.contextmanager
def translated(action: str) -> Iterator[None]:
    """Turns psycopg's errors into ours; `action` names the attempted action, as a gerund."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error.sqlstate, error.diag.message_primary or str(error), action) from error


def explain(state: str | None, message: str, action: str) -> ChangelogError:
    """Returns our error for the server's `message` and SQLSTATE; if `state` is None, the connection itself broke."""
    return libpq.explain(state, message, action, _REMEDIES)


def _set_all(settings: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(
        f"set_config({literal(name)}, {literal(value)}, false)" for name, value in settings.items()
    )
