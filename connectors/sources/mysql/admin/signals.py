"""Sends signals: inserts requests into the table `changelog_signal`. The service finds these rows in the log.

`changelog.envelope.signal` defines the form of the requests. Any account that may insert rows into the table may send
signals; if `[signals] secret` is configured, the service obeys only signals that are signed with this secret. The
signature covers the id of the row. So a copy of a signal is refused, because its row has another id.
"""

from secrets import randbelow

from changelog.connectors.sources.mysql.admin.server_log import end_coordinate
from changelog.connectors.sources.mysql.decode.transactions import SIGNAL_TABLE, STAMP_TABLE
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.server_errors import NO_TABLE, number_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Signal, Signing, encode

_TABLE = "CREATE TABLE {} (id BIGINT PRIMARY KEY, content MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL) ENGINE = InnoDB"
_NUMBERS = 1 << 63


def message_tables() -> str:
    """Returns the SQL that creates the tables for signals and for stamps."""
    return "".join(f"{_TABLE.format(name)};\n" for name in (SIGNAL_TABLE, STAMP_TABLE))


def send(connection: Connection, signal: Signal, secret: bytes | None, *, database: str) -> int:
    """Inserts the signal, in a transaction of its own; returns the coordinate of the log's end after the insert.

    When the service's checkpoint is past this coordinate, the service has read the signal. Raises ChangelogError.
    """
    number = randbelow(_NUMBERS)
    signing = None if secret is None else Signing(secret=secret, cluster=database, transaction=number)
    try:
        connection.execute(
            f"INSERT INTO {SIGNAL_TABLE} (id, content) VALUES (%s, %s)", (number, encode(signal, signing))
        )
    except ChangelogError as error:
        if number_of(error) != NO_TABLE:
            raise
        raise ChangelogError(
            Kind.PRECONDITION,
            f"database {database} has no table {SIGNAL_TABLE}, through which signals are sent",
            hint=_TABLE.format(SIGNAL_TABLE),
        ) from error
    return end_coordinate(connection.query, connection.version)


def send_fence(connection: Connection) -> None:
    """Inserts a row without content, which makes the service store a checkpoint soon.

    It is no error if the account lacks the right to insert the row, or if there is no such table: the service then
    stores its next checkpoint no sooner than usual.
    """
    try:
        connection.execute(f"INSERT INTO {SIGNAL_TABLE} (id, content) VALUES (%s, '')", (randbelow(_NUMBERS),))
    except ChangelogError:
        if connection.closed:
            raise
