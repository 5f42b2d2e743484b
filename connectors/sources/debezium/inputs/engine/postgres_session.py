"""Connects to PostgreSQL with the properties of Debezium's connector, and translates errors into ChangelogError."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo

from changelog.connectors import libpq
from changelog.connectors.patience import Patience, PatientConnection
from changelog.envelope.errors import ChangelogError, Kind

_USER = "check database.user and database.password in [source.properties]"
_REMEDIES = libpq.Remedies(
    dsn="[source.properties] database.hostname",
    rejections=(
        ("authentication failed", Kind.ACCESS, _USER),
        ("no password supplied", Kind.ACCESS, "put database.password into [source.properties]"),
        (r"pg_hba\.conf", Kind.ACCESS, "let the user connect from this host: add a line to the server's pg_hba.conf"),
        ("is not permitted to log in", Kind.ACCESS, "ALTER ROLE … LOGIN"),
        ('role ".*" does not exist', Kind.ACCESS, "check database.user in [source.properties]"),
        ("permission denied", Kind.ACCESS, "GRANT CONNECT ON DATABASE … TO …"),
        ('database ".*" does not exist', Kind.PRECONDITION, "check database.dbname in [source.properties]"),
    ),
    states=(
        ("28", Kind.ACCESS, _USER),
        ("42501", Kind.ACCESS, "run the SQL that `changelog check` prints, as a role that may run it"),
        ("25006", Kind.PRECONDITION, "run, on the primary, the SQL that `changelog check` prints"),
        *libpq.LOST,
    ),
)

_PARAMETERS = {
    "database.hostname": "host",
    "database.port": "port",
    "database.dbname": "dbname",
    "database.user": "user",
    "database.password": "password",
    "database.sslmode": "sslmode",
    "database.sslcert": "sslcert",
    "database.sslkey": "sslkey",
    "database.sslpassword": "sslpassword",
    "database.sslrootcert": "sslrootcert",
}
"""The properties of Debezium that say how to connect, and libpq's names for them."""


@contextmanager
def session(properties: Mapping[str, str], action: str) -> Iterator[PatientConnection]:
    """Connects with Debezium's `properties`. The session ends with the `with` block.

    `action` is for error messages: it says what that block does, for example "looking for publication x".

    Raises ChangelogError: ACCESS if the server rejects the user, CONNECTION if the server cannot be reached now, and
    PRECONDITION for most other errors of the server.
    """
    port = properties.get("database.port", "")
    if not port.isdecimal() and port:
        hint = 'correct it in [source.properties], as in "database.port" = 5432'
        raise ChangelogError(Kind.USAGE, f"database.port is not a number: {port}", hint=hint)
    parameters = {ours: properties[theirs] for theirs, ours in _PARAMETERS.items() if properties.get(theirs)}
    try:
        connection = PatientConnection.open(libpq.parameters(make_conninfo("", **parameters), _REMEDIES), Patience())
    except psycopg.OperationalError as error:
        raise libpq.rejection(error, _REMEDIES) from error
    except UnicodeError as error:  # no host can have this name
        raise libpq.malformed(_REMEDIES) from error
    try:
        with connection:
            connection.execute("SET lock_timeout = '10s'")
            yield connection
    except psycopg.Error as error:
        message = error.diag.message_primary or str(error)
        raise libpq.explain(error.sqlstate, message, action, _REMEDIES) from error
