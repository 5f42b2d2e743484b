"""Opens sessions with the PostgreSQL server to which a view is written. This need not be the server that the service
reads, so its errors have other hints (`_REMEDIES`).
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import psycopg

from changelog.connectors import libpq
from changelog.envelope.errors import Kind

Connection = psycopg.Connection[tuple[Any, ...]]

_REMEDIES: Final = libpq.Remedies(
    dsn="--dsn",
    rejections=(
        (r"authentication failed|no password supplied|role \".*\" does not exist", Kind.ACCESS, "check --dsn"),
        (r"pg_hba\.conf", Kind.ACCESS, "let this user connect from here: add a line to the server's pg_hba.conf"),
        ("is not permitted to log in", Kind.ACCESS, "ALTER ROLE … LOGIN"),
        ("permission denied", Kind.ACCESS, "grant the user of --dsn CONNECT on the database"),
        (r"database \".*\" does not exist", Kind.PRECONDITION, "check --dsn"),
    ),
    states=(
        ("28", Kind.ACCESS, None),
        ("42501", Kind.ACCESS, "grant the user of --dsn CREATE on the schema, and make it the owner of the table"),
        (
            "2BP01",
            Kind.PRECONDITION,
            "the table is replaced as a whole: drop what depends on it, or name another table",
        ),
        ("42703", Kind.PRECONDITION, "the table was altered: run the job once with --rebuild"),
        ("55P03", Kind.CONNECTION, "a reader has locked the table for too long; run the job again"),
        ("08", Kind.CONNECTION, None),
        ("40", Kind.CONNECTION, None),
        ("53", Kind.CONNECTION, None),
        ("57", Kind.CONNECTION, None),
    ),
)


@contextlib.contextmanager
def connected(dsn: str, action: str) -> Iterator[Connection]:
    """Yields a session in autocommit mode, and closes it at the end of the block.

    `action` says for what the session is used, such as "writing orders". Errors within the block begin with it. Raises
    ChangelogError: USAGE if `dsn` is not a connection string, ACCESS if the server refuses the user, CONNECTION if the
    server cannot be reached. An error of psycopg within the block becomes a ChangelogError, too.
    """
    try:
        connection: Connection = psycopg.connect(**libpq.parameters(dsn, _REMEDIES))
    except psycopg.OperationalError as error:
        raise libpq.rejection(error, _REMEDIES) from error
    except UnicodeError as error:  # the host's name cannot be encoded
        raise libpq.malformed(_REMEDIES) from error
    with contextlib.closing(connection):
        try:
            yield connection
        except psycopg.Error as error:
            message = error.diag.message_primary or str(error)
            raise libpq.explain(error.sqlstate, message, action, _REMEDIES) from error
