"""Makes the parameters of connections to PostgreSQL servers, and translates the servers' errors into ChangelogError.

The module is used for the source's database, and for databases to which views are written. The advice on what to do
about an error differs between these two uses, so each caller passes its own `Remedies`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from changelog.envelope.errors import ChangelogError, Kind

QUOTES_VALUES: Final = ("22", "23")
"""If an SQLSTATE begins with one of these, the error's message may quote values of a row (PostgreSQL, appendix A)."""

# Values for parameters that the connection string does not set. With them, a server that has vanished is noticed within
# half a minute.
_DEFAULTS: Final[Mapping[str, str | int]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "changelog",
}

LOST: Final[Sequence[tuple[str, Kind, None]]] = tuple(
    (state, Kind.CONNECTION, None)
    for state in (
        "08",
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "40",
        "53",
        "55P03",
        "57",
    )
)
"""Entries of `Remedies.states` for errors after which a retry may succeed: a lost session, or a server that is busy."""

# libpq adds this advice to the error of a refused connection. Our hint replaces it.
_ADVICE: Final = re.compile(r"\s*Is the server running .*\?")

# A URI, divided as libpq divides it: the first @ ends user and password, unless a / comes earlier.
_URI: Final = re.compile(r"postgres(ql)?://([^@/]*@)?(?P<rest>[^?]*).*", re.DOTALL)
_PORT: Final = re.compile(r"\s*[0-9]*\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Two lists that say which kind and which hint an error gets. In each list, the first entry that fits decides.

    `rejections` is for refused connections. libpq shows no error code for these, so an entry begins with a pattern that
    is searched in the error's English text. `states` is for all other errors. An entry begins with the first characters
    of an SQLSTATE (PostgreSQL, appendix A). `dsn` is what error texts call the connection string.
    """

    dsn: str
    rejections: Sequence[tuple[str, Kind, str]]
    states: Sequence[tuple[str, Kind, str | None]]


def parameters(dsn: str, remedies: Remedies) -> dict[str, Any]:
    """Returns the arguments for `psycopg.connect`. Raises ChangelogError (USAGE) if `dsn` is malformed."""
    try:
        from_dsn = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise malformed(remedies) from error
    if _is_misread(dsn, from_dsn):
        raise malformed(remedies)
    # The threshold None means that psycopg prepares no statements: the replication protocol has no prepared statements.
    return {**_DEFAULTS, **from_dsn, "client_encoding": "UTF8", "autocommit": True, "prepare_threshold": None}


def malformed(remedies: Remedies) -> ChangelogError:
    """Returns the error for a text that is not a connection string.

    The error does not quote the text, because the text may contain a password.
    """
    return ChangelogError(
        Kind.USAGE,
        f"{remedies.dsn} is not a PostgreSQL connection string",
        hint="write it as postgresql://user:password@host:5432/database and percent-encode special characters",
    )


def _is_misread(dsn: str, from_dsn: Mapping[str, Any]) -> bool:
    """Returns whether libpq mistakes a part of a password for a host, a port or a database.

    This happens if a password has an `@` or a `/` that is not percent-encoded. A host that is a folder of sockets
    (`/…`) or an abstract socket (`@…`) is not misread.
    """
    uri = _URI.fullmatch(dsn)
    if uri is not None and "@" in uri["rest"]:
        return True
    hosts, ports = (str(from_dsn.get(name, "")).split(",") for name in ("host", "port"))
    return any("@" in host[1:] and not host.startswith("/") for host in hosts) or not all(map(_PORT.fullmatch, ports))


def rejection(error: psycopg.OperationalError, remedies: Remedies) -> ChangelogError:
    """Returns our error for a failed attempt to connect."""
    text = _one_line(_ADVICE.sub("", str(error))).removeprefix("connection failed: ")
    for pattern, kind, hint in remedies.rejections:
        if re.search(pattern, text):
            return ChangelogError(kind, f"PostgreSQL refused the connection: {text}", hint=hint)
    return ChangelogError(
        Kind.CONNECTION, f"cannot connect to PostgreSQL: {text}", hint="is the server running and reachable?"
    )


def explain(state: str | None, message: str, action: str, remedies: Remedies) -> ChangelogError:
    """Returns our error for an error of the server, with its SQLSTATE and its message. If `state` is None, the
    connection itself broke.

    `action` names the attempted action, as a gerund.
    """
    if state is None:
        return ChangelogError(Kind.CONNECTION, f"{action}: the connection to PostgreSQL broke: {_one_line(message)}")
    text = f"error {state}" if state.startswith(QUOTES_VALUES) else _one_line(message)
    for prefix, kind, hint in remedies.states:
        if state.startswith(prefix):
            return ChangelogError(kind, f"{action}: {text}", hint=hint)
    return ChangelogError(Kind.PRECONDITION, f"{action}: {text}")


def _one_line(text: str) -> str:
    return " ".join(text.split())
