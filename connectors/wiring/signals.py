"""Signals as they are sent: the way back, from an operator or a drift report to the running service.

Their form is in `envelope.signal`. Any role may write one; `[signals] secret` says whose the service obeys.
"""

from typing import Any

import psycopg

from connectors.sources.postgres.session.connection import translated
from envelope.signal import KEYS_MAX, PREFIX, Do, Signal, Signing, divide, encode, parse

__all__ = ["KEYS_MAX", "Do", "Signal", "Signing", "divide", "encode", "parse", "send"]


def send(connection: psycopg.Connection[Any], signal: Signal, secret: bytes | None) -> int:
    """Writes the signal into the log of the database, alone in a transaction; gives the LSN behind its message.

    The service has taken note of it once its checkpoint's `through_lsn` is greater. Raises ChangelogError.
    """
    with translated("sending a signal"), connection.transaction():
        content = encode(signal, None if secret is None else _signing(connection, secret))
        row = connection.execute(
            "SELECT pg_logical_emit_message(true, %s, %s) - '0/0'::pg_lsn", [PREFIX, content]
        ).fetchone()
    assert row is not None
    return int(row[0])


def _signing(connection: psycopg.Connection[Any], secret: bytes) -> Signing:
    """For the transaction that is open."""
    row = connection.execute(
        "SELECT system_identifier::text, pg_current_xact_id()::text FROM pg_control_system()"
    ).fetchone()
    assert row is not None
    return Signing(secret=secret, cluster=row[0], transaction=int(row[1]))
