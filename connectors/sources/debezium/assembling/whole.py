"""Holds the events of a transaction until all of them have arrived, so that it is published as a whole.

With `provide.transaction.metadata`, Debezium numbers the events of each transaction, over all topics, and writes a
BEGIN and an END to a topic of transactions. The END says how many events the transaction has in each table. So it is
known when all events have arrived. Until then, they are held. The checkpoint does not count held events as read, so a
restart reads them again. A *part* is a partition of a topic. Below, `t 5 (3)` is the third event of transaction 5:

    part          arrived, in the order of each part
    orders/0      t 5 (1)   t 5 (3)   t 6 (1)
    sales/0       t 5 (2)   t 7 (1)
    transaction   BEGIN 5   END 5 (3 events)   BEGIN 6   END 6 (2 events)   BEGIN 7

Here, transaction 5 is complete. Transaction 6 has two events and waits for the second.

The events of a part stay in their order, because the progress of a part is one offset. The transactions of a connector
have the same order in the topic of transactions and in every part. So when the END of a transaction comes, its events
should be the first held events of each part. If a part holds other events before them, these have no transaction, or
the END of their transaction is lost. They are published first.

**A transaction that never becomes complete is published as it arrived**, as it would be without a topic of
transactions, and a warning is logged. Retention may have removed the END or some of the events, a transformation may
have dropped events, and after a crash, Debezium may repeat some events of a transaction. The service expects no
more events of a transaction if two things are true: none has arrived for `WAIT_S` seconds, and each part has events of
later transactions or was read to its end.

**Memory is bounded.** A transaction with more than `bytes_max` of messages is an error. If all held events together
have more than that, `ahead` returns the parts to pause. If no END is held, these are all parts except the one with the
ENDs. Otherwise, the first held END names the awaited transaction. Then the part with the ENDs is paused, and so is each
part whose last held event belongs to a later transaction. If the held events still grow to more than twice `bytes_max`
plus `READ_BYTES`, the awaited transaction is published as it arrived.
"""

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from changelog.connectors.sources import TableName
from changelog.connectors.sources.debezium.assembling.merging import Item, merged
from changelog.connectors.sources.debezium.decode.events import Boundary, Changed, Emitted, EventTable, RowsTruncated
from changelog.envelope.errors import ChangelogError, Kind

WAIT_S = 10.0
"""How many seconds a transaction waits for further events after its last event has arrived."""

READ_BYTES = 32 << 20
"""About how many bytes can still arrive, in a few reads, after `bytes_max` is exceeded."""

_MESSAGES = "LogicalDecodingMessage"
"""A part of the name that Debezium gives to the logical messages of PostgreSQL, as if they were a table."""


@dataclass(slots=True)
class _HeldTransaction:
    """A transaction whose events are held.

    `since` is the time at which the last of its events arrived. `parts` counts its events by part. `numbers` has the
    numbers of its events, by table; logical messages have the table "".
    """

    since: float
    nbytes: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, set[int]] = field(default_factory=dict)

    def missing(self, expected: Mapping[str, int]) -> int:
        """Returns how many events have not arrived. `expected` has the number of events in each table."""
        return sum(max(count - len(self.numbers.get(table, ())), 0) for table, count in expected.items())


class _Waiting(NamedTuple):
    """A held event. `name` is its transaction; empty if the event waits only for the events before it."""

    item: Item
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """A transaction that is published although it is not complete.

    `missing` is the number of events that it lacks; None if its END is missing.
    """

    name: str
    missing: int | None


class WholeTransactions:
    """Holds events until their transactions are complete.

    `tables` are the published tables, and `parts` are all parts of the input. The part `boundaries` has the BEGINs and
    ENDs. `messages` says whether a part has logical messages. All messages of one transaction together may have at most
    `bytes_max` bytes.
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
        self._transactions: dict[str, _HeldTransaction] = {}
        self._nbytes = 0
        self._changed: dict[str, None] = {}
        """The parts whose next event may be ready to publish. A dict keeps them in a fixed order."""
        self._incomplete: list[Incomplete] = []

    def add(self, items: Sequence[Item], now: float) -> None:
        """Holds these events. Raises ChangelogError (LIMIT) if a transaction is too large."""
        for item in items:
            part, name = item.placed.part, self._name(item)
            queue = self._queues.setdefault(part, deque())
            if not queue:
                self._changed[part] = None
            queue.append(_Waiting(item, name))
            self._nbytes += _size(item)
            if name:
                transaction = self._transactions.setdefault(name, _HeldTransaction(now))
                transaction.since = now
                self._count(transaction, item, 1)
                self._refuse_large(name, transaction)

    def take(self, now: float, behind: Collection[str]) -> Sequence[Item]:
        """Returns the events that can be published, in order. `behind` has the parts that were not read to the end."""
        items: list[Item] = []
        while True:
            changed, self._changed = self._changed, {}
            items += merged([item for part in changed for item in self._free(self._queues[part])])
            name = self._next(now, behind)
            if name is None:
                return items
            items += self._released(name)

    def incomplete(self) -> Sequence[Incomplete]:
        """Returns the incomplete transactions that `take` has returned since the last call of this method."""
        incomplete, self._incomplete = self._incomplete, []
        return incomplete

    def ahead(self) -> Collection[str]:
        """Returns the parts to pause; none unless more than `bytes_max` is held."""
        if self._nbytes <= self._bytes_max:
            return ()
        end = self._end()
        if end is None:
            return self._parts
        return [self._boundaries, *(part for part in self._parts if self._last(part) not in (end.transaction, ""))]

    # Held events

    def _name(self, item: Item) -> str:
        """Returns the transaction that an event has to wait for; empty if it need not wait."""
        match item.event:
            case Changed(table=EventTable(name=table)) | RowsTruncated(name=table):
                return item.event.facts.counted_in if table in self._tables else ""
            case Emitted():
                return item.event.facts.counted_in
        return ""

    def _count(self, transaction: _HeldTransaction, item: Item, by: int) -> None:
        transaction.nbytes += by * _size(item)
        transaction.parts[item.placed.part] += by
        if by > 0:
            table, number = _numbered(item)
            transaction.numbers.setdefault(table, set()).add(number)

    def _refuse_large(self, name: str, transaction: _HeldTransaction) -> None:
        if transaction.nbytes > self._bytes_max:
            raise ChangelogError(
                Kind.LIMIT,
                f"transaction {name} has more than {self._bytes_max >> 20} MiB of messages, the most that are held "
                "until a transaction is complete",
                hint="raise [source.topics] held_mib, or leave out `transactions`: then transactions may be divided",
            )

    def _free(self, queue: deque[_Waiting]) -> Iterator[Item]:
        """Removes and yields the first events of a part, up to the first event that has to wait or is an END."""
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

        Debezium's name of a table may begin with the name of the database.
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
        """Returns a transaction that is complete or must not wait any longer; None if there is none."""
        end = self._end()
        if end is not None:
            name = end.transaction
            missing = self._transactions.setdefault(name, _HeldTransaction(now)).missing(self._expected(end))
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
        """Returns whether a transaction need not wait any longer: no more events are expected, or too much is held.

        `ended` says whether the END of the transaction has arrived.
        """
        if self._nbytes > 2 * self._bytes_max + READ_BYTES:
            return True
        if now - self._transactions[name].since < WAIT_S:
            return False
        if not ended and self._nbytes > self._bytes_max:
            return True
        return all(self._last(part) not in (name, "") for part in behind if part != self._boundaries)

    def _last(self, part: str) -> str:
        """Returns the last transaction among the held events of a part; empty if these have no transaction."""
        queue = self._queues.get(part, ())
        return next((waiting.name for waiting in reversed(queue) if waiting.name), "")

    def _released(self, name: str) -> Sequence[Item]:
        """Returns the events that a transaction's parts hold before the transaction, then the transaction's own events
        by number, then its END.
        """
        before: list[Item] = []
        own: list[list[Item]] = []
        others: dict[str, None] = {}
        for part in [part for part, count in self._transactions[name].parts.items() if count]:
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
        """Yields the events of a transaction at the head of a part, and events between them without a transaction."""
        while queue and queue[0].name in (name, ""):
            yield self._popped(queue)

    def _popped(self, queue: deque[_Waiting]) -> Item:
        item, name = queue.popleft()
        self._nbytes -= _size(item)
        if name:
            self._count(self._transactions[name], item, -1)
        return item

    def _forget(self, name: str) -> None:
        """Forgets a transaction that was taken.

        If events of the transaction are still held, Debezium has sent them twice. They stay held.
        """
        transaction = self._transactions.pop(name)
        parts = [part for part, count in transaction.parts.items() if count]
        if parts:
            remainder = self._transactions[name] = _HeldTransaction(
                transaction.since, transaction.nbytes, +transaction.parts
            )
            for waiting in (waiting for part in parts for waiting in self._queues[part] if waiting.name == name):
                table, number = _numbered(waiting.item)
                remainder.numbers.setdefault(table, set()).add(number)


def _size(item: Item) -> int:
    message = item.placed.message
    return 0 if message is None else len(message.key or b"") + len(message.value or b"")


def _numbered(item: Item) -> tuple[str, int]:
    """Returns the table and the number of an event that has a transaction."""
    match item.event:
        case Changed(table=EventTable(name=name)) | RowsTruncated(name=name):
            return ".".join(name), item.event.facts.order
        case Emitted():
            return "", item.event.facts.order
    raise AssertionError(item)


def _by_number(parts: Sequence[Sequence[Item]]) -> Iterator[Item]:
    """Yields the events of a transaction by their numbers. An event without a number follows its predecessor."""
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
    return event.facts.order if isinstance(event, Changed | RowsTruncated | Emitted) else 0
