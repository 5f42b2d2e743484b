"""Knows which instances have the partitions of tables, and up to which offset this process has its own partitions.

If a process hangs, another instance takes its partitions over. When the process goes on, it can still read its tables
for a moment. Their rows are old by then, but the process does not know that. So a reader says which offset it needs.
The process compares this offset with what it has reached itself: the offset up to which it restored the table, and the
offsets that it has committed since.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple

from changelog.connectors.kafka.offsets import Part

REFRESH_S: Final = 0.25
"""How long the known owners of partitions are used before Kafka Streams is asked again, in seconds."""

WAIT_S: Final = 0.5
"""How long a reader waits at most until a table has reached an offset, in seconds. A reader waits because other
processes can see a commit a moment before the process that made it.
"""

_POLL_S = 0.005
"""How long readers wait before Kafka Streams is asked again for the committed offsets, in seconds. Each question calls
Java some dozens of times, and all readers that wait need the same answer. So only one of them asks.
"""


class Need(NamedTuple):
    """What a reader needs of a partition: all messages before `offset` of the topic.

    A store has these messages if it was restored up to the offset `store_offset` of its changelog: the topic from which
    Kafka Streams restores the store. The two offsets are equal if the entity's topic itself is the store's changelog.
    """

    offset: int
    store_offset: int


class Placement:
    """Knows where the partitions of an application are. `streams` is the application's Java object `KafkaStreams`.
    `own` is the address of this instance; if it is None, there are no other instances. Any thread may call the methods.
    """

    def __init__(self, streams: Any, own: str | None) -> None:
        self._streams, self._own = streams, own
        self._restored_ends: dict[Part, int] = {}
        self._restored: dict[Part, int] = {}
        self._committed: Mapping[Part, int] = {}
        self._asking, self._asked_until_s = Lock(), 0.0
        self._standbys: dict[Part, int] = {}
        self._owners: Mapping[Part, str] = {}
        self._standby_addresses: Mapping[Part, Sequence[str]] = {}
        self._known_until_s = 0.0

    def restoring(self, part: Part, end: int) -> None:
        """Notes that a partition of a table will be restored up to an offset."""
        self._restored_ends[part] = end

    def restored(self, part: Part) -> None:
        """Notes that the partition was restored."""
        if part in self._restored_ends:
            self._restored[part] = self._restored_ends.pop(part)
        self._standbys.pop(part, None)

    def restoration_ended(self, part: Part) -> None:
        """Notes that the partition is no longer being restored, because another instance takes it over."""
        self._restored_ends.pop(part, None)
        self._standbys.pop(part, None)

    def standby_advanced(self, part: Part, offset: int) -> None:
        """Notes that the standby of a partition has all messages before an offset of its changelog."""
        self._standbys[part] = offset

    def standby_ended(self, part: Part) -> None:
        """Notes that this process is no longer a standby for a partition."""
        self._standbys.pop(part, None)

    def standbys(self) -> Mapping[Part, int]:
        """Returns the partitions for which this process is a standby, each with an offset of its changelog. The standby
        has all messages before this offset. A standby that takes its partition over counts as a standby until its table
        is restored.
        """
        return dict(self._standbys)

    def await_offset(self, part: Part, need: Need) -> bool:
        """Returns whether this process has what is needed of a partition. Waits a moment for what it still lacks.

        Does not wait for a restoration, which takes longer, and could block all threads that read.
        """
        deadline_s = time.monotonic() + WAIT_S
        while not self._has(part, need):
            self._ask(part, need, deadline_s)
            if self._has(part, need):
                return True
            if part in self._restored_ends or time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def has_at_hand(self, part: Part, need: Need) -> bool:
        """Returns whether this process is known to have what is needed of a partition. Does not ask Java."""
        return (self._own is None or self._owners.get(part) == self._own) and self._has(part, need)

    def _has(self, part: Part, need: Need) -> bool:
        return self._restored.get(part, 0) >= need.store_offset or self._committed.get(part, 0) >= need.offset

    def learn(self) -> None:
        """Asks Kafka Streams for the committed offsets, so that readers need not ask."""
        with self._asking:
            self._committed = dict(_committed(self._streams))

    def _ask(self, part: Part, need: Need, deadline_s: float) -> None:
        """Asks Kafka Streams for the committed offsets, unless another reader did so a moment ago."""
        if not self._asking.acquire(timeout=max(deadline_s - time.monotonic(), 0.0)):
            return
        try:
            if not self._has(part, need) and time.monotonic() >= self._asked_until_s:
                self._committed = dict(_committed(self._streams))
                self._asked_until_s = time.monotonic() + _POLL_S
        finally:
            self._asking.release()

    def other_owner(self, part: Part) -> str | None:
        """Returns the address of the instance that has a partition. Returns None if this instance should have it, or if
        it is unknown which instance has it.
        """
        if self._own is None:
            return None
        self._refresh()
        owner = self._owners.get(part)
        return None if owner == self._own else owner

    def other_standbys(self, part: Part) -> Sequence[str]:
        """Returns the addresses of the other instances that are standbys for a partition."""
        self._refresh()
        return [address for address in self._standby_addresses.get(part, ()) if address != self._own]

    def _refresh(self) -> None:
        if time.monotonic() < self._known_until_s:
            return
        owners: dict[Part, str] = {}
        standby_addresses: dict[Part, list[str]] = {}
        for instance in self._streams.metadataForAllStreamsClients():
            host = str(instance.host())
            address = f"[{host}]:{instance.port()}" if ":" in host else f"{host}:{instance.port()}"
            owners.update({part_of(part): address for part in instance.topicPartitions()})
            for part in instance.standbyTopicPartitions():
                standby_addresses.setdefault(part_of(part), []).append(address)
        self._owners, self._standby_addresses = owners, standby_addresses
        self._known_until_s = time.monotonic() + REFRESH_S


def part_of(part: Any) -> Part:
    """Returns a partition from Java's object."""
    return str(part.topic()), int(part.partition())


def _committed(streams: Any) -> Iterator[tuple[Part, int]]:
    """Yields the offsets that this process has committed itself. They are negative before the first commit."""
    for thread in streams.metadataForLocalThreads():
        for task in thread.activeTasks():
            for part, offset in dict(task.committedOffsets()).items():
                yield part_of(part), int(offset)
