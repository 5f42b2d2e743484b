"""Sessions with the PostgreSQL that a view is written to, and its errors in our words.

That database need not be the source's, and what to do about its errors is something else: so this shares nothing with
the PostgreSQL source.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from changelog.envelope.errors import ChangelogError, Kind

Connection = psycopg.Connection[tuple[Any, ...]]

# Used where the connection string does not say otherwise: a peer that vanished is noticed within half a minute.
_DEFAULTS: Final[dict[str, str | int]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "changelog",
}

# The server's reply to a connection attempt carries no code that libpq would show: known English texts stand in.
_REFUSALS: Final = (
    (r"authentication failed|no password supplied|role \".*\" does not exist", Kind.ACCESS, "check --dsn"),
    (r"pg_hba\.conf", Kind.ACCESS, "let this user connect from here: add a line to the server's pg_hba.conf"),
    ("is not permitted to log in", Kind.ACCESS, "ALTER ROLE … LOGIN"),
    ("permission denied", Kind.ACCESS, "grant the user of --dsn CONNECT on the database"),
    (r"database \".*\" does not exist", Kind.PRECONDITION, "check --dsn"),
)

# What libpq adds to a refused connection; our own hint takes its place.
_ADVICE: Final = re.compile(r"\s*Is the server running .*\?")

# The first prefix of the SQLSTATE that fits decides (PostgreSQL, appendix A).
_STATES: Final = (
    ("28", Kind.ACCESS, None),
    ("42501", Kind.ACCESS, "grant the user of --dsn CREATE on the schema, and make it the owner of the table"),
    ("2BP01", Kind.PRECONDITION, "the table is replaced as a whole: drop what depends on it, or name another table"),
    ("55P03", Kind.CONNECTION, "a reader holds the table for long; run the job again"),
    ("08", Kind.CONNECTION, None),
    ("40", Kind.CONNECTION, None),
    ("53", Kind.CONNECTION, None),
    ("57", Kind.CONNECTION, None),
)
_QUOTES_VALUES: Final = ("22", "23")


@contextlib.contextmanager
def connected(dsn: str, doing: str) -> Iterator[Connection]:
    """Yields a session in autocommit, and closes it; `doing` says what it is for, as a gerund.

    Raises ChangelogError: USAGE for what is no connection string, ACCESS and CONNECTION where the server refuses or
    cannot be reached, and what the errors of psycopg in the block come to.
    """
    with contextlib.closing(_connect(dsn)) as connection:
        try:
            yield connection
        except psycopg.Error as error:
            raise _explained(error, doing) from error


def _connect(dsn: str) -> Connection:
    try:
        given: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(dsn), "client_encoding": "UTF8"}
    except psycopg.ProgrammingError as error:
        raise ChangelogError(
            Kind.USAGE,
            "--dsn is not a PostgreSQL connection string",  # libpq's own words may quote a password
            hint="write it as postgresql://user:password@host:5432/database, special characters percent-encoded",
        ) from error
    try:
        return psycopg.connect(**given, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        raise _refused(error) from error


def _refused(error: psycopg.OperationalError) -> ChangelogError:
    text = _one_line(_ADVICE.sub("", str(error))).removeprefix("connection failed: ")
    for sign, kind, hint in _REFUSALS:
        if re.search(sign, text):
            return ChangelogError(kind, f"PostgreSQL refused: {text}", hint=hint)
    return ChangelogError(Kind.CONNECTION, f"cannot connect to PostgreSQL: {text}", hint="is it running and reachable?")


def _explained(error: psycopg.Error, doing: str) -> ChangelogError:
    state, message = error.sqlstate, _one_line(error.diag.message_primary or str(error))
    if state is None:
        return ChangelogError(Kind.CONNECTION, f"{doing}: the connection to PostgreSQL broke: {message}")
    text = f"error {state}" if state.startswith(_QUOTES_VALUES) else message
    for prefix, kind, hint in _STATES:
        if state.startswith(prefix):
            return ChangelogError(kind, f"{doing}: {text}", hint=hint)
    return ChangelogError(Kind.PRECONDITION, f"{doing}: {text}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
