"""Tests how an instance finds out where a partition is, and up to which offset it has its own partitions.

No Java runs here: an object in memory stands for Kafka Streams.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.views.streams import placement
from changelog.connectors.views.streams.placement import Need, Placement
from tests.patience import PATIENCE_S

READERS = 8
ANSWER_S = 0.05

ORDER, GUEST = ("booking.order", 0), ("booking.guest", 0)


class JavaPart:
    def __init__(self, part: Part) -> None:
        self._part = part

    def topic(self) -> str:
        return self._part[0]

    def partition(self) -> int:
        return self._part[1]


class Streams:
    """Stands for Kafka Streams: the offsets that this process has committed, and the partitions of each instance."""

    def __init__(self) -> None:
        self.committed: dict[Part, int] = {}
        self.questions = 0
        self.owners: Mapping[tuple[str, int], list[Part]] = {}
        self.standbys: Mapping[tuple[str, int], list[Part]] = {}

    def metadataForLocalThreads(self) -> Any:  # noqa: N802 - Java's name
        self.questions += 1
        time.sleep(ANSWER_S)  # so that all readers of a test wait before the first one has the answer
        offsets = {JavaPart(part): offset for part, offset in self.committed.items()}
        task = SimpleNamespace(committedOffsets=lambda: offsets)
        return [SimpleNamespace(activeTasks=lambda: [task])]

    def metadataForAllStreamsClients(self) -> Any:  # noqa: N802 - Java's name
        return [
            SimpleNamespace(
                host=lambda host=host: host,
                port=lambda port=port: port,
                topicPartitions=lambda address=(host, port): list(map(JavaPart, self.owners[address])),
                standbyTopicPartitions=lambda address=(host, port): list(map(JavaPart, self.standbys.get(address, []))),
            )
            for host, port in self.owners
        ]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "WAIT_S", 0.01)
    monkeypatch.setattr(placement, "REFRESH_S", 0.0)


def test_a_process_has_what_it_has_restored_or_committed() -> None:
    streams = Streams()
    here = Placement(streams, None)
    assert here.await_offset(ORDER, Need(0, 0))
    assert not here.await_offset(ORDER, Need(5, 5))
    here.restoring(ORDER, 5)
    assert not here.await_offset(ORDER, Need(5, 5))
    here.restored(ORDER)
    streams.committed = {ORDER: -1, GUEST: 3}  # nothing was committed since the restoration
    assert here.await_offset(ORDER, Need(5, 5))
    assert not here.await_offset(ORDER, Need(6, 6))
    streams.committed = {ORDER: 7, GUEST: 3}
    assert not here.has_at_hand(ORDER, Need(7, 7)), "Kafka Streams was not asked yet"
    here.learn()
    assert here.has_at_hand(ORDER, Need(7, 7))
    assert here.await_offset(ORDER, Need(7, 7))
    assert here.await_offset(GUEST, Need(3, 3))
    assert not here.await_offset(GUEST, Need(4, 4))


def test_a_store_with_its_own_changelog_has_what_was_restored_from_there_or_committed() -> None:
    """The changelog of a store is a topic from which Kafka Streams can restore the store."""
    streams = Streams()
    here = Placement(streams, None)
    here.restoring(ORDER, 3)
    here.restored(ORDER)
    streams.committed = {ORDER: -1}
    assert here.await_offset(ORDER, Need(9, 3))
    assert not here.await_offset(ORDER, Need(9, 4))
    streams.committed = {ORDER: 9}
    assert here.await_offset(ORDER, Need(9, 4))
    assert not here.await_offset(ORDER, Need(10, 4))


def test_one_of_many_readers_asks_for_the_committed_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """All readers wait for the same offset. Kafka Streams has already committed it, but no reader has asked yet."""
    monkeypatch.setattr(placement, "WAIT_S", PATIENCE_S)
    streams = Streams()
    streams.committed = {ORDER: 5}
    here, together = Placement(streams, None), Barrier(READERS)

    def read(_: int) -> bool:
        together.wait(PATIENCE_S)
        return here.await_offset(ORDER, Need(5, 5))

    with ThreadPoolExecutor(READERS) as pool:
        assert all(pool.map(read, range(READERS)))
    assert streams.questions == 1


def test_no_reader_waits_for_a_restoration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "WAIT_S", 5.0)
    here = Placement(Streams(), "a:1")
    here.standby_advanced(ORDER, 3)
    here.restoring(ORDER, 5)
    began_s = time.monotonic()
    assert not here.await_offset(ORDER, Need(5, 5))
    assert time.monotonic() - began_s < 1
    here.restoration_ended(ORDER)
    assert here.standbys() == {}
    here.restoring(ORDER, 5)
    here.restored(ORDER)
    assert here.await_offset(ORDER, Need(5, 5))


def test_the_instance_that_has_a_partition_is_named() -> None:
    streams = Streams()
    here = Placement(streams, "a:1")
    assert here.other_owner(ORDER) is None
    streams.owners = {("a", 1): [ORDER], ("::1", 2): [GUEST]}
    assert not here.has_at_hand(ORDER, Need(0, 0)), "the owner is not known yet"
    assert (here.other_owner(ORDER), here.other_owner(GUEST)) == (None, "[::1]:2")
    assert [here.has_at_hand(part, Need(0, 0)) for part in (ORDER, GUEST)] == [True, False]
    streams.owners = {("a", 1): [], ("b", 2): [ORDER, GUEST]}
    assert (here.other_owner(ORDER), here.other_owner(GUEST)) == ("b:2", "b:2")
    assert Placement(streams, None).other_owner(ORDER) is None
    streams.standbys = {("a", 1): [ORDER], ("b", 2): [ORDER]}
    assert (here.other_standbys(ORDER), here.other_standbys(GUEST)) == (["b:2"], [])


def test_a_standby_counts_until_it_has_taken_over() -> None:
    here = Placement(Streams(), "a:1")
    here.standby_advanced(ORDER, 5)
    here.standby_advanced(GUEST, 7)
    here.standby_advanced(ORDER, 6)
    assert here.standbys() == {ORDER: 6, GUEST: 7}
    assert not here.await_offset(ORDER, Need(6, 6))
    here.standby_ended(GUEST)
    here.restoring(ORDER, 6)
    assert here.standbys() == {ORDER: 6}
    here.restored(ORDER)
    assert here.standbys() == {}
    assert here.await_offset(ORDER, Need(6, 6))
