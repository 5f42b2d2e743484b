"""Holds changes until their transaction is complete, so that it is published as a whole. Pure.

With `provide.transaction.metadata`, Debezium numbers the events of each transaction, over all topics, and writes a
BEGIN and an END to a topic of transactions. The END says how many events each table has in the transaction. So it is
known when all of them have arrived. Until then, the events are held; they are not consumed, so a restart reads them
again.

    part          arrived, in the order of each part
    orders/0      t 5 (1)   t 5 (3)   t 6 (1)
    sales/0       t 5 (2)   t 7 (1)
    transaction   BEGIN 5   END 5 (3 events)   BEGIN 6   END 6 (2 events)   BEGIN 7

Here, transaction 5 is complete, and transaction 6 waits for one more event of its two.

The events of a part stay in their order, as progress is an offset for each part. The transactions of one connector come
one after another, in the topic of transactions as in all parts. So when the END of a transaction comes, events before
those of the transaction belong to transactions whose END is lost, or that have none. They are published first.

**What never becomes complete is published as it arrived**, as without a topic of transactions, and a warning tells.
Retention may have removed the END or some of the events, a transformation may have dropped events, and after a crash,
Debezium may repeat a part of a transaction. It is known that nothing more comes if `WAIT_S` have passed without an
event of the transaction, and each part either has events of later transactions, or was read to its end.

**Memory is bounded.** A transaction with more than `bytes_max` is an error. If everything that is held has more, only
the parts are read on in which the next events of the awaited transaction may be (`ahead`): those that have none of a
later one, or the part with the ENDs. If even they bring as much again, and `READ_BYTES` that were read meanwhile, the
transaction is published as it arrived.
"""

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from changelog.connectors.sources import TableName
from changelog.connectors.sources.debezium.assembling.merging import Item, merged
from changelog.connectors.sources.debezium.decode.events import Boundary, Changed, Emitted, Table, Truncated
from changelog.envelope.errors import ChangelogError, Kind

WAIT_S = 10.0
"""How long a transaction waits for its rest while nothing of it arrives."""

READ_BYTES = 32 << 20
"""The bytes of several reads, which may arrive although too much is held already."""

_MESSAGES = "LogicalDecodingMessage"
"""A part of the name that Debezium gives to the logical messages of PostgreSQL, as if they were a table."""


@dataclass(slots=True)
class _Held:
    """A transaction whose events are held.

    `since` is the time at which the last of them arrived. `parts` counts them by part. `numbers` has their numbers, by
    table; messages have the table "".
    """

    since: float
    nbytes: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, set[int]] = field(default_factory=dict)

    def missing(self, expected: Mapping[str, int]) -> int:
        """Returns how many of the expected events, which are counted by table, are not there."""
        return sum(max(count - len(self.numbers.get(table, ())), 0) for table, count in expected.items())


class _Waiting(NamedTuple):
    """An event that is held, and its transaction; empty if the event only waits for those before it."""

    item: Item
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """A transaction that is published as it arrived: `missing` of its events are not there; None if its END is not."""

    name: str
    missing: int | None


class WholeTransactions:
    """Holds events until their transactions are complete.

    `tables` are those that are published, and `parts` all parts of the input. The part `boundaries` has the BEGINs and
    ENDs. `messages` says that there is a part with logical messages. A transaction has at most `bytes_max` of messages.
    """

    def __init__(
        self,
        tables: Collection[TableName],
        parts: Collection[str],
        boundaries: str,
        *,
        messages: bool,
        bytes_max: int,
    ) -> None:
        self._tables, self._texts = frozenset(tables), frozenset(map(".".join, tables))
        self._parts, self._boundaries = [part for part in parts if part != boundaries], boundaries
        self._messages, self._bytes_max = messages, bytes_max
        self._queues: dict[str, deque[_Waiting]] = {}
        self._held: dict[str, _Held] = {}
        self._nbytes = 0
        self._changed: dict[str, None] = {}
        """The parts that may have events at their head that need not wait, in an order."""
        self._incomplete: list[Incomplete] = []

    def add(self, items: Sequence[Item], now: float) -> None:
        """Holds what has arrived. Raises ChangelogError (LIMIT) if a transaction is too large."""
        for item in items:
            part, name = item.placed.part, self._name(item)
            queue = self._queues.setdefault(part, deque())
            if not queue:
                self._changed[part] = None
            queue.append(_Waiting(item, name))
            self._nbytes += _size(item)
            if name:
                held = self._held.setdefault(name, _Held(now))
                held.since = now
                self._count(held, item, 1)
                self._refuse_large(name, held)

    def take(self, now: float, behind: Collection[str]) -> Sequence[Item]:
        """Returns the events that can be published, in order. `behind` has the parts that were not read to the end."""
        taken: list[Item] = []
        while True:
            changed, self._changed = self._changed, {}
            taken += merged([item for part in changed for item in self._free(self._queues[part])])
            name = self._next(now, behind)
            if name is None:
                return taken
            taken += self._released(name)

    def incomplete(self) -> Sequence[Incomplete]:
        """Returns the transactions that were not complete, among those that `take` has returned since the last call."""
        incomplete, self._incomplete = self._incomplete, []
        return incomplete

    def ahead(self) -> Collection[str]:
        """Returns the parts that should not be read on now, because more than `bytes_max` is held."""
        if self._nbytes <= self._bytes_max:
            return ()
        end = self._end()
        if end is None:
            return self._parts
        return [self._boundaries, *(part for part in self._parts if self._last(part) not in (end.transaction, ""))]

    # What is held

    def _name(self, item: Item) -> str:
        """Returns the transaction for whose end an event has to wait; empty if it need not wait."""
        match item.event:
            case Changed(table=Table(name=table)) | Truncated(name=table):
                return item.event.facts.counted_in if table in self._tables else ""
            case Emitted():
                return item.event.facts.counted_in
        return ""

    def _count(self, held: _Held, item: Item, by: int) -> None:
        held.nbytes += by * _size(item)
        held.parts[item.placed.part] += by
        if by > 0:
            table, number = _numbered(item)
            held.numbers.setdefault(table, set()).add(number)

    def _refuse_large(self, name: str, held: _Held) -> None:
        if held.nbytes > self._bytes_max:
            raise ChangelogError(
                Kind.LIMIT,
                f"transaction {name} has more than {self._bytes_max >> 20} MiB of messages, the most that are held "
                "until a transaction is complete",
                hint="raise [source.topics] held_mib, or leave out `transactions`: then it is published in parts",
            )

    def _free(self, queue: deque[_Waiting]) -> Iterator[Item]:
        """Yields the events at the head of a part that need not wait, but no END."""
        while queue and not queue[0].name and not self._is_end(queue[0].item):
            yield self._popped(queue)

    def _is_end(self, item: Item) -> bool:
        return isinstance(item.event, Boundary) and item.event.ends and item.placed.part == self._boundaries

    def _end(self) -> Boundary | None:
        """Returns the first END."""
        queue = self._queues.get(self._boundaries)
        event = queue[0].item.event if queue else None
        return event if isinstance(event, Boundary) else None

    def _expected(self, end: Boundary) -> Mapping[str, int]:
        """Returns how many events the transaction has in each of our tables; messages have the table "".

        Debezium's name of a table may begin with that of its database.
        """
        expected = Counter[str]()
        for name, count in end.collections.items():
            if _MESSAGES in name:
                expected[""] += count if self._messages else 0
                continue
            rest = name
            while rest and rest not in self._texts:
                rest = rest.partition(".")[2]
            if rest:
                expected[rest] += count
        return expected

    # What can be published

    def _next(self, now: float, behind: Collection[str]) -> str | None:
        """Returns a transaction to publish: a complete one, or one of which nothing more comes."""
        end = self._end()
        if end is not None:
            name = end.transaction
            missing = self._held.setdefault(name, _Held(now)).missing(self._expected(end))
            if missing and not self._is_over(name, now, behind, ended=True):
                return None
            if missing:
                self._incomplete.append(Incomplete(name=name, missing=missing))
            return name
        if self._boundaries in behind:
            return None
        for queue in filter(None, map(self._queues.get, self._parts)):
            if self._is_over(queue[0].name, now, behind, ended=False):
                self._incomplete.append(Incomplete(name=queue[0].name, missing=None))
                return queue[0].name
        return None

    def _is_over(self, name: str, now: float, behind: Collection[str], *, ended: bool) -> bool:
        """Returns whether nothing more of a transaction comes, or too much would have to wait for it."""
        if self._nbytes > 2 * self._bytes_max + READ_BYTES:
            return True
        if now - self._held[name].since < WAIT_S:
            return False
        if not ended and self._nbytes > self._bytes_max:
            return True
        return all(self._last(part) not in (name, "") for part in behind if part != self._boundaries)

    def _last(self, part: str) -> str:
        """Returns the transaction of the last event that is held of a part; empty if there is none."""
        queue = self._queues.get(part, ())
        return next((waiting.name for waiting in reversed(queue) if waiting.name), "")

    def _released(self, name: str) -> Sequence[Item]:
        """Returns what precedes a transaction in its parts, then its events by their numbers, and its END."""
        before: list[Item] = []
        own: list[list[Item]] = []
        others: dict[str, None] = {}
        for part in [part for part, count in self._held[name].parts.items() if count]:
            queue = self._queues[part]
            self._changed[part] = None
            while queue[0].name != name:
                others[queue[0].name] = None
                before.append(self._popped(queue))
            own.append(list(self._run(queue, name)))
        end: list[Item] = []
        first = self._end()
        if first is not None and first.transaction == name:
            self._changed[self._boundaries] = None
            end = [self._popped(self._queues[self._boundaries])]
        self._forget(name)
        for other in filter(None, others):
            self._incomplete.append(Incomplete(name=other, missing=None))
            self._forget(other)
        return [*merged(before), *_by_number(own), *end]

    def _run(self, queue: deque[_Waiting], name: str) -> Iterator[Item]:
        """Yields the events of a transaction at the head of a part, with what is between them."""
        while queue and queue[0].name in (name, ""):
            yield self._popped(queue)

    def _popped(self, queue: deque[_Waiting]) -> Item:
        item, name = queue.popleft()
        self._nbytes -= _size(item)
        if name:
            self._count(self._held[name], item, -1)
        return item

    def _forget(self, name: str) -> None:
        """Forgets a transaction that was taken, except events that Debezium has written once more."""
        held = self._held.pop(name)
        parts = [part for part, count in held.parts.items() if count]
        if parts:
            left = self._held[name] = _Held(held.since, held.nbytes, +held.parts)
            for waiting in (waiting for part in parts for waiting in self._queues[part] if waiting.name == name):
                table, number = _numbered(waiting.item)
                left.numbers.setdefault(table, set()).add(number)


def _size(item: Item) -> int:
    message = item.placed.message
    return 0 if message is None else len(message.key or b"") + len(message.value or b"")


def _numbered(item: Item) -> tuple[str, int]:
    """Returns the table and the number of an event that has a transaction."""
    match item.event:
        case Changed(table=Table(name=name)) | Truncated(name=name):
            return ".".join(name), item.event.facts.order
        case Emitted():
            return "", item.event.facts.order
    raise AssertionError(item)


def _by_number(parts: Sequence[Sequence[Item]]) -> Iterator[Item]:
    """Yields the events of a transaction by their numbers. What has no number stays after the event before it."""
    heap = [(_order(items[0]), number, 0) for number, items in enumerate(parts)]
    heapq.heapify(heap)
    while heap:
        _, number, place = heapq.heappop(heap)
        items = parts[number]
        yield items[place]
        place += 1
        while place < len(items) and not _order(items[place]):
            yield items[place]
            place += 1
        if place < len(items):
            heapq.heappush(heap, (_order(items[place]), number, place))


def _order(item: Item) -> int:
    event = item.event
    return event.facts.order if isinstance(event, Changed | Truncated | Emitted) else 0
