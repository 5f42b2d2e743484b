"""Compares a changelog with the audit, transaction by transaction, and its fold with the tables.

A row of op `read` stands for the state that its key has at the row's position: the fold of all transactions that were
committed before. So it may also stand for changes that the stream does not hold, those of before the table was added.
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
"""Shorter values are stored in their row, and the log always holds them."""

_T = TypeVar("_T")
Tables = Mapping[str, Mapping[str, State]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """From where on the changelog holds an entity's changes, as places in the server's log.

    It holds nothing of transactions that end up to `nothing`, and all of those that begin after `published` and end
    after `streaming`. Of the others it holds the last changes, or all, or none. Of transactions that overlap a part
    that is `hidden`, it may lack any change; keys that went meanwhile are deleted later.
    """

    nothing: int
    published: int = 0
    streaming: int = 0
    hidden: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Verdict:
    """What was found; `faults` are examples in words.

    `unknown` counts values that no message of their row held, `in_gaps` transactions that the changelog may lack,
    `as_text` rows with a composite whose attributes nobody knew.
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

    def note(self, kind: str, what: str, about: object) -> None:
        """Counts a fault, and keeps the first ones as examples."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.faults) < _EXAMPLES_MAX:
            self.faults.append(f"{kind}: {what}: {str(about)[:900]}")

    def check(self) -> None:
        """Raises AssertionError when anything was found."""
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
    """The verdict on a changelog, whose rows come in the order in which a consumer of each partition gets them."""
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
    """The rows in the order of their positions, which must grow within each partition."""
    last: dict[tuple[str, int], str] = {}
    collected = []
    for row in rows:
        place, before = (row.entity, row.partition), last.get((row.entity, row.partition), "")
        if row.position == before:
            verdict.note("repeated", "a position twice in one partition", row)
        elif row.position < before:
            verdict.note("reordered", f"after {before}", row)
        last[place] = row.position
        collected.append(row)
    verdict.rows = len(collected)
    return sorted(collected, key=lambda row: (row.position, row.partition))


def _check_gap(gap: Gap, ordered: Sequence[Row], verdict: Verdict) -> None:
    """All rows up to the last one before it are of an earlier epoch, and all after it of its own; at it are truncates,
    where the entities are emptied, of all partitions.
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
        verdict.note("reordered", "a gap in the midst of an epoch", gap)


def _epoch(position: str) -> str:
    return position.split("/", maxsplit=1)[0]


class _Truth:
    """The tables' rows, transaction by transaction; as they were at the places of `copied`, they can be had again."""

    def __init__(self, copied: Iterable[int]) -> None:
        self.rows: dict[str, dict[str, State]] = defaultdict(dict)
        self._due = sorted(copied, reverse=True)
        self._copies: dict[int, dict[str, dict[str, State]]] = {}

    def transaction(self, transaction: Transaction) -> None:
        """The next transaction."""
        while self._due and self._due[-1] < transaction.end:
            self._copies[self._due.pop()] = {name: dict(rows) for name, rows in self.rows.items()}
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
    """What a consumer holds: the last state of each key, with values that were unavailable as they were before."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._rows: dict[str, dict[str, dict[str, object]]] = defaultdict(dict)

    def add(self, row: Row) -> None:
        """The next message."""
        states = self._rows[row.entity]
        if row.key == TRUNCATE_KEY:
            states.clear()
        elif row.current is None:
            states.pop(row.key, None)
        else:
            before = states.get(row.key, {})
            kept = {name: before[name] for name in row.unavailable if name in before}
            states[row.key] = {**kept, **row.current}

    def compare(self, name: str, table: Mapping[str, State]) -> None:
        """Each row of the table is in the fold, and no other; a column that was added since may be missing: null."""
        states, long = self._rows[name], () if entity_of(name).full else entity_of(name).long
        for key in states.keys() ^ table.keys():
            what = "only the changelog has" if key in states else "only the table has"
            self._verdict.note("folded_wrong", f"{name}: {what}", key)
        for key in states.keys() & table.keys():
            for column, value in table[key].items():
                if column in long and column not in states[key]:
                    self._verdict.unknown += 1
                elif states[key].get(column) != value:
                    about = (states[key].get(column), value)
                    self._verdict.note("folded_wrong", f"{name} {key}: {column}, folded and in the table", about)


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
        """Goes through transactions and rows together, in the order of the log."""
        for row in rows:
            self._placed(row)
            current, composites = row.current or {}, entity_of(row.entity).composites
            self._verdict.as_text += any(isinstance(current.get(column), str) for column in composites)
        groups = itertools.groupby(rows, lambda row: bisect.bisect_right(self._ends, self._place(row)))
        by_commit = {number: list(group) for number, group in groups}
        for number, transaction in enumerate(self._transactions):
            self._commit(transaction, by_commit.get(number, []))
        for row in by_commit.get(len(self._transactions), []):
            self._alone(row)

    def _commit(self, transaction: Transaction, rows: Sequence[Row]) -> None:
        changes = []
        for row in rows:
            if row.op != "read" and row.transaction == transaction.xid:
                changes.append(row)
                self.fold.add(row)
            else:
                self._alone(row)
        self.truth.transaction(transaction)
        if transaction.restored is None:
            self._compare(transaction, changes)

    def _place(self, row: Row) -> int:
        """Where in the log its commit record begins."""
        return bisect.bisect_right(self._restores, row.position) * BRANCH + row.commit

    def _alone(self, row: Row) -> None:
        """A row that was read from its table: its key has that state here."""
        self.fold.add(row)
        if row.op == "delete" and self._swept(row):
            return
        if row.op == "truncate" and row.position in (gap.position for gap in self._gaps):
            return
        if row.op != "read":
            self._verdict.note("repeated", "no such transaction was committed there", row)
            return
        self._verdict.reads += 1
        if row.original is not None or row.unavailable or row.unavailable_original:
            self._verdict.note("wrong", "a read with an original, or with a value missing", row)
        state, composites = self.truth.rows[row.entity].get(row.key), entity_of(row.entity).composites
        if state is None or row.current is None or not same(state, row.current, composites):
            self._verdict.note("stale", f"a read where the table has {str(state)[:300]}", row)

    def _swept(self, row: Row) -> bool:
        """Whether the service may have deleted this key by itself: the table lacks it, and its delete may be hidden."""
        hidden = any(start < self._place(row) for start, _ in self._since[row.entity].hidden)
        lost = any(gap.position < row.position for gap in self._gaps)
        return (hidden or lost) and row.key not in self.truth.rows[row.entity]

    def _placed(self, row: Row) -> None:
        """The partition is that of the row's values; a TRUNCATE is in all."""
        state, entity = row.current or row.original, entity_of(row.entity)
        known = state is not None and all(column in state for column in entity.placed_by)
        if state is not None and known and placed(entity, state) != row.partition:
            self._verdict.note("wrong", f"belongs in partition {placed(entity, state)}", row)

    def _compare(self, transaction: Transaction, rows: Sequence[Row]) -> None:
        """The transaction's events and rows, key by key."""
        for row in rows:
            if row.committed != transaction.committed:
                self._verdict.note("wrong", f"committed at {transaction.committed}", row)
        self._verdict.changes += len(rows)
        self._verdict.transactions += bool(rows)
        self._verdict.in_gaps += self._in_gap(transaction)
        expected, actual = _by_key(_numbered_events(transaction, self._since)), _by_key(_numbered_rows(rows))
        for place in {**expected, **actual}:
            events, written = expected.get(place, []), actual.get(place, [])
            self._sequence(place, self._due(transaction, place[0], events, written), written)
        self._streaming.update(entity for entity, _ in actual)

    def _due(self, transaction: Transaction, entity: str, events: "_Events", rows: "_Rows") -> "_Events":
        """The events that the changelog must hold; where it may lack some, those that it does."""
        since = self._since[entity]
        if transaction.end <= since.nothing:
            return []
        hidden = any(transaction.first < end and start < transaction.end for start, end in since.hidden)
        if hidden or self._in_gap(transaction):
            return _shown(events, rows)
        if transaction.first > since.published and (transaction.end > since.streaming or entity in self._streaming):
            return events
        return events[max(0, len(events) - len(rows)) :]

    def _in_gap(self, transaction: Transaction) -> bool:
        return any(gap.start < transaction.end <= gap.end for gap in self._gaps)

    def _sequence(self, place: "_Place", events: "_Events", rows: "_Rows") -> None:
        """One key's events in one transaction, and its rows."""
        what = f"{place}: {len(events)} changes, {len(rows)} rows"
        if len(rows) < len(events):
            self._verdict.note("lost", what, events)
        elif len(rows) > len(events):
            self._verdict.note("repeated", what, rows)
        elif any(map(_difference, events, rows)):
            left = list(rows)
            for event in events:
                match = next((row for row in left if not _difference(event, row)), None)
                if match is not None:
                    left.remove(match)
            differences = "; ".join(filter(None, map(_difference, events, rows)))
            self._verdict.note("wrong" if left else "reordered", differences, rows)


_Place = tuple[str, str]
_Events = list[tuple[int, Event]]
_Rows = list[tuple[int, Row]]
"""With each, how many times its table was emptied before in the same transaction."""


def _shown(events: _Events, rows: _Rows) -> _Events:
    """The events that the rows stand for, in their order. The other half of a move may be hidden, or a TRUNCATE."""
    left = iter(events)
    shown: _Events = []
    for emptied, row in rows:
        halves = ((emptied, half) for _, event in left for half in (event, replace(event, other=None)))
        match = next((half for half in halves if not _difference(half, (emptied, row))), None)
        shown += [] if match is None else [match]
    return shown


def _by_key(placed: Iterable[tuple[_Place, _T]]) -> dict[_Place, list[_T]]:
    found: dict[_Place, list[_T]] = defaultdict(list)
    for place, what in placed:
        found[place].append(what)
    return found


def _numbered_events(transaction: Transaction, entities: Container[str]) -> Iterator[tuple[_Place, tuple[int, Event]]]:
    """The events that are messages; a TRUNCATE is one for each partition."""
    emptied: Counter[str] = Counter()
    for event in transaction.events:
        if event.entity in entities and event.op != "alter":
            for name in _names(event):
                yield (event.entity, name), (emptied[event.entity], event)
            emptied[event.entity] += event.op == "truncate"


def _numbered_rows(rows: Iterable[Row]) -> Iterator[tuple[_Place, tuple[int, Row]]]:
    """The rows; those of one TRUNCATE share their position."""
    emptied: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        before = len(emptied[row.entity] - {row.position})
        if row.key == TRUNCATE_KEY:
            emptied[row.entity].add(row.position)
        name = f"{row.key}{row.partition}" if row.key == TRUNCATE_KEY else row.key
        yield (row.entity, name), (before, row)


def _names(event: Event) -> list[str]:
    if event.op != "truncate":
        return [event.key]
    return [f"{TRUNCATE_KEY}{number}" for number in range(entity_of(event.entity).partitions)]


def _difference(numbered_event: tuple[int, Event], numbered_row: tuple[int, Row]) -> str:
    """What the row says otherwise than the audit does; nothing if they agree."""
    (emptied, event), (emptied_before, row) = numbered_event, numbered_row
    entity = entity_of(row.entity)
    if emptied != emptied_before:
        return f"after {emptied_before} TRUNCATEs of its transaction instead of {emptied}"
    if row.op != event.op or row.stamp != event.stamp or row.other != event.other:
        return f"{(row.op, row.stamp, row.other)} instead of {(event.op, event.stamp, event.other)}"
    return _current(entity, event, row) or _original(entity, event, row)


def _current(entity: Entity, event: Event, row: Row) -> str:
    """A long value that an update left alone may be unavailable, unless the log has the whole old row."""
    if event.new is None:
        return "" if row.current is None and not row.unavailable else "a state where there is none"
    unavailable = set(row.unavailable)
    for column in unavailable:
        if entity.full or column not in entity.long or len(str(event.new[column])) < _LONG_MIN:
            return f"{column} is unavailable"
    expected = {name: value for name, value in event.new.items() if name not in unavailable}
    agrees = row.current is not None and same(expected, row.current, entity.composites)
    return "" if agrees else f"the current state is not {str(expected)[:300]}"


def _original(entity: Entity, event: Event, row: Row) -> str:
    """All of the old row under FULL; under DEFAULT its key, if the row was deleted or moved, and nothing else."""
    expected = event.old
    if event.old is not None and not entity.full:
        expected = {name: event.old[name] for name in entity.key} if event.op == "delete" else None
    agrees = same(expected or {}, row.original or {}, entity.composites)
    if (expected is None) != (row.original is None) or not agrees:
        return f"the original is not {str(expected)[:300]}"
    missing = set() if expected is None or event.old is None else event.old.keys() - expected.keys()
    return "" if set(row.unavailable_original) == missing else f"unavailable of the original is {missing}"
