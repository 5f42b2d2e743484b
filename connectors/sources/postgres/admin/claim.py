"""Which of several services may go on to read a slot, decided before any of them touches the changelog."""

import secrets
import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from connectors.sources.postgres.admin.slot import refuse_foreign, slot_state
from connectors.sources.postgres.session.sessions import COLUMNS, Session
from connectors.sources.postgres.stream.replication import ReplicationConnection
from envelope.errors import ChangelogError, Kind

_ASK_AGAIN_S = 0.1
_NUMBERS = 1 << 31


@dataclass(frozen=True, slots=True)
class _Claimant:
    number: int
    session: Session


def claim_slot(
    conn: psycopg.Connection[Any],
    replication: ReplicationConnection,
    name: str,
    *,
    patience_s: float = 5.0,
    sessions: set[int] | None = None,
) -> None:
    """Makes `replication` the one session that may go on to read the slot `name`, whether it exists yet or not.

    Two services that start at once would both find the slot unread, and the one that loses it would already have
    taken the changelog from the one that wins. So each announces itself before it looks for others: of any two, at
    least one sees the other. The announcement is an advisory lock under a number drawn at random, which ends with the
    session; the server ends a session that reads a slot and is silent for `wal_sender_timeout`. Any role can take any
    advisory lock, so only those of replication sessions count: these the server lets in for the right to replicate.

    A slot that is held is asked for again during `patience_s`: the server needs a moment to notice that a session
    of ours was killed. `sessions` are the server's processes of all sessions that this process had, to which it adds
    `replication`: the server keeps one whose link broke without a word for its `wal_sender_timeout`.

    Raises ChangelogError: IN_USE when another's session holds it, CONNECTION when one of `sessions` does,
    PRECONDITION when it is not a slot of ours.
    """
    own = set() if sessions is None else sessions
    pid = replication.backend_pid()
    own.add(pid)
    deadline = time.monotonic() + patience_s
    while True:
        others = _announced(replication, name, pid)
        state = slot_state(conn, name)
        if state is not None:
            refuse_foreign(state, conn.info.dbname)
        reader = None if state is None else state.reader
        if not others and reader is None:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(_ASK_AGAIN_S)
    _withdraw(replication, name)
    holder = reader or others[0].session
    if holder.pid in own:
        raise ChangelogError(
            Kind.CONNECTION,
            f"replication slot {name} is still held by process {holder.pid}, a lost session of this service",
        )
    raise holder.in_use(name)


def _announced(replication: ReplicationConnection, name: str, pid: int) -> list[_Claimant]:
    """The others that claim the slot, once this session has announced that it does, too.

    Of several that find one another, the one with the lowest number stays announced until it is alone: the others
    withdraw, and draw another number next time. So one of them always gets on.
    """
    claimants = _claimants(replication, name)
    if all(each.session.pid != pid for each in claimants):
        while not _ask(replication, _ANNOUNCE, name, number=secrets.randbelow(_NUMBERS))[0][0]:
            pass  # somebody holds this very number
        claimants = _claimants(replication, name)
    own = min(each.number for each in claimants if each.session.pid == pid)
    others = [each for each in claimants if each.session.pid != pid]
    if any(each.number < own for each in others):
        _withdraw(replication, name)
    return others


def _claimants(replication: ReplicationConnection, name: str) -> list[_Claimant]:
    return [_Claimant(number, Session(*session)) for number, *session in _ask(replication, _CLAIMANTS, name)]


def _withdraw(replication: ReplicationConnection, name: str) -> None:
    _ask(replication, _WITHDRAW, name)


def _ask(replication: ReplicationConnection, query: sql.SQL, name: str, **values: int) -> list[tuple[Any, ...]]:
    return replication.query(query.format(name=sql.Literal(name), **values).as_string())


_ANNOUNCE = sql.SQL("SELECT pg_try_advisory_lock(hashtext('changelog slot ' || {name}), {number})")

_HELD = """
FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::int8 = hashtext('changelog slot ' || {name})::int8 & 4294967295
"""
"""The locks of claims: two numbers each, of which the first stands for the slot."""

_CLAIMANTS = sql.SQL(f"""
SELECT l.objid::int8, l.pid, {COLUMNS}
FROM (SELECT l.objid, l.pid {_HELD}) AS l
JOIN pg_stat_replication AS r ON r.pid = l.pid JOIN pg_stat_activity AS a ON a.pid = l.pid
ORDER BY 1
""")

_WITHDRAW = sql.SQL(f"""
SELECT pg_advisory_unlock(hashtext('changelog slot ' || {{name}}), l.objid::int8::int4)
FROM (SELECT l.objid {_HELD} AND l.pid = pg_backend_pid()) AS l
""")
