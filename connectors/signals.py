"""Signals as they are sent: the way back, from an operator or a drift report to the running service.

Their form is in `envelope.signal`. Any role may write one; `[signals] secret` says whose the service obeys.
"""

from typing import Any

import psycopg

from connectors.sources.postgres.connection import translated
from envelope.signal import KEYS_MAX, PREFIX, Do, Signal, divide, encode, parse

__all__ = ["KEYS_MAX", "Do", "Signal", "divide", "encode", "parse", "send"]


def send(connection: psycopg.Connection[Any], signal: Signal, secret: bytes | None) -> int:
    """Writes the signal into the log of the database, alone in a transaction; gives the LSN behind its message.

    The service has taken note of it once its checkpoint's `through_lsn` is greater. Raises ChangelogError.
    """
    content = encode(signal, secret)
    with translated("sending a signal"), connection.transaction():
        row = connection.execute(
            "SELECT pg_logical_emit_message(true, %s, %s) - '0/0'::pg_lsn", [PREFIX, content]
        ).fetchone()
    assert row is not None
    return int(row[0])
