"""What happened to the tables, from the audit's rows and from the order in which `test_decoding` shows the commits."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import set_json_loads

from tests.campaigns._audit.partitions import partition
from tests.campaigns._audit.tables import SLOT, Entity, entity_of, table_of
from tests.campaigns._audit.values import State, documented, key_text, parsed

_COMMITS = """
SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, 'skip-empty-xacts', '1')
WHERE data LIKE 'BEGIN %%' OR data LIKE 'COMMIT %%'
"""


_TIMES = """
SELECT xid, to_char(pg_xact_commit_timestamp(xid::text::xid) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM (SELECT DISTINCT xid FROM audit.change) AS transaction
"""


BRANCH = 1 << 64
"""What each restore adds to the places in the log that is written after it, which were used before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one key, in the terms of the changelog.

    `op` is `create`, `update`, `delete`, `truncate` (of every key), or `alter`: the row has other columns since, which
    is no message. `other` is the key at the other end of a move.
    """

    entity: str
    op: str
    key: str = ""
    old: State | None = None
    new: State | None = None
    stamp: str = ""
    other: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A committed transaction: where its first change stands in the log, where its commit record ends, and its time.

    Or, with `restored`, what changed everything back to as it was at that place.
    """

    xid: int
    first: int
    end: int
    committed: str
    events: Sequence[Event]
    restored: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A restore to where the log ended `at`, and all that had been committed until then, as it stood in that log."""

    at: int
    transactions: Sequence[Transaction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One row of the audit."""

    op: str
    entity: str
    stamp: str
    types: Mapping[str, str] | None
    old: State | None
    new: State | None


def place(lsn: int, restores: Sequence[int]) -> int:
    """The place of a byte of the log, after restores to these places, that is no other one's."""
    return sum(at < lsn for at in restores) * BRANCH + lsn


def with_lost(transactions: Sequence[Transaction], restores: Sequence[Restored]) -> list[Transaction]:
    """What a database holds now, each transaction at a place of its own, and what restores took from it before."""
    ends = [restored.at for restored in restores]
    whole = [_moved(transaction, ends) for transaction in transactions]
    for number, restored in enumerate(restores):
        before = ends[:number]
        lost = (transaction for transaction in restored.transactions if transaction.end > restored.at)
        whole += [_moved(transaction, before) for transaction in lost]
        back = place(restored.at, before)
        start = (number + 1) * BRANCH
        whole.append(Transaction(xid=0, first=start, end=start, committed="", events=(), restored=back))
    return sorted(whole, key=lambda transaction: transaction.end)


def _moved(transaction: Transaction, restores: Sequence[int]) -> Transaction:
    first, end = (place(lsn, restores) for lsn in (transaction.first, transaction.end))
    return replace(transaction, first=first, end=end)


def history(dsn: str) -> list[Transaction]:
    """All transactions that changed a table, in the order of their commits."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        set_json_loads(parsed, connection)
        rows = connection.execute("SELECT xid, op, entity, stamp, types, old, new FROM audit.change ORDER BY xid, n")
        recorded = {
            xid: [Recorded(**dict(zip(Recorded.__slots__, row[1:], strict=True))) for row in group]
            for xid, group in itertools.groupby(rows, lambda row: int(row[0]))
        }
        times: dict[int, str] = dict(connection.execute(_TIMES).fetchall())
        # Last, so that it has all that the audit has, whatever is still being committed.
        commits = _commits(connection.execute(_COMMITS, [SLOT]).fetchall())
    missing = recorded.keys() - {xid for xid, _, _ in commits}
    assert not missing, f"test_decoding does not know of the transactions {sorted(missing)[:5]}"
    return [
        Transaction(xid=xid, first=first, end=end, committed=times[xid], events=list(events(recorded[xid])))
        for xid, first, end in commits
        if xid in recorded
    ]


def _commits(lines: Iterable[tuple[Any, ...]]) -> list[tuple[int, int, int]]:
    """Transaction id, place of the first change and end, of each transaction."""
    found: list[tuple[int, int, int]] = []
    first = 0
    for lsn, data in lines:
        what, xid = data.split()
        if what == "BEGIN":
            first = int(lsn)
        else:
            found.append((int(xid), first, int(lsn)))
    return found


def events(recorded: Sequence[Recorded]) -> Iterator[Event]:
    """The events of one transaction."""
    skipped = False
    for row, following in itertools.pairwise([*recorded, None]):
        assert row is not None
        if skipped or row.op == "MESSAGE":
            skipped = False
            continue
        if following is not None and (arrived := _crossed(row, following)):
            skipped, row = True, arrived
        yield from _events(row)


def _crossed(row: Recorded, following: Recorded) -> Recorded | None:
    """The update that a delete in a partitioned table and an insert of the same key right after it are."""
    if (row.op, following.op) != ("DELETE", "INSERT") or row.entity != following.entity:
        return None
    entity = entity_of(row.entity)
    assert row.old is not None
    assert following.new is not None
    if not entity.partitioned or key_text(row.old, entity.key) != key_text(following.new, entity.key):
        return None
    return replace(following, op="UPDATE", old=row.old)


def _events(row: Recorded) -> Iterator[Event]:
    if row.op == "TRUNCATE":
        yield Event(entity=row.entity, op="truncate", stamp=row.stamp)
        return
    assert row.types is not None
    old = None if row.old is None else documented(row.old, row.types)
    new = None if row.new is None else documented(row.new, row.types)
    entity = entity_of(row.entity)
    left = "" if old is None else key_text(old, entity.key)
    arrived = "" if new is None else key_text(new, entity.key)
    event = Event(entity=row.entity, op="update", key=arrived or left, old=old, new=new, stamp=row.stamp)
    if row.op == "ALTER":
        yield replace(event, op="alter")
    elif old is None:
        yield replace(event, op="create")
    elif new is None:
        yield replace(event, op="delete")
    elif left == arrived and placed(entity, old) == placed(entity, new):
        yield event
    else:
        yield replace(event, op="delete", key=left, new=None, other=arrived)
        yield replace(event, op="create", key=arrived, old=None, other=left)


def placed(entity: Entity, row: State) -> int:
    """The partition that the row belongs to."""
    return partition(key_text(row, entity.placed_by), entity.partitions)


def tables(dsn: str, names: Iterable[str]) -> dict[str, dict[str, State]]:
    """What these tables hold now, by entity and key."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        set_json_loads(parsed, connection)
        states: dict[str, dict[str, State]] = {}
        for name in names:
            table = table_of(name)
            text = sql.Literal(table.as_string(connection))
            query = sql.SQL("SELECT audit.types({text}::regclass), to_jsonb(t) FROM {table} AS t")
            rows = connection.execute(query.format(text=text, table=table)).fetchall()
            key = entity_of(name).key
            states[name] = {key_text(row, key): row for row in (documented(row, types) for types, row in rows)}
    return states
