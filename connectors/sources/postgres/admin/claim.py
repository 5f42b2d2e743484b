"""Decides which of several services may read a replication slot, before any of them touches the changelog."""

import secrets
import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from changelog.connectors.sources.postgres.admin.slot import refuse_foreign, slot_state
from changelog.connectors.sources.postgres.session.sessions import COLUMNS, ServerSession
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.envelope.errors import ChangelogError, Kind

_RETRY_S = 0.1
_NUMBERS = 1 << 31


@dataclass(frozen=True, slots=True)
class _Claimant:
    number: int
    session: ServerSession


def claim_slot(
    conn: psycopg.Connection[Any],
    replication: ReplicationConnection,
    name: str,
    *,
    patience_s: float = 5.0,
    sessions: set[int] | None = None,
) -> None:
    """Makes `replication` the only session that may read the slot `name`, whether or not the slot exists yet.

    Two services that start at the same time would both find that nobody reads the slot. One of them might then shut the
    other out of the changelog, but not get the slot. Then neither could publish. So each service announces itself
    before it looks for others: of any two services, at least one sees the other. The announcement is an advisory lock
    on a random number. The server releases the lock when the session ends. Any role can take any advisory lock, so only
    the locks of replication sessions count: the server opens such sessions only for roles with the right to replicate.

    If another session holds the slot, the function tries again for `patience_s` seconds, because the server needs a
    moment to notice that one of our sessions was killed. If a connection breaks silently, the server keeps its session
    for `wal_sender_timeout`, which can be longer than `patience_s`. `sessions` holds the process ids, on the server, of
    the replication sessions that this service has opened; the id of `replication` is added to them.

    Raises ChangelogError: IN_USE if a foreign session holds the slot, CONNECTION if one of `sessions` holds it,
    PRECONDITION if the slot is not one of ours.
    """
    own_pids = set() if sessions is None else sessions
    pid = replication.backend_pid()
    own_pids.add(pid)
    deadline = time.monotonic() + patience_s
    while True:
        rivals = _announce(replication, name, pid)
        state = slot_state(conn, name)
        if state is not None:
            refuse_foreign(state, conn.info.dbname)
        reader = None if state is None else state.reader
        if not rivals and reader is None:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(_RETRY_S)
    _withdraw(replication, name)
    holder = reader or rivals[0].session
    if holder.pid in own_pids:
        raise ChangelogError(
            Kind.CONNECTION,
            f"replication slot {name} is still held by process {holder.pid}, a lost session of this service",
        )
    raise holder.in_use(name)


def _announce(replication: ReplicationConnection, name: str, pid: int) -> list[_Claimant]:
    """Announces this session's claim and returns the other claimants.

    If several sessions see each other, the session with the lowest number keeps its announcement until it is alone. The
    others withdraw their announcements, and take another random number next time. So one session always gets the slot.
    """
    claimants = _claimants(replication, name)
    if all(claimant.session.pid != pid for claimant in claimants):
        while not _query(replication, _ANNOUNCE, name, number=secrets.randbelow(_NUMBERS))[0][0]:
            pass  # another session holds the same number
        claimants = _claimants(replication, name)
    own_number = min(claimant.number for claimant in claimants if claimant.session.pid == pid)
    rivals = [claimant for claimant in claimants if claimant.session.pid != pid]
    if any(claimant.number < own_number for claimant in rivals):
        _withdraw(replication, name)
    return rivals


def _claimants(replication: ReplicationConnection, name: str) -> list[_Claimant]:
    return [_Claimant(number, ServerSession(*session)) for number, *session in _query(replication, _CLAIMANTS, name)]


def _withdraw(replication: ReplicationConnection, name: str) -> None:
    _query(replication, _WITHDRAW, name)


def _query(replication: ReplicationConnection, query: sql.SQL, name: str, **values: int) -> list[tuple[Any, ...]]:
    return replication.query(query.format(name=sql.Literal(name), **values).as_string())


_ANNOUNCE = sql.SQL("SELECT pg_try_advisory_lock(hashtext('changelog slot ' || {name}), {number})")

_CLAIM_LOCKS = """
FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::int8 = hashtext('changelog slot ' || {name})::int8 & 4294967295
"""
"""Selects the advisory locks of all claims on a slot. Such a lock has two numbers: the first identifies the slot, the
second is the random number of the claim.
"""

_CLAIMANTS = sql.SQL(f"""
SELECT l.objid::int8, l.pid, {COLUMNS}
FROM (SELECT l.objid, l.pid {_CLAIM_LOCKS}) AS l
JOIN pg_stat_replication AS r ON r.pid = l.pid JOIN pg_stat_activity AS a ON a.pid = l.pid
ORDER BY 1
""")

_WITHDRAW = sql.SQL(f"""
SELECT pg_advisory_unlock(hashtext('changelog slot ' || {{name}}), l.objid::int8::int4)
FROM (SELECT l.objid {_CLAIM_LOCKS} AND l.pid = pg_backend_pid()) AS l
""")
