"""Explains why the server sends us nothing: it may be waiting for old transactions or for a standby."""

from collections.abc import Callable
from time import monotonic
from typing import Any

import psycopg

from changelog.connectors.sources.postgres.session.connection import translated

STANDBYS = "synchronized_standby_slots"


def reason(connection: psycopg.Connection[Any], pid: int) -> str | None:
    """Returns what the replication session `pid` waits for; None if we know of nothing that it waits for.

    A session that creates a slot waits for each running transaction. A session that reads a failover slot waits for the
    standbys.
    """
    with translated("reading what the server waits for"):
        old = connection.execute(_TRANSACTIONS, [pid]).fetchone()
        if old is not None:
            return _transaction(*old)
        slots = connection.execute(_STANDBYS, [STANDBYS, pid]).fetchall()
    if not slots:
        return None
    return f"the server holds changes back because of {STANDBYS}: {', '.join(_standby(*slot) for slot in slots)}"


def _transaction(xid: str, pid: int | None, gid: str | None, since: str | None) -> str:
    if gid is not None:
        ending = "end it with COMMIT PREPARED or ROLLBACK PREPARED"
        return f"the slot waits for transaction {gid!r}, prepared at {since}: {ending}"
    parts = ("" if pid is None else f"process {pid}", "" if since is None else f"since {since}")
    details = ", ".join(part for part in parts if part)
    return f"the slot waits for the end of transaction {xid}" + (f" ({details})" if details else "")


def _standby(name: str, exists: bool, active: bool) -> str:
    if not exists:
        return f"there is no slot {name}"
    return f"the standby of slot {name} has not received the changes yet" if active else f"nobody reads slot {name}"


class SlotCreationWait:
    """Decides whether the server may stay silent while it creates a slot.

    Each call of the object asks the server what it waits for. If the server waits for a transaction, it may stay
    silent, and the object calls `alive`. If the server waits for nothing that we know of, it may stay silent for only
    `answer_s` seconds. They count from the last call that found it waiting, or, if there is none, from the creation of
    the object.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], pid: int, *, answer_s: float, alive: Callable[[], None]
    ) -> None:
        self._connection, self._pid, self._answer_s, self._alive = connection, pid, answer_s, alive
        self._excused_at = monotonic()

    def __call__(self) -> bool:
        now = monotonic()
        if reason(self._connection, self._pid) is not None:
            self._excused_at = now
            self._alive()
        return now - self._excused_at < self._answer_s


_TRANSACTIONS = """
SELECT w.transactionid::text, h.pid, p.gid, to_char(coalesce(p.prepared, a.xact_start), 'YYYY-MM-DD HH24:MI:SSOF')
FROM pg_catalog.pg_locks AS w
LEFT JOIN pg_catalog.pg_locks AS h ON h.locktype = 'transactionid' AND h.granted AND h.transactionid = w.transactionid
LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction = w.transactionid
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = h.pid
WHERE w.pid = %s AND w.locktype = 'transactionid' AND NOT w.granted
"""

# Servers before 17 have neither the setting nor the wait.
_STANDBYS = """
SELECT n.name, s.slot_name IS NOT NULL, coalesce(s.active, false)
FROM pg_catalog.pg_stat_activity AS a,
    unnest(string_to_array(current_setting(%s, true), ',')) AS raw, trim(raw, ' "') AS n (name)
LEFT JOIN pg_catalog.pg_replication_slots AS s ON s.slot_name = n.name
WHERE a.pid = %s AND a.wait_event = 'WaitForStandbyConfirmation'
ORDER BY s.active NULLS FIRST
"""
