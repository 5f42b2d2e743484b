"""Tests how served views find out up to which checkpoint their rows are complete.

Rows are complete up to a checkpoint once Kafka Streams has committed the offsets of all messages before the checkpoint.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.views.streams import progress
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.progress import TablesProgress
from changelog.connectors.views.streams.tables import restoring
from changelog.connectors.views.streams.topics import ServedTopic
from changelog.envelope.checkpoint import GENERATIONS
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import until
from tests.unit.records import checkpoint

ORDER, GUEST = ("booking.order", 0), ("booking.guest", 0)
TOPICS = {
    name: ServedTopic(name=f"booking.{name}", key=("id",), partitions=1, is_placed_by_key=True)
    for name in ("order", "guest")
}


class Cluster:
    """Stands for Kafka and for the tables: has the newest checkpoint, the ends of partitions, and offsets.

    `offsets` are those that Kafka Streams has committed; `messages` has the offsets of messages.
    """

    def __init__(self) -> None:
        self.commit: int | None = None
        self.ends: dict[Part, int] = {ORDER: 0, GUEST: 0}
        self.offsets: dict[Part, int] = {}
        self.learned_offsets: dict[Part, int] = {}
        self.standby_offsets: dict[Part, int] = {}
        self.messages: dict[Part, list[int]] = {}
        self.error: Exception | None = None
        self.are_tables_restored = True
        self.complete_times: list[float] = []
        self.sink: dict[str, Any] = {}
        self.windows: dict[str, Any] = {}
        self.changelogs: Mapping[str, str] = {}
        self.changelog_ends: dict[Part, int] = {}
        self.open_transactions: dict[Part, int] = {}

    def admin(self) -> None:
        pass

    @contextmanager
    def reader(self, **_: object) -> Iterator[None]:
        yield

    def learn(self) -> None:
        self.learned_offsets = dict(self.offsets)

    def standbys(self) -> Mapping[Part, int]:
        return dict(self.standby_offsets)

    def are_restored(self) -> bool:
        return self.are_tables_restored

    def get_small(self, table: str, key: bytes) -> tuple[bytes, float] | None:
        assert (table, key) == ("positions", b"app")
        if self.error is not None:
            raise self.error
        if self.commit is None:
            return None
        stored = replace(checkpoint(self.commit), sink=self.sink, windows=self.windows)
        return stored.to_json(), float(self.commit)

    def readable_end(self, part: Part) -> int:
        """Returns where readers of committed messages stop: at the start of the open transaction, if there is one."""
        return self.open_transactions.get(part, 10**9)

    def in_spans(self, _: object, spans: Mapping[Part, range]) -> Iterator[list[int]]:
        for part, span in spans.items():
            assert span.stop <= self.readable_end(part), "a reader would wait for the end of the transaction"
            yield [offset for offset in self.messages.get(part, []) if offset in span]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(progress, "committed", lambda *_: dict(cluster.offsets))
    monkeypatch.setattr(progress, "ends", lambda _, parts: {part: cluster.readable_end(part) for part in parts})
    monkeypatch.setattr(progress, "written_ends", lambda *_: dict(cluster.changelog_ends))
    monkeypatch.setattr(progress, "complete_ends", lambda *_: dict(cluster.ends))
    monkeypatch.setattr(progress, "messages_in", cluster.in_spans)
    monkeypatch.setattr(progress, "closing", lambda context: context)
    monkeypatch.setattr(progress, "SEARCH_S", 0.05)
    monkeypatch.setattr(progress, "POLL_S", 0.001)
    monkeypatch.setattr(progress, "AGAIN_S", 0.001)
    return cluster


@pytest.fixture
def tables(cluster: Cluster) -> Iterator[TablesProgress]:
    with closing(open_progress(cluster)) as tables:
        yield tables


def open_progress(cluster: Cluster, topics: Mapping[str, ServedTopic] = TOPICS) -> TablesProgress:
    anything = cast(Any, cluster)
    return TablesProgress(
        anything,
        anything,
        JSON,
        name="app",
        prefix="booking",
        application="app-views",
        topics=topics,
        checkpoints=anything,
        on_complete=cluster.complete_times.append,
    )


def reached(tables: TablesProgress, entity: str) -> int | None:
    completeness = tables.reached([(f"booking.{entity}", 0)])
    return None if completeness is None or completeness.position is None else completeness.position.commit


def test_rows_are_complete_once_the_offsets_are_committed(cluster: Cluster, tables: TablesProgress) -> None:
    assert reached(tables, "order") is None
    cluster.ends, cluster.messages = {ORDER: 7, GUEST: 5}, {ORDER: [6], GUEST: [3]}
    cluster.offsets = {ORDER: 6, GUEST: 5}
    cluster.commit = 1
    until(lambda: reached(tables, "guest") == 1, "guest is not complete")
    assert reached(tables, "order") is None
    cluster.offsets = {ORDER: 7, GUEST: 5}
    until(lambda: reached(tables, "order") == 1, "order is not complete")
    assert cluster.learned_offsets == cluster.offsets, "readers would have to ask for the committed offsets"
    assert tables.reached([ORDER]) == tables.reached([GUEST]) == tables.reached([ORDER, GUEST])
    assert tables.need(ORDER) == Need(7, 7)


def test_an_entity_that_lags_does_not_delay_others(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 100, GUEST: 5}, {ORDER: [3, 50, 99]}
    cluster.offsets = {ORDER: 4, GUEST: 5}
    for commit in (1, 2, 3):
        cluster.commit = commit
        until(lambda commit=commit: reached(tables, "guest") == commit, "guest is not complete")  # type: ignore[misc]
    assert reached(tables, "order") is None
    cluster.offsets = {ORDER: 100, GUEST: 5}
    until(lambda: reached(tables, "order") == 3, "order is not complete")
    until(lambda: cluster.complete_times == [1.0], "the time was not noted exactly once")


def test_the_least_complete_table_determines_the_time_of_all(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 0, GUEST: 5}, {GUEST: [4]}
    cluster.commit = 1
    until(lambda: reached(tables, "order") == 1, "order is not complete")
    assert tables.complete_s() is None
    cluster.offsets = {GUEST: 5}
    until(lambda: tables.complete_s() == 1.0, "the tables are not complete")
    cluster.ends, cluster.messages = {ORDER: 0, GUEST: 7}, {GUEST: [6]}
    cluster.commit = 2
    until(lambda: reached(tables, "order") == 2, "order is not complete")
    assert tables.complete_s() == 1.0
    cluster.are_tables_restored = False
    assert tables.complete_s() is None


def test_offsets_without_messages_are_not_awaited(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 60, GUEST: 5}, {ORDER: [9]}
    cluster.commit = 1
    cluster.offsets = {ORDER: 10}
    until(lambda: reached(tables, "order") == reached(tables, "guest") == 1, "offsets without messages are awaited")


def test_offsets_after_the_last_message_are_not_awaited(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 60, GUEST: 0}, {ORDER: [9]}
    cluster.commit = 1
    time.sleep(0.1)  # time in which the last message is found
    assert reached(tables, "order") is None
    cluster.offsets = {ORDER: 10}
    until(lambda: reached(tables, "order") == 1, "offsets after the last message are awaited")


def test_an_open_transaction_holds_up_only_its_partition(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 60, GUEST: 5}, {ORDER: [9], GUEST: [4]}
    cluster.offsets, cluster.open_transactions, cluster.commit = {ORDER: 10}, {ORDER: 30}, 1
    time.sleep(3 * progress.SEARCH_S)
    cluster.offsets = {ORDER: 10, GUEST: 5}
    until(lambda: reached(tables, "guest") == 1, "the thread waits for the transaction")
    assert reached(tables, "order") is None
    cluster.open_transactions = {}  # it was aborted
    until(lambda: reached(tables, "order") == 1, "the span is not searched again")


def test_an_error_is_kept_until_kafka_answers(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.error = ChangelogError(Kind.ACCESS, "asking Kafka: not authorized")
    until(lambda: tables.error is cluster.error, "there is no error")
    cluster.error, cluster.commit = None, 1
    until(lambda: reached(tables, "order") == 1, "order is not complete")
    until(lambda: tables.error is None, "the error stays")


def test_every_error_but_a_restoration_is_shown(cluster: Cluster, tables: TablesProgress) -> None:
    def shown() -> str:
        return str(tables.error)

    cluster.error = ChangelogError(Kind.PRECONDITION, "a topic is gone")
    until(lambda: shown() == "a topic is gone", "there is no error")
    cluster.error = KeyError("a value")
    until(lambda: shown() == "finding out how far rows are complete: KeyError", "there is no error")
    cluster.error = None
    until(lambda: tables.error is None, "the error stays")
    cluster.error = restoring("order")
    time.sleep(0.02)
    assert tables.error is None
    cluster.error, cluster.commit = None, 1
    until(lambda: reached(tables, "order") == 1, "the thread has ended")


def test_a_long_span_without_messages_causes_no_delay(cluster: Cluster, tables: TablesProgress) -> None:
    cluster.ends[ORDER] = 10**7
    cluster.commit = 1
    until(lambda: reached(tables, "order") == 1, "order is not complete")


def test_a_standby_is_complete_up_to_its_own_offsets(cluster: Cluster, tables: TablesProgress) -> None:
    def standby_reached() -> int | None:
        completeness = tables.standby_reached(ORDER)
        return None if completeness is None or completeness.position is None else completeness.position.commit

    cluster.ends, cluster.messages = {ORDER: 7, GUEST: 5}, {ORDER: [2, 5]}
    cluster.offsets = {ORDER: 7, GUEST: 5}
    cluster.standby_offsets, cluster.commit = {ORDER: 3}, 1
    until(lambda: reached(tables, "order") == 1, "order is not complete")
    assert standby_reached() is None
    assert tables.complete_s() is None
    cluster.standby_offsets = {ORDER: 6}  # after this offset comes only the end of a transaction
    until(lambda: standby_reached() == 1, "the standby is not complete")
    until(lambda: tables.complete_s() == 1.0, "the tables are not complete")
    cluster.ends, cluster.offsets, cluster.messages, cluster.commit = (
        {**cluster.ends, ORDER: 9},
        {ORDER: 9},
        {ORDER: [8]},
        2,
    )
    until(lambda: reached(tables, "order") == 2, "order is not complete")
    assert standby_reached() == 1
    assert tables.complete_s() == 1.0
    cluster.standby_offsets = {ORDER: 5}  # the standby was closed, and began again with fewer messages
    assert tables.complete_s() is None
    cluster.standby_offsets = {}
    until(lambda: standby_reached() is None, "there is still a standby")
    cluster.standby_offsets = {ORDER: 3}  # a new standby, with fewer messages than the old one
    time.sleep(0.1)
    assert standby_reached() is None


@pytest.mark.parametrize(
    ("topics", "is_read", "refusal"),
    [
        (("booking.order.G0", "booking.order"), True, None),
        (("booking.order.G0", "booking.order"), False, "its table is still being read into"),
        (
            ("booking.order", "booking.order.G2"),
            True,
            "goes on in topic booking.order.G2; start",
        ),
    ],
)
def test_rows_of_a_repartitioned_entity_are_complete_only_in_its_new_topic(
    cluster: Cluster, tables: TablesProgress, topics: tuple[str, str], refusal: str | None, *, is_read: bool
) -> None:
    """The new topic must also have all rows: the service must have read the whole table into it.

    The command serves `booking.order`. In the first two cases, this is the new topic; in the third, it is the old one.
    """
    cluster.commit = 1
    until(lambda: reached(tables, "order") == reached(tables, "guest") == 1, "the rows are not complete")
    cluster.sink = {GENERATIONS: {"order": [{"topic": name, "partitions": 1} for name in topics]}}
    cluster.windows = {"order": {"complete": is_read}}
    cluster.commit = 2
    until(lambda: reached(tables, "guest") == 2, "the other entity is not complete")
    if refusal is None:
        until(lambda: reached(tables, "order") == 2, "the entity is not complete")
        assert tables.refusal("order") is None
    else:
        assert reached(tables, "order") == 1
        assert refusal in str(tables.refusal("order"))
    assert tables.refusal("guest") is None


def test_a_store_with_its_own_changelog_is_complete_at_the_end_of_that_changelog(cluster: Cluster) -> None:
    """The changelog of a store is a topic from which Kafka Streams can restore the store."""
    changelog = ("app-order-changelog", 0)
    cluster.changelogs, cluster.changelog_ends = {"booking.order": changelog[0]}, {changelog: 2}
    cluster.ends, cluster.messages = {ORDER: 7}, {ORDER: [6], changelog: [0, 1]}
    cluster.offsets, cluster.standby_offsets, cluster.commit = {ORDER: 6}, {ORDER: 1}, 1
    with closing(open_progress(cluster, {"order": TOPICS["order"]})) as tables:
        time.sleep(0.1)
        assert tables.standby_reached(ORDER) is None
        assert reached(tables, "order") is None
        cluster.offsets = {ORDER: 7}
        until(lambda: reached(tables, "order") == 1, "order is not complete")
        assert tables.need(ORDER) == Need(7, 2)
        time.sleep(0.1)
        assert tables.standby_reached(ORDER) is None
        cluster.standby_offsets = {ORDER: 2}
        until(lambda: tables.standby_reached(ORDER) == tables.reached([ORDER]), "the standby is not complete")
