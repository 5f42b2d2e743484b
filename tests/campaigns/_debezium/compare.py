"""Compares what two services published from one database: the rows, their order, and their transactions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw

from tests.campaigns._debezium.listed import no_day, parsed
from tests.campaigns._debezium.tables import Table

_COLUMNS = ("entity", "key", "op", "position", "transaction", "provenance", "current", "original", "moved")
_states = msgspec.json.Decoder(dict[str, Raw])
SHOWN = 12
STATEMENT_MAX = timedelta(minutes=5)
"""The longest time that may pass between a statement and the commit of its transaction."""
ABSENT = ("unavailable", "unavailableOriginal", "jsonNull", "jsonNullOriginal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published row. `commit` is the part of its position that all rows of a transaction have in common."""

    entity: str
    key: str
    op: str
    commit: str
    transaction: str
    committed_at: str
    absent: tuple[Any, ...]
    current: Mapping[str, bytes] | None
    original: Mapping[str, bytes] | None
    moved: str | None


def rows_of(batches: Iterable[pa.RecordBatch], entities: Iterable[str]) -> Iterator[Row]:
    """Yields the rows of these entities."""
    names = set(entities)
    for rows in batches:
        columns = (rows.column(name).to_pylist() for name in _COLUMNS)
        for entity, key, op, position, transaction, provenance, current, original, moved in zip(*columns, strict=True):
            if entity not in names:
                continue
            source = msgspec.json.decode(provenance)["source"]
            yield Row(
                entity=entity,
                key=key,
                op=op,
                commit=position.rpartition("/")[0],
                transaction=transaction,
                committed_at=source["committedAt"],
                absent=tuple(source.get(name) for name in ABSENT),
                current=_state(current),
                original=_state(original),
                moved=moved,
            )


def _state(text: str | None) -> Mapping[str, bytes] | None:
    return None if text is None else {name: bytes(token) for name, token in _states.decode(text).items()}


@dataclass(slots=True)
class Verdict:
    """The result of a comparison. `listed` counts differences that are known and have a rule in `listed.py`; `faults`
    counts all others.
    """

    changes: int = 0
    reads: int = 0
    values: int = 0
    transactions: int = 0
    listed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def fault(self, kind: str, example: object) -> None:
        """Counts a fault. Keeps at most two examples of each kind."""
        self.faults[kind] += 1
        if self.faults[kind] <= 2 and len(self.examples) < SHOWN:
            self.examples.append(f"{kind}: {str(example)[:600]}")

    def check(self) -> None:
        """Raises AssertionError if any fault was counted."""
        assert not self.faults, "\n".join([str(dict(self.faults)), *self.examples])


class Comparison:
    """Compares the rows that our own source published with those that came from Debezium.

    `described` maps each entity and column to the type of the column. Faults are counted by type. With `is_later`, the
    time that our source publishes for a change may be later than Debezium's. With `in_parts`, each table has its own
    topic for Debezium's events, so only the rows of the same table are in order.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        described: Mapping[tuple[str, str], str],
        *,
        is_later: bool,
        in_parts: bool = False,
    ) -> None:
        self.verdict = Verdict()
        self._rules = {table.name: table.rules for table in tables}
        self._read_rules = {table.name: table.read_rules for table in tables}
        self._described, self._is_later, self._in_parts = described, is_later, in_parts
        self._updated: set[str] = set()

    def compare(self, ours: Sequence[Row], theirs: Sequence[Row]) -> Verdict:
        """Compares all rows. The order matters only for changes, not for rows that were read from tables."""
        self._reads(*([row for row in side if row.op == "read"] for side in (ours, theirs)))
        changes = [[row for row in side if row.op != "read"] for side in (ours, theirs)]
        if self._in_parts:
            changes = [sorted(side, key=lambda row: row.entity) for side in changes]
        self._changes(*changes)
        return self.verdict

    def _reads(self, ours: Sequence[Row], theirs: Sequence[Row]) -> None:
        """Compares the rows that were read from tables, in any order."""
        by_key, others = ({(row.entity, row.key): row for row in side} for side in (ours, theirs))
        for name in by_key.keys() | others.keys():
            if name not in by_key or name not in others:
                self.verdict.fault("only one service has a row with the op read", (name, name in by_key))
                continue
            self.verdict.reads += 1
            self._row(by_key[name], others[name])
        for side in (ours, theirs):
            if len(side) != len({(row.entity, row.key) for row in side}):
                self.verdict.fault("a row was read twice", len(side))

    def _changes(self, ours: Sequence[Row], theirs: Sequence[Row]) -> None:
        """Compares the changes in their order, and the transactions that they belong to."""
        groups: dict[str, str] = {}
        for number, (own, other) in enumerate(zip(ours, theirs, strict=False)):
            if (own.entity, own.key, own.op) != (other.entity, other.key, other.op):
                self.verdict.fault("the next change differs", f"{number}: {own}\n    {other}")
                return
            self.verdict.changes += 1
            self._row(own, other)
            if own.transaction != other.transaction:
                self.verdict.fault("the transactions differ", (own, other.transaction))
            if groups.setdefault(other.commit, own.commit) != own.commit:
                self.verdict.fault("Debezium joined two transactions", (own, other))
        self.verdict.transactions = len(set(groups.values()))
        if further := len(groups) - self.verdict.transactions:
            self.verdict.listed["a further part of a transaction"] += further
        if len(ours) != len(theirs):
            more = (ours if len(ours) > len(theirs) else theirs)[min(len(ours), len(theirs))]
            self.verdict.fault("one service has more changes", (len(ours), len(theirs), more))

    def _is_unsure(self, own: Row, other: Row) -> bool:
        """Returns whether Debezium's delete has only the key, and the reason is that its table has had no update yet.

        Debezium's events from PostgreSQL do not say whether old rows are complete. The service learns this from the
        first update of a table. Until then, it publishes only the key of a deleted row.
        """
        if other.op == "update":
            self._updated.add(other.entity)
        if own.op != "delete" or own.entity in self._updated or own.original is None or other.original is None:
            return False
        missing = [name for name in own.original if name not in other.original]
        key = {name: token for name, token in own.original.items() if name in other.original}
        return bool(missing) and other.absent == (None, missing, None, None) and key == other.original

    def _row(self, own: Row, other: Row) -> None:
        if self._is_unsure(own, other):
            self.verdict.listed["a delete before the first update of its table"] += 1
            return
        if own.absent != other.absent:
            self.verdict.fault(f"different absent values in {own.op}", (own.entity, own.key, own.absent, other.absent))
        if own.moved != other.moved and self._in_parts and other.moved is None:
            self.verdict.listed["half of a changed key"] += 1
        elif own.moved != other.moved:
            self.verdict.fault("the moves differ", (own.entity, own.moved, other.moved))
        if own.op != "read" and own.committed_at != other.committed_at:
            self._time(own, other)
        for side in ("current", "original"):
            self._state(own, side, getattr(own, side), getattr(other, side))

    def _time(self, own: Row, other: Row) -> None:
        """Compares the times that were published for a change.

        MySQL's log has two times. Debezium publishes the time of the statement, and we publish the time of the commit.
        """
        ours, theirs = (datetime.fromisoformat(row.committed_at) for row in (own, other))
        if self._is_later and timedelta(0) < ours - theirs < STATEMENT_MAX:
            self.verdict.listed["the time of the statement"] += 1
        else:
            self.verdict.fault("the times differ", (own.committed_at, other.committed_at))

    def _state(self, row: Row, side: str, ours: Mapping[str, bytes] | None, theirs: Mapping[str, bytes] | None) -> None:
        if ours is None or theirs is None:
            if ours is not theirs:
                self.verdict.fault(
                    f"only one service has the {side} of a row with the op {row.op}",
                    (row.entity, row.key, ours, theirs),
                )
            return
        if [*ours] != [*theirs]:
            self.verdict.fault(f"different columns in {side} of {row.op}", (row.entity, row.key, [*ours], [*theirs]))
            return
        self.verdict.values += len(ours)
        for name, token in ours.items():
            if token != theirs[name]:
                self._value(row, name, token, theirs[name])

    def _value(self, row: Row, column: str, ours: bytes, theirs: bytes) -> None:
        own, other = parsed(ours), parsed(theirs)
        if own == other:
            return
        rules = self._read_rules if row.op == "read" else self._rules
        for name, rule in rules[row.entity].get(column, {}).items():
            if own is not None and (other is not None or rule is no_day) and rule(own, other):
                self.verdict.listed[name] += 1
                return
        described = self._described.get((row.entity, column), "a key")
        self.verdict.fault(f"{described} in {'read' if row.op == 'read' else 'log'}", (column, ours, theirs))
