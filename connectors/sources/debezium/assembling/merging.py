"""Merges the events of several partitions, so that events of one transaction are together. The module is pure.

A part is a partition of a topic. Its events stay in their order. Debezium has a topic for each table, so the rows of
one transaction arrive in several parts. The events that have arrived are put in this order:

- first the rest of the current transaction, with its stamps before its rows;
- then the transaction that was committed first.

This order does not wait for transactions that have not arrived yet. So a transaction whose events arrive far apart is
published in several places.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from changelog.connectors.sources.debezium.decode.events import Changed, Emitted, Event, RowsTruncated
from changelog.connectors.sources.debezium.inputs import Placed
from changelog.envelope.errors import ChangelogError


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A message that could not be translated, and why."""

    error: ChangelogError


Read = Event | Unreadable | None
"""The event of a message, or why it cannot be read; None if there is no message."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A message with its place in the input, and its event."""

    placed: Placed
    event: Read


def transaction_of(event: Read) -> str | None:
    """Returns the id of the event's transaction, empty if it is unknown; None if the event changes nothing."""
    return event.facts.transaction if isinstance(event, Changed | RowsTruncated | Emitted) else None


def merged(items: Sequence[Item], current: str = "") -> Sequence[Item]:
    """Returns the items in the order described above. `current` is the transaction of the event before `items`."""
    queues: dict[str, deque[Item]] = {}
    for item in items:
        queues.setdefault(item.placed.part, deque()).append(item)
    return items if len(queues) == 1 else list(_Merge(queues, current).run())


class _Merge:
    """Merges the queues of several parts.

    `_waiting` has, for each transaction, the parts whose next event belongs to this transaction. `_heap` sorts parts by
    the commit time of their next event.
    """

    def __init__(self, queues: dict[str, deque[Item]], current: str) -> None:
        self._queues, self._current = queues, current
        self._waiting: dict[str, list[str]] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._numbers = {part: number for number, part in enumerate(queues)}

    def run(self) -> Iterator[Item]:
        for part in self._queues:
            yield from self._enter(part)
        while (next_part := self._next()) is not None:
            yield from self._take(next_part)
            yield from self._enter(next_part)

    def _enter(self, part: str) -> Iterator[Item]:
        """Yields the next events of a part as long as they change nothing, and registers the event after them."""
        queue = self._queues[part]
        while queue and transaction_of(queue[0].event) is None:
            yield queue.popleft()
        if queue:
            event = queue[0].event
            assert isinstance(event, Changed | RowsTruncated | Emitted)
            self._waiting.setdefault(event.facts.transaction, []).append(part)
            heapq.heappush(self._heap, (event.facts.committed_at, self._numbers[part], part))

    def _next(self) -> str | None:
        """Returns the part that has the next event."""
        parts = self._waiting.get(self._current) if self._current else None
        if not parts:
            while self._heap:
                committed_at, _, part = heapq.heappop(self._heap)
                event = self._queues[part][0].event if self._queues[part] else None
                # An entry is outdated if its event was taken earlier, together with other events of its transaction.
                if isinstance(event, Changed | RowsTruncated | Emitted) and event.facts.committed_at == committed_at:
                    self._current = event.facts.transaction
                    parts = self._waiting[self._current] if self._current else [part]
                    break
            else:
                return None
        stamped = (part for part in parts if isinstance(self._queues[part][0].event, Emitted))
        part = next(stamped, parts[0])
        self._leave(part)
        return part

    def _leave(self, part: str) -> None:
        transaction = transaction_of(self._queues[part][0].event)
        assert transaction is not None
        self._waiting[transaction].remove(part)

    def _take(self, part: str) -> Iterator[Item]:
        """Yields the events of the current transaction that a part has next.

        If an event has no transaction, yields only this event. After a delete of a row whose key changes, yields the
        create with the new key, if the create is the next event of another part.
        """
        queue = self._queues[part]
        while queue:
            item = queue.popleft()
            yield item
            while queue and transaction_of(queue[0].event) is None:
                yield queue.popleft()
            yield from self._moved(item.event)
            if not self._current or not queue or transaction_of(queue[0].event) != self._current:
                return

    def _moved(self, deleted: Read) -> Iterator[Item]:
        if not isinstance(deleted, Changed) or deleted.moves != "to" or not self._current:
            return
        for part in self._waiting.get(self._current, ()):
            created = self._queues[part][0].event
            if isinstance(created, Changed) and is_move(deleted, created):
                self._leave(part)
                yield self._queues[part].popleft()
                yield from self._enter(part)
                return


def is_move(deleted: Changed, created: Changed) -> bool:
    """Returns whether the two events together change the key of one row."""
    return (
        deleted.moves == "to"
        and created.moves == "from"
        and deleted.table.name == created.table.name
        and deleted.facts.transaction == created.facts.transaction
        and deleted.other_key == created.key
        and created.other_key == deleted.key
    )
