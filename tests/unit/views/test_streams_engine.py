"""Tests that the engine over Kafka returns the rows of the last messages, even if one partition lags behind another.

No Java runs here.
"""

import json
import random
from collections.abc import Generator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.views.served import Completeness, ForgottenError, NoRangesError
from changelog.connectors.views.streams.application import Application
from changelog.connectors.views.streams.engine import StreamsEngine
from changelog.connectors.views.streams.partitions import OwnPartitions
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.tables import RestoringError
from changelog.connectors.views.streams.topics import ServedTopic
from changelog.envelope.codec import json_codec
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition
from changelog.envelope.model import MISSING, Op, Record
from changelog.envelope.position import Position
from tests.unit.records import record
from tests.unit.views.story import KEYS, Story

PARTITIONS = 2
KEPT = 3


class Memory:
    """Tables in memory. Like Kafka Streams, they have the last message of each key, or none if it is a tombstone.

    `lagging` are partitions whose tombstones have not arrived yet.
    """

    def __init__(self, lagging: frozenset[int] = frozenset()) -> None:
        self.messages: dict[tuple[str, int], dict[bytes, bytes]] = {}
        self.at_hand: set[int] = set()
        self._lagging = lagging

    def take(self, change: Record, number: int) -> None:
        messages = self.messages.setdefault((change.entity, number), {})
        key = change.place.key.encode()
        messages[key] = json_codec.encode(change.envelope)
        if change.envelope.provenance.source.op is Op.DELETE and number not in self._lagging:
            del messages[key]

    def refuse_unready(self, table: str) -> None:
        pass

    def has_at_hand(self, _table: str, number: int, _need: Need) -> bool:
        return number in self.at_hand

    def get_batch(self, table: str, number: int, keys: Sequence[bytes], *_: object) -> Sequence[bytes | None]:
        return [self.messages.get((table, number), {}).get(key) for key in keys]

    def scan(self, table: str, number: int, begin: bytes, *_: object) -> Generator[tuple[bytes, bytes], None, None]:
        yield from sorted(pair for pair in self.messages.get((table, number), {}).items() if pair[0] >= begin)


class AtEnd:
    """The progress of tables that are complete."""

    error = None

    def reached(self, _: object) -> Completeness:
        return Completeness(position=Position(1, 10**6, 0), at_s=0.0)

    def need(self, _: object) -> Need:
        return Need(0, 0)


def engine(memory: Memory, *, placed: bool = True, keys_max: int | None = None) -> StreamsEngine:
    topics = {
        name: ServedTopic(name=f"booking.{name}", key=("id",), partitions=PARTITIONS, is_placed_by_key=placed)
        for name in ("order", "guest")
    }
    tables = cast(Any, memory)
    main = Application(
        tables=tables,
        partitions=tables,
        own_partitions=OwnPartitions(tables),
        progress=cast(Any, AtEnd()),
        topics=topics,
        store_bytes=lambda: 7,
        keys_max=keys_max,
    )
    return StreamsEngine(main, JSON, columns={}, where="here", close=lambda: None)


@given(st.randoms(use_true_random=False), st.booleans(), st.frozensets(st.integers(0, PARTITIONS - 1)))
def test_rows_are_those_of_the_last_messages(randoms: random.Random, placed: bool, lagging: frozenset[int]) -> None:
    story, memory = Story(randoms), Memory(lagging)
    expected: dict[str, Any] = {}
    for records in story.more(40):
        for change in records:
            key, source = change.place.key, change.envelope.provenance.source
            if key == TRUNCATE_KEY:
                memory.take(change, change.place.partition)
            else:
                memory.take(change, partition(key.encode(), PARTITIONS))
            if change.entity != "order":
                continue
            if source.op is Op.TRUNCATE:
                expected.clear()
            elif change.envelope.current is None:
                expected.pop(key, None)
            else:
                expected[key] = bytes(change.envelope.current), tuple(sorted(source.unavailable)), source.position
    moment = engine(memory, placed=placed).view("order").now()
    gets = {key: row for key in (*KEYS, TRUNCATE_KEY, "absent") if (row := moment.get(key)) is not None}
    assert {key: (row.current, row.unavailable, row.position) for key, row in gets.items()} == expected
    for begin in ("", *KEYS):
        pairs = list(moment.rows(begin))
        assert [key for key, _ in pairs] == sorted({key for key, _ in pairs})
        rows = {key: row for key, row in pairs if row is not None}
        assert rows == {key: row for key, row in gets.items() if key >= begin}


def test_a_row_is_at_hand_if_every_partition_that_can_have_it_is_at_hand() -> None:
    memory, number = Memory(), partition(b"1", PARTITIONS)
    memory.take(record(Op.CREATE, '{"id":1}', None, commit=5, key="1"), number)
    views = [engine(memory, placed=placed).view("order") for placed in (True, False)]
    for at_hand, expected in (((), [False, False]), ({number}, [True, False]), (range(PARTITIONS), [True, True])):
        memory.at_hand = set(at_hand)
        moments = [view.at_hand("1") for view in views]
        assert [moment is not None for moment in moments] == expected
        assert all(moment.get("1") == views[0].now().get("1") for moment in moments if moment is not None)


def test_a_row_that_is_no_longer_at_hand_is_not_waited_for() -> None:
    memory, number = Memory(), partition(b"1", PARTITIONS)
    memory.at_hand = {number}
    moment = engine(memory).view("order").at_hand("1")
    assert moment is not None
    memory.at_hand = set()
    with pytest.raises(RestoringError):
        moment.get("1")


def test_if_two_partitions_have_a_key_the_newer_row_counts() -> None:
    memory = Memory()
    for number, (op, commit) in enumerate(((Op.CREATE, 5), (Op.UPDATE, 3))):
        current = json.dumps({"id": 1, "commit": commit})
        memory.take(record(op, current, commit=commit, key="1"), number)
    moment = engine(memory, placed=False).view("order").now()
    row = moment.get("1")
    assert row is not None
    assert (json.loads(row.current)["commit"], list(moment.rows(""))) == (5, [("1", row)])
    memory.take(record(Op.TRUNCATE, None, None, commit=4, key=TRUNCATE_KEY), 1)
    assert moment.get("1") == row
    memory.take(record(Op.TRUNCATE, None, None, commit=6, key=TRUNCATE_KEY), 0)
    assert moment.get("1") is None
    assert list(moment.rows("")) == [("1", None)]


def test_a_message_that_is_no_envelope_is_named() -> None:
    memory = Memory()
    memory.messages["order", partition(b"1", PARTITIONS)] = {b"1": b"{"}
    with pytest.raises(ChangelogError, match=r"booking\.order, partition") as caught:
        engine(memory).view("order").now().get("1")
    assert caught.value.kind is Kind.MALFORMED


class RecentlyUsed(Memory):
    """Tables with only the `KEPT` most recently used keys of each partition, as with the setting `store = "lru:3"`."""

    def take(self, change: Record, number: int) -> None:
        self._use((change.entity, number), change.place.key.encode())
        super().take(change, number)
        messages = self.messages[change.entity, number]
        while len(messages) > KEPT:
            del messages[next(iter(messages))]

    def get_batch(self, table: str, number: int, keys: Sequence[bytes], *_: object) -> Sequence[bytes | None]:
        for key in keys:
            self._use((table, number), key)
        return super().get_batch(table, number, keys)

    def _use(self, part: tuple[str, int], key: bytes) -> None:
        messages = self.messages.get(part, {})
        if key in messages:
            messages[key] = messages.pop(key)


def test_a_truncate_is_not_forgotten_before_earlier_rows() -> None:
    memory = RecentlyUsed()
    keys = [text for text in (f"key {n}" for n in range(99)) if partition(text.encode(), PARTITIONS) == 0]
    view = engine(memory, keys_max=KEPT).view("order")

    def change(op: Op, commit: int, key: str) -> None:
        current = "{}" if op is Op.CREATE else None
        memory.take(record(op, current, MISSING if current else None, commit=commit, key=key), 0)

    change(Op.CREATE, 1, keys[0])
    change(Op.TRUNCATE, 2, TRUNCATE_KEY)
    assert view.now().get(keys[0]) is None
    change(Op.CREATE, 3, keys[1])
    change(Op.CREATE, 4, keys[2])
    with pytest.raises(ForgottenError):  # if the table had forgotten the truncate instead, the row would be back
        view.now().get(keys[0])
    assert view.now().get(keys[1]) is not None
    with pytest.raises(ForgottenError, match="not among the 3 keys of a partition that were used last"):
        view.now().get("never used")
    with pytest.raises(NoRangesError, match="rows cannot be listed"):
        next(view.now().rows(""))
