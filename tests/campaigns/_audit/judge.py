"""Compares a changelog with the audit (the changes that triggers recorded), transaction by transaction. Then compares
the last state of each key with the tables.

The service publishes a row with the op `read` when it reads a table. Such a row must have the state that its key had
after all transactions that were committed before the row's position. In this way, the judge also checks changes that
were made before a table was added: the service sees them only when it reads the table.
"""

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.campaigns._audit.history import BRANCH, Event, Transaction, placed
from tests.campaigns._audit.rows import TRUNCATE_KEY, Gap, Row
from tests.campaigns._audit.tables import Entity, entity_of
from tests.campaigns._audit.values import State, same

_EXAMPLES_MAX = 12
_LONG_MIN = 1_000
"""PostgreSQL stores shorter values in the row itself, so the log has them with every change of the row."""

_T = TypeVar("_T")
Tables = Mapping[str, Mapping[str, State]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """The positions in the server's log at which the changelog of an entity begins.

    The changelog has no change of a transaction that ends at `nothing` or before. It has all changes of a transaction
    that begins after `published` and ends after `streaming`. Of any other transaction, it has all changes, only the
    last ones, or none. During each span in `hidden`, the publication lacked the table or some of its rows. The
    changelog may lack any change of a transaction that overlaps such a span. If a key was deleted in the span, the
    service publishes the delete later.
    """

    nothing: int
    published: int = 0
    streaming: int = 0
    hidden: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Verdict:
    """The result: how many rows were judged, and how many faults of each kind were found. `faults` has examples.
    `stale` counts rows with the op `read` that do not have the state of their position. `folded_wrong` counts last
    states and values that differ from the tables.

    `unknown` counts values that no message of their row contained. `in_gaps` counts transactions that the changelog may
    lack because of a gap. `as_text` counts rows in which a value of a composite type is a text, because the service did
    not know the type's attributes.
    """

    rows: int = 0
    changes: int = 0
    reads: int = 0
    transactions: int = 0
    unknown: int = 0
    in_gaps: int = 0
    as_text: int = 0
    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    wrong: int = 0
    stale: int = 0
    folded_wrong: int = 0
    faults: list[str] = field(default_factory=list)

    def note(self, kind: str, fault: str, subject: object) -> None:
        """Counts a fault of this kind. Keeps the first faults as examples."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.faults) < _EXAMPLES_MAX:
            self.faults.append(f"{kind}: {fault}: {str(subject)[:900]}")

    def check(self) -> None:
        """Raises AssertionError if any fault was counted."""
        names = ("lost", "repeated", "reordered", "wrong", "stale", "folded_wrong")
        figures = {name: getattr(self, name) for name in names}
        if any(figures.values()):
            raise AssertionError("\n".join([f"{figures} of {self.rows} rows", *self.faults]))


def judge(
    rows: Iterable[Row],
    transactions: Sequence[Transaction],
    since: Mapping[str, Since],
    tables: Tables,
    gaps: Sequence[Gap] = (),
) -> Verdict:
    """Judges a changelog. The caller gives the rows of each partition in the order in which a consumer reads them."""
    verdict = Verdict()
    judged = _Judge(verdict, transactions, since, gaps)
    ordered = _ordered(rows, verdict)
    for gap in gaps:
        _check_gap(gap, ordered, verdict)
    judged.run(ordered)
    for name, table in tables.items():
        assert judged.truth.rows[name] == table, f"the audit does not add up to the table {name}"
        if name in since:
            judged.fold.compare(name, table)
    return verdict


def _ordered(rows: Iterable[Row], verdict: Verdict) -> list[Row]:
    """Returns the rows, sorted by position. Notes a fault where positions do not grow within a partition."""
    last: dict[tuple[str, int], str] = {}
    collected = []
    for row in rows:
        topic_partition, before = (row.entity, row.partition), last.get((row.entity, row.partition), "")
        if row.position == before:
            verdict.note("repeated", "the position occurs twice in the partition", row)
        elif row.position < before:
            verdict.note("reordered", f"after {before}", row)
        last[topic_partition] = row.position
        collected.append(row)
    verdict.rows = len(collected)
    return sorted(collected, key=lambda row: (row.position, row.partition))


def _check_gap(gap: Gap, ordered: Sequence[Row], verdict: Verdict) -> None:
    """Checks that the epoch changes at the gap, and that no row is between `gap.last` and the gap's own position.

    If the gap empties entities, the changelog must have a truncate for each of their partitions at the gap's position.
    """
    first = bisect.bisect_right(ordered, gap.last, key=lambda row: row.position)
    if gap.last >= gap.position or (first < len(ordered) and ordered[first].position < gap.position):
        verdict.note("reordered", f"in {gap}", ordered[first : first + 1])
    truncates = [row for row in ordered if row.position == gap.position and row.op == "truncate"]
    emptied = gap.emptied
    if emptied is None:
        emptied = frozenset(gap.entities if truncates else ())
    partitions = {(name, number) for name in emptied for number in range(entity_of(name).partitions)}
    if sorted((row.entity, row.partition) for row in truncates) != sorted(partitions):
        verdict.note("wrong", f"at {gap}: truncates", truncates)
    if _epoch(gap.last) >= _epoch(gap.position):
        verdict.note("reordered", "the epoch did not change at a gap", gap)


def _epoch(position: str) -> str:
    return position.split("/", maxsplit=1)[0]


class _Truth:
    """The rows of the tables after the transactions so far. Also keeps a copy of the rows at each position in `copied`,
    because a later restore takes the database back to this position.
    """

    def __init__(self, copied: Iterable[int]) -> None:
        self.rows: dict[str, dict[str, State]] = defaultdict(dict)
        self._positions = sorted(copied, reverse=True)
        self._copies: dict[int, dict[str, dict[str, State]]] = {}

    def transaction(self, transaction: Transaction) -> None:
        """Applies the next transaction."""
        while self._positions and self._positions[-1] < transaction.end:
            self._copies[self._positions.pop()] = {name: dict(rows) for name, rows in self.rows.items()}
        if transaction.restored is not None:
            self.rows = defaultdict(dict, self._copies[transaction.restored])
        for event in transaction.events:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        rows = self.rows[event.entity]
        if event.op == "truncate":
            rows.clear()
        elif event.new is None:
            rows.pop(event.key, None)
        else:
            rows[event.key] = event.new


class _Fold:
    """What a consumer knows: the last state of each key. If a message lacks a value, the previous value is kept."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._rows: dict[str, dict[str, dict[str, object]]] = defaultdict(dict)

    def add(self, row: Row) -> None:
        """Applies the next message."""
        states = self._rows[row.entity]
        if row.key == TRUNCATE_KEY:
            states.clear()
        elif row.current is None:
            states.pop(row.key, None)
        else:
            before = states.get(row.key, {})
            unavailable = {name: before[name] for name in row.unavailable if name in before}
            states[row.key] = {**unavailable, **row.current}

    def compare(self, name: str, table: Mapping[str, State]) -> None:
        """Checks that the states are the rows of the table. A state may lack a column that was added later, as long as
        the value of this column is null.
        """
        states, long = self._rows[name], () if entity_of(name).full else entity_of(name).long
        for key in states.keys() ^ table.keys():
            side = "only the changelog has" if key in states else "only the table has"
            self._verdict.note("folded_wrong", f"{name}: {side}", key)
        for key in states.keys() & table.keys():
            for column, value in table[key].items():
                if column in long and column not in states[key]:
                    self._verdict.unknown += 1
                elif states[key].get(column) != value:
                    values = (states[key].get(column), value)
                    self._verdict.note("folded_wrong", f"{name} {key}: {column} in the changelog and the table", values)


class _Judge:
    def __init__(
        self,
        verdict: Verdict,
        transactions: Sequence[Transaction],
        since: Mapping[str, Since],
        gaps: Sequence[Gap],
    ) -> None:
        self._verdict, self._transactions, self._since, self._gaps = verdict, transactions, since, gaps
        self._ends = [transaction.end for transaction in transactions]
        self._streaming: set[str] = set()
        self._restores = [gap.position for gap in gaps if gap.restored]
        self.truth = _Truth(transaction.restored for transaction in transactions if transaction.restored is not None)
        self.fold = _Fold(verdict)

    def run(self, rows: Sequence[Row]) -> None:
        """Compares transactions and rows in the order of the log."""
        for row in rows:
            self._check_partition(row)
            current, composites = row.current or {}, entity_of(row.entity).composites
            self._verdict.as_text += any(isinstance(current.get(column), str) for column in composites)
        groups = itertools.groupby(rows, lambda row: bisect.bisect_right(self._ends, self._place(row)))
        by_commit = {number: list(group) for number, group in groups}
        for number, transaction in enumerate(self._transactions):
            self._commit(transaction, by_commit.get(number, []))
        for row in by_commit.get(len(self._transactions), []):
            self._check_alone(row)

    def _commit(self, transaction: Transaction, rows: Sequence[Row]) -> None:
        changes = []
        for row in rows:
            if row.op != "read" and row.transaction == transaction.xid:
                changes.append(row)
                self.fold.add(row)
            else:
                self._check_alone(row)
        self.truth.transaction(transaction)
        if transaction.restored is None:
            self._compare(transaction, changes)

    def _place(self, row: Row) -> int:
        """Where the commit record of the row begins in the server's log, as a unique number (see `BRANCH`)."""
        return bisect.bisect_right(self._restores, row.position) * BRANCH + row.commit

    def _check_alone(self, row: Row) -> None:
        """Checks a row that belongs to no transaction. If its op is `read`, it must have the state that its key has
        after the transactions so far.
        """
        self.fold.add(row)
        if row.op == "delete" and self._may_be_deleted(row):
            return
        if row.op == "truncate" and row.position in (gap.position for gap in self._gaps):
            return
        if row.op != "read":
            self._verdict.note("repeated", "no transaction was committed at this position", row)
            return
        self._verdict.reads += 1
        if row.original is not None or row.unavailable or row.unavailable_original:
            self._verdict.note("wrong", "a row with the op read has an original, or lacks a value", row)
        state, composites = self.truth.rows[row.entity].get(row.key), entity_of(row.entity).composites
        if state is None or row.current is None or not same(state, row.current, composites):
            self._verdict.note("stale", f"the table had {str(state)[:300]} at this position", row)

    def _may_be_deleted(self, row: Row) -> bool:
        """Whether the service may publish this delete, although the server's log has no such change.

        The table must lack the key. Also, a span in which changes were hidden from the service, or a gap, must come
        before the row: the delete of the key may be missing there.
        """
        hidden = any(start < self._place(row) for start, _ in self._since[row.entity].hidden)
        after_gap = any(gap.position < row.position for gap in self._gaps)
        return (hidden or after_gap) and row.key not in self.truth.rows[row.entity]

    def _check_partition(self, row: Row) -> None:
        """Checks that the row's values belong to its partition. A truncate has no values, so it is not checked."""
        state, entity = row.current or row.original, entity_of(row.entity)
        has_columns = state is not None and all(column in state for column in entity.placed_by)
        if state is not None and has_columns and placed(entity, state) != row.partition:
            self._verdict.note("wrong", f"belongs in partition {placed(entity, state)}", row)

    def _compare(self, transaction: Transaction, rows: Sequence[Row]) -> None:
        """Compares the events of a transaction with the rows that the changelog has for it, key by key."""
        for row in rows:
            if row.committed != transaction.committed:
                self._verdict.note("wrong", f"committed at {transaction.committed}", row)
        self._verdict.changes += len(rows)
        self._verdict.transactions += bool(rows)
        self._verdict.in_gaps += self._in_gap(transaction)
        expected, actual = _by_key(_numbered_events(transaction, self._since)), _by_key(_numbered_rows(rows))
        for key in {**expected, **actual}:
            events, key_rows = expected.get(key, []), actual.get(key, [])
            expected_events = self._expected_events(transaction, key[0], events, key_rows)
            self._compare_key(transaction, key, expected_events, key_rows)
        self._streaming.update(entity for entity, _ in actual)

    def _expected_events(self, transaction: Transaction, entity: str, events: "_Events", rows: "_Rows") -> "_Events":
        """Returns the events that the changelog must have. If it may lack some, returns only those that it has."""
        since = self._since[entity]
        if transaction.end <= since.nothing:
            return []
        hidden = any(transaction.first < end and start < transaction.end for start, end in since.hidden)
        if hidden or self._in_gap(transaction):
            return _matching_events(events, rows)
        if transaction.first > since.published and (transaction.end > since.streaming or entity in self._streaming):
            return events
        return events[max(0, len(events) - len(rows)) :]

    def _in_gap(self, transaction: Transaction) -> bool:
        return any(gap.start < transaction.end <= gap.end for gap in self._gaps)

    def _compare_key(self, transaction: Transaction, key: "_Key", events: "_Events", rows: "_Rows") -> None:
        """Compares the events and the rows of one key in one transaction."""
        place = f"in transaction {transaction.xid} from {transaction.first:X} to {transaction.end:X}"
        summary = f"{key}: {len(events)} changes, {len(rows)} rows, {place}; {self._since[key[0]]}"
        if len(rows) < len(events):
            self._verdict.note("lost", summary, events)
        elif len(rows) > len(events):
            self._verdict.note("repeated", summary, rows)
        elif any(map(_difference, events, rows)):
            unmatched = list(rows)
            for event in events:
                match = next((row for row in unmatched if not _difference(event, row)), None)
                if match is not None:
                    unmatched.remove(match)
            differences = "; ".join(filter(None, map(_difference, events, rows)))
            self._verdict.note("wrong" if unmatched else "reordered", differences, rows)


_Key = tuple[str, str]
_Events = list[tuple[int, Event]]
_Rows = list[tuple[int, Row]]
"""The number before each event or row says how many TRUNCATEs of its table come before it in its transaction."""


def _matching_events(events: _Events, rows: _Rows) -> _Events:
    """Returns the events that match the rows, in the order of the rows. The rows may have only one half of a move."""
    remaining = iter(events)
    shown: _Events = []
    for emptied, row in rows:
        halves = ((emptied, half) for _, event in remaining for half in (event, replace(event, other=None)))
        match = next((half for half in halves if not _difference(half, (emptied, row))), None)
        shown += [] if match is None else [match]
    return shown


def _by_key(placed: Iterable[tuple[_Key, _T]]) -> dict[_Key, list[_T]]:
    groups: dict[_Key, list[_T]] = defaultdict(list)
    for key, item in placed:
        groups[key].append(item)
    return groups


def _numbered_events(transaction: Transaction, entities: Container[str]) -> Iterator[tuple[_Key, tuple[int, Event]]]:
    """Yields each message that a transaction must have: its entity and key, and the event."""
    emptied: Counter[str] = Counter()
    for event in transaction.events:
        if event.entity in entities and event.op != "alter":
            for name in _names(event):
                yield (event.entity, name), (emptied[event.entity], event)
            emptied[event.entity] += event.op == "truncate"


def _numbered_rows(rows: Iterable[Row]) -> Iterator[tuple[_Key, tuple[int, Row]]]:
    """Yields the entity and the key of each row, and then the row with its number. Truncates with the same position
    come from the same TRUNCATE.
    """
    emptied: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        before = len(emptied[row.entity] - {row.position})
        if row.key == TRUNCATE_KEY:
            emptied[row.entity].add(row.position)
        name = f"{row.key}{row.partition}" if row.key == TRUNCATE_KEY else row.key
        yield (row.entity, name), (before, row)


def _names(event: Event) -> list[str]:
    """Returns the keys of the messages that an event must have. A TRUNCATE has one message for each partition."""
    if event.op != "truncate":
        return [event.key]
    return [f"{TRUNCATE_KEY}{number}" for number in range(entity_of(event.entity).partitions)]


def _difference(numbered_event: tuple[int, Event], numbered_row: tuple[int, Row]) -> str:
    """Describes how the row differs from the event. The text is empty if they agree."""
    (emptied, event), (emptied_before, row) = numbered_event, numbered_row
    entity = entity_of(row.entity)
    if emptied != emptied_before:
        return f"the row comes after {emptied_before} TRUNCATEs of its transaction, instead of after {emptied}"
    if row.op != event.op or row.stamp != event.stamp or row.other != event.other:
        return f"{(row.op, row.stamp, row.other)} instead of {(event.op, event.stamp, event.other)}"
    return _current(entity, event, row) or _original(entity, event, row)


def _current(entity: Entity, event: Event, row: Row) -> str:
    """Compares the current states. Without REPLICA IDENTITY FULL, the row may lack a long value that did not change."""
    if event.new is None:
        return "" if row.current is None and not row.unavailable else "the current state is not null"
    unavailable = set(row.unavailable)
    for column in unavailable:
        if entity.full or column not in entity.long or len(str(event.new[column])) < _LONG_MIN:
            return f"{column} is unavailable"
    expected = {name: value for name, value in event.new.items() if name not in unavailable}
    agrees = row.current is not None and same(expected, row.current, entity.composites)
    return "" if agrees else f"the current state is not {str(expected)[:300]}"


def _original(entity: Entity, event: Event, row: Row) -> str:
    """Compares the originals. With REPLICA IDENTITY FULL, the original is the old row. With DEFAULT, it is the key of
    the old row, and only deletes have it.
    """
    expected = event.old
    if event.old is not None and not entity.full:
        expected = {name: event.old[name] for name in entity.key} if event.op == "delete" else None
    agrees = same(expected or {}, row.original or {}, entity.composites)
    if (expected is None) != (row.original is None) or not agrees:
        return f"the original is not {str(expected)[:300]}"
    missing = set() if expected is None or event.old is None else event.old.keys() - expected.keys()
    agrees = set(row.unavailable_original) == missing
    return "" if agrees else f"the columns that must be unavailable in the original are {missing}"
