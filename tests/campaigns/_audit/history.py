"""Reads which transactions changed the tables, and what each of them changed.

Triggers record each change as a row of the *audit*, a table in the same database (see `tables.py`). PostgreSQL's plugin
`test_decoding` tells in which order the transactions were committed.
"""

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
"""When a database has been restored to an earlier state, its server uses some positions of its log a second time. To
tell them apart, the campaign adds this number to every position after a restore: twice after two restores, and so on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of one key, as the changelog must show it.

    `op` is `create`, `update`, `delete`, `truncate` or `alter`. A `truncate` concerns all keys. An `alter` says that
    the row has other columns from then on; the changelog has no message for it. A row that moves to another key or
    partition has two events, a `delete` and a `create`. In each of these, `other` is the key of the other event.
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
    """A committed transaction. `first` is the position of its first change in the server's log, `end` is where its
    commit record ends, and `committed` is the time of the commit.

    If `restored` is a position, this object describes a restore instead: the database went back to its state at that
    position.
    """

    xid: int
    first: int
    end: int
    committed: str
    events: Sequence[Event]
    restored: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A restore to the position `at`. `transactions` are those that the database had just before the restore."""

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
    """Returns a unique number for the position `lsn` after these restores (see `BRANCH`)."""
    return sum(at < lsn for at in restores) * BRANCH + lsn


def with_lost(transactions: Sequence[Transaction], restores: Sequence[Restored]) -> list[Transaction]:
    """Returns the transactions that the database has now, those that a restore has undone, and the restores, in the
    order in which they happened. All of them get unique positions.
    """
    ends = [restored.at for restored in restores]
    result = [_at_unique_positions(transaction, ends) for transaction in transactions]
    for number, restored in enumerate(restores):
        before = ends[:number]
        undone = (transaction for transaction in restored.transactions if transaction.end > restored.at)
        result += [_at_unique_positions(transaction, before) for transaction in undone]
        back = place(restored.at, before)
        start = (number + 1) * BRANCH
        result.append(Transaction(xid=0, first=start, end=start, committed="", events=(), restored=back))
    return sorted(result, key=lambda transaction: transaction.end)


def _at_unique_positions(transaction: Transaction, restores: Sequence[int]) -> Transaction:
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
        # The commits are read last. So they include every transaction in `recorded`, even if others commit meanwhile.
        commits = _commits(connection.execute(_COMMITS, [SLOT]).fetchall())
    missing = recorded.keys() - {xid for xid, _, _ in commits}
    assert not missing, f"test_decoding does not know of the transactions {sorted(missing)[:5]}"
    return [
        Transaction(xid=xid, first=first, end=end, committed=times[xid], events=list(events(recorded[xid])))
        for xid, first, end in commits
        if xid in recorded
    ]


def _commits(lines: Iterable[tuple[Any, ...]]) -> list[tuple[int, int, int]]:
    """For each transaction: its id, the position of its first change, and its end."""
    commits: list[tuple[int, int, int]] = []
    first = 0
    for lsn, data in lines:
        kind, xid = data.split()
        if kind == "BEGIN":
            first = int(lsn)
        else:
            commits.append((int(xid), first, int(lsn)))
    return commits


def events(recorded: Sequence[Recorded]) -> Iterator[Event]:
    """The events of one transaction."""
    skipped = False
    for row, following in itertools.pairwise([*recorded, None]):
        assert row is not None
        if skipped or row.op == "MESSAGE":
            skipped = False
            continue
        if following is not None and (update := _as_update(row, following)):
            skipped, row = True, update
        yield from _events(row)


def _as_update(row: Recorded, following: Recorded) -> Recorded | None:
    """If `row` deletes from a partitioned table and `following` inserts the same key, returns both as one update.

    If an update moves a row to another partition of its table, PostgreSQL logs a delete and an insert.
    """
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
    old_key = "" if old is None else key_text(old, entity.key)
    new_key = "" if new is None else key_text(new, entity.key)
    event = Event(entity=row.entity, op="update", key=new_key or old_key, old=old, new=new, stamp=row.stamp)
    if row.op == "ALTER":
        yield replace(event, op="alter")
    elif old is None:
        yield replace(event, op="create")
    elif new is None:
        yield replace(event, op="delete")
    elif old_key == new_key and placed(entity, old) == placed(entity, new):
        yield event
    else:
        yield replace(event, op="delete", key=old_key, new=None, other=new_key)
        yield replace(event, op="create", key=new_key, old=None, other=old_key)


def placed(entity: Entity, row: State) -> int:
    """The number of the changelog's partition to which the row belongs."""
    return partition(key_text(row, entity.placed_by), entity.partitions)


def tables(dsn: str, names: Iterable[str]) -> dict[str, dict[str, State]]:
    """The rows that these tables have now, by entity and key."""
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
