"""Sends signals: they are requests to the service, written as messages into the database's log.

`changelog.envelope.signal` defines the form of the requests. Any role may write such messages; if `[signals] secret` is
configured, the service obeys only signals that are signed with it.
"""

from changelog.connectors.sources.postgres.session.connection import Connection, translated
from changelog.envelope.signal import PREFIX, Signal, Signing, encode


def send(connection: Connection, signal: Signal, secret: bytes | None) -> int:
    """Writes the signal into the database's log, in a transaction of its own; returns the LSN after its message.

    When the `through_lsn` of the service's checkpoint is greater than this LSN, the service has recorded the signal.
    Raises ChangelogError.
    """
    with translated("sending a signal"), connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")  # the service does not wait for standbys, either
        content = encode(signal, None if secret is None else _signing(connection, secret))
        row = connection.execute(
            "SELECT pg_logical_emit_message(true, %s, %s) - '0/0'::pg_lsn", [PREFIX, content]
        ).fetchone()
    assert row is not None
    return int(row[0])


def _signing(connection: Connection, secret: bytes) -> Signing:
    """Returns the values with which a signal in the open transaction is signed."""
    row = connection.execute(
        "SELECT system_identifier::text, pg_current_xact_id()::text FROM pg_control_system()"
    ).fetchone()
    assert row is not None
    return Signing(secret=secret, cluster=row[0], transaction=int(row[1]))
