"""Opens connections to PostgreSQL and translates the server's errors into ours."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from changelog.connectors.sources.postgres.session.patience import Patience, PatientConnection
from changelog.connectors.sources.postgres.session.quoting import literal
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

Connection = psycopg.Connection[tuple[Any, ...]]
"""A session whose rows are tuples: what `connect` gives, or a plain one of psycopg's."""

APPLICATION_NAME = "changelog"

# Defaults for parameters that the connection string does not set: a vanished peer is noticed within half a minute.
DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": APPLICATION_NAME,
}

# libpq shows no error code for a refused connection, so we recognise the reason by the server's English text.
_REJECTIONS = (
    ("authentication failed", Kind.ACCESS, "check user and password in [source] dsn"),
    ("no password supplied", Kind.ACCESS, "put a password into [source] dsn"),
    (r"pg_hba\.conf", Kind.ACCESS, "let this user connect from here: add a line to the server's pg_hba.conf"),
    ("permission denied", Kind.ACCESS, "run the SQL that `changelog init --grants` prints"),
    ("must be superuser or replication role", Kind.ACCESS, "ALTER ROLE … REPLICATION"),
    ("is not permitted to log in", Kind.ACCESS, "ALTER ROLE … LOGIN"),
    ('role ".*" does not exist', Kind.ACCESS, "check the user in [source] dsn"),
    ('database ".*" does not exist', Kind.PRECONDITION, "check the database in [source] dsn"),
)

# libpq adds this advice to a refused connection; our hint replaces it.
_ADVICE = re.compile(r"\s*Is the server running .*\?")

# The first prefix that matches the SQLSTATE decides (PostgreSQL, appendix A).
_STATES: tuple[tuple[str, Kind, str | None], ...] = (
    ("28", Kind.ACCESS, "check user and password in [source] dsn"),
    ("42501", Kind.ACCESS, "run the SQL that `changelog init --grants` prints"),
    ("53400", Kind.PRECONDITION, "raise max_replication_slots on the server, or drop unused slots"),
    ("55006", Kind.IN_USE, "stop the other one first"),
    ("58P01", Kind.GAP, f"the server removed log that had not been read yet; {OVER_GAP}"),
    ("08", Kind.CONNECTION, None),
    ("40", Kind.CONNECTION, None),
    ("53", Kind.CONNECTION, None),
    ("57", Kind.CONNECTION, None),
    ("55P03", Kind.CONNECTION, None),
)


def connect(
    dsn: str,
    *,
    settings: Mapping[str, str] | None = None,
    replication: bool = False,
    patience: Patience | None = None,
) -> PatientConnection:
    """Opens a connection in autocommit mode and applies `settings` to the session; `patience` limits its waits.

    Raises ChangelogError: USAGE if `dsn` is not a connection string, ACCESS if the server refuses us, CONNECTION if
    the server cannot be reached now.
    """
    try:
        parameters: dict[str, Any] = {**DEFAULTS, **conninfo_to_dict(dsn), "client_encoding": "UTF8"}
    except psycopg.ProgrammingError as error:
        raise ChangelogError(
            Kind.USAGE,
            "[source] dsn is not a PostgreSQL connection string",  # libpq's own message may quote a password
            hint="write it as postgresql://user:password@host:5432/database and percent-encode special characters",
        ) from error
    if replication:
        parameters["replication"] = "database"
    parameters |= {"autocommit": True, "prepare_threshold": None}  # the replication protocol has no prepared statements
    try:
        connection = PatientConnection.open(parameters, patience or Patience())
    except psycopg.OperationalError as error:
        raise _rejection(error) from error
    if settings:
        with translated("setting up the session"):
            connection.execute(_set_all(settings))
    return connection


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns psycopg's errors into ours; `doing` names the attempted action, as a gerund."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error.sqlstate, error.diag.message_primary or str(error), doing) from error


def explain(state: str | None, message: str, doing: str) -> ChangelogError:
    """Our error for the server's `message` and SQLSTATE; without a state, the connection itself broke."""
    if state is None:
        return ChangelogError(Kind.CONNECTION, f"{doing}: the connection to PostgreSQL broke: {_one_line(message)}")
    text = f"error {state}" if state[:2] in ("22", "23") else _one_line(message)  # these two classes quote values
    for prefix, kind, hint in _STATES:
        if state.startswith(prefix):
            return ChangelogError(kind, f"{doing}: {text}", hint=hint)
    return ChangelogError(Kind.PRECONDITION, f"{doing}: {text}")


def _rejection(error: psycopg.OperationalError) -> ChangelogError:
    text = _one_line(_ADVICE.sub("", str(error))).removeprefix("connection failed: ")
    for sign, kind, hint in _REJECTIONS:
        if re.search(sign, text):
            return ChangelogError(kind, f"PostgreSQL refused the connection: {text}", hint=hint)
    return ChangelogError(Kind.CONNECTION, f"cannot connect to PostgreSQL: {text}", hint="is it running and reachable?")


def _set_all(settings: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(
        f"set_config({literal(name)}, {literal(value)}, false)" for name, value in settings.items()
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
