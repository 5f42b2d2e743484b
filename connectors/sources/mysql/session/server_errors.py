"""Translates the errors of the server, and of the client library (PyMySQL), into ours.

The numbers are those of MySQL's Error Reference and of MariaDB's page *MariaDB Error Codes*. The numbers that are used
here mean the same in both databases.
"""

import contextlib
import ssl
from collections.abc import Iterator, Mapping

import pymysql

from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

NO_TABLE = 1146
TABLE_CHANGED = 1412
LOCK_TIMEOUT = 1205
SYNTAX = 1064
XA_REFUSED = 1401
"""MySQL says this if the account may not list prepared XA transactions."""

_TLS = "add ?ssl-mode=REQUIRED to [source] dsn"
_GRANTS = "run the SQL that `changelog init --grants` prints"
_PASSWORD = "give the account a new password: ALTER USER … IDENTIFIED BY …"
_UNLOCK = "unlock the account: ALTER USER … ACCOUNT UNLOCK"

_KINDS: Mapping[int, tuple[Kind, str | None]] = {
    1040: (Kind.CONNECTION, "raise max_connections on the server, or close connections"),
    1044: (Kind.ACCESS, "check the database in [source] dsn, and the account's rights"),
    1045: (Kind.ACCESS, "check user and password in [source] dsn"),
    1049: (Kind.PRECONDITION, "check the database in [source] dsn"),
    1053: (Kind.CONNECTION, None),
    SYNTAX: (Kind.USAGE, None),
    1129: (Kind.CONNECTION, "run FLUSH HOSTS on the server"),
    1130: (Kind.ACCESS, "let this account connect from this host"),
    1142: (Kind.ACCESS, _GRANTS),
    1143: (Kind.ACCESS, _GRANTS),
    NO_TABLE: (Kind.ALTERED, None),
    1158: (Kind.CONNECTION, None),
    1159: (Kind.CONNECTION, None),
    1160: (Kind.CONNECTION, None),
    1161: (Kind.CONNECTION, None),
    LOCK_TIMEOUT: (Kind.CONNECTION, None),
    1213: (Kind.CONNECTION, None),
    1227: (Kind.ACCESS, _GRANTS),
    1317: (Kind.CONNECTION, None),
    TABLE_CHANGED: (Kind.ALTERED, None),
    1698: (Kind.ACCESS, "check user and password in [source] dsn"),
    1820: (Kind.ACCESS, _PASSWORD),
    1862: (Kind.ACCESS, _PASSWORD),
    1927: (Kind.CONNECTION, None),
    1969: (Kind.CONNECTION, None),
    3024: (Kind.CONNECTION, None),
    3118: (Kind.ACCESS, _UNLOCK),
    3159: (Kind.ACCESS, _TLS),
    4031: (Kind.CONNECTION, None),
    4151: (Kind.ACCESS, _UNLOCK),
}

_DUMP_FAILED = 1236

_DUMP_ERRORS = (
    (
        "same server_uuid/server_id",
        Kind.IN_USE,
        "give each service and each replica a server_id of its own, in [source]",
    ),
    ("purged", Kind.GAP, OVER_GAP),
    ("Could not find", Kind.GAP, OVER_GAP),
    ("is not in the master's binlog", Kind.DIVERGED, OVER_GAP),
)
"""The server has one number, `_DUMP_FAILED`, for different errors. Each entry here has a part of the server's text, and
the kind and the hint of our error for it. The first entry whose part is in the text decides.
"""

_DENIED = frozenset({1045, 1698})
"""The server's errors for a wrong password."""

_CLIENT = range(2000, 3000)
"""The errors of the client library: the connection itself failed or broke."""

_BROKE = frozenset({2006, 2013})
"""The client library's errors for an open connection that broke. Their texts can name SSL, because TLS may be the first
to notice.
"""

_QUOTING_VALUES = frozenset({1062, 1264, 1292, 1366, 1406, 1411, 1525, 1690, 3140, 3141, 4025})
"""Errors whose messages may quote the values of a row."""


@contextlib.contextmanager
def translated(action: str) -> Iterator[None]:
    """Turns PyMySQL's errors into ours; `action` names the attempted action, as a gerund."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise explain(*_parts(error), action) from error


def number_of(error: BaseException) -> int:
    """Returns the number of the PyMySQL error that caused `error`; 0 if none did."""
    cause = error.__cause__
    return _parts(cause)[0] if isinstance(cause, pymysql.MySQLError) else 0


def explain(number: int, message: str, action: str) -> ChangelogError:
    """Returns our error for an error of the server or of the client library. `number` is 0 if the error has no
    number.
    """
    text = f"error {number}" if number in _QUOTING_VALUES else " ".join(message.split())
    if number == _DUMP_FAILED:
        return _dump_failed(text, action)
    if number in _CLIENT or not number:
        return ChangelogError(Kind.CONNECTION, f"{action}: the connection to the server broke: {text}")
    kind, hint = _KINDS.get(number, (Kind.PRECONDITION, None))
    return ChangelogError(kind, f"{action}: {text}", hint=hint)


def _dump_failed(text: str, action: str) -> ChangelogError:
    """Returns our error for a server that refused or ended the stream of its log. Only the error's text says why."""
    for part, kind, hint in _DUMP_ERRORS:
        if part in text:
            return ChangelogError(kind, f"{action}: {text.partition(';')[0]}", hint=hint)
    return ChangelogError(Kind.PRECONDITION, f"{action}: {text}")


def rejection(error: Exception, *, encrypted: bool) -> ChangelogError:
    """Returns our error for a failed attempt to connect. `encrypted` is False if TLS is off.

    If an account requires TLS, the server reports the same error as for a wrong password. So if TLS is off, the hint
    for this error names both causes.
    """
    number, message = _parts(error)
    text = " ".join(message.split())
    if number not in _CLIENT and number:
        kind, hint = _KINDS.get(number, (Kind.PRECONDITION, None))
        if kind is Kind.ACCESS and "secure" in text.lower():
            hint = _TLS
        if number in _DENIED and not encrypted:
            hint = f"{hint}; or the account requires TLS: use another ssl-mode than DISABLED"
        return ChangelogError(kind, f"the server refused the connection: {text}", hint=hint)
    broke = number in _BROKE or isinstance(
        getattr(error, "original_exception", None), (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    )
    if not broke and ("SSL" in text or "certificate" in text):
        return ChangelogError(
            Kind.ACCESS,
            f"no encrypted connection to the server: {text}",
            hint="check ssl-mode and ssl-ca in [source] dsn",
        )
    hint = "is the server running and reachable?"
    return ChangelogError(Kind.CONNECTION, f"cannot connect to the server: {text}", hint=hint)


def _parts(error: BaseException) -> tuple[int, str]:
    """Returns the number and the message of an error of PyMySQL."""
    arguments = error.args
    if len(arguments) >= 2 and isinstance(arguments[0], int):
        return arguments[0], str(arguments[1])
    return 0, str(error) or type(error).__name__
