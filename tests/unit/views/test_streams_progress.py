"""Tests that rows are complete up to a checkpoint once the application has committed all offsets of the checkpoint."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.views.streams import progress
from changelog.connectors.views.streams.placement import Needed
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
    """Kafka, as the progress sees it: the newest checkpoint, the ends, committed offsets, and committed messages."""

    def __init__(self) -> None:
        self.commit: int | None = None
        self.ends: dict[Part, int] = {ORDER: 0, GUEST: 0}
        self.offsets: dict[Part, int] = {}
        self.standby_offsets: dict[Part, int] = {}
        self.messages: dict[Part, list[int]] = {}
        self.error: Exception | None = None
        self.are_tables_restored = True
        self.complete_times: list[float] = []
        self.sink: dict[str, Any] = {}
        self.windows: dict[str, Any] = {}
        self.changelogs: Mapping[str, str] = {}
        self.changelog_ends: dict[Part, int] = {}

    def admin(self) -> None:
        pass

    @contextmanager
    def reader(self) -> Iterator[None]:
        yield

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

    def in_spans(self, _: object, spans: Mapping[Part, range]) -> Iterator[list[int]]:
        for part, span in spans.items():
            yield [offset for offset in self.messages.get(part, []) if offset in span]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(progress, "committed", lambda *_: dict(cluster.offsets))
    monkeypatch.setattr(progress, "written_ends", lambda *_: dict(cluster.changelog_ends))
    monkeypatch.setattr(progress, "complete_ends", lambda *_: dict(cluster.ends))
    monkeypatch.setattr(progress, "messages_in", cluster.in_spans)
    monkeypatch.setattr(progress, "closing", lambda context: context)
    monkeypatch.setattr(progress, "SEARCH_S", 0.05)
    monkeypatch.setattr(progress, "POLL_S", 0.001)
    monkeypatch.setattr(progress, "AGAIN_S", 0.001)
    return cluster


@pytest.fixture
def followed(cluster: Cluster) -> Iterator[TablesProgress]:
    with closing(following(cluster)) as tables:
        yield tables


def following(cluster: Cluster, topics: Mapping[str, ServedTopic] = TOPICS) -> TablesProgress:
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


def reached(followed: TablesProgress, entity: str) -> int | None:
    completeness = followed.reached([(f"booking.{entity}", 0)])
    return None if completeness is None or completeness.position is None else completeness.position.commit


def test_rows_are_complete_once_the_offsets_are_committed(cluster: Cluster, followed: TablesProgress) -> None:
    assert reached(followed, "order") is None
    cluster.ends, cluster.messages = {ORDER: 7, GUEST: 5}, {ORDER: [6], GUEST: [3]}
    cluster.offsets = {ORDER: 6, GUEST: 5}
    cluster.commit = 1
    until(lambda: reached(followed, "guest") == 1, "guest is not complete")
    assert reached(followed, "order") is None
    cluster.offsets = {ORDER: 7, GUEST: 5}
    until(lambda: reached(followed, "order") == 1, "order is not complete")
    assert followed.reached([ORDER]) == followed.reached([GUEST]) == followed.reached([ORDER, GUEST])
    assert followed.needed(ORDER) == Needed(7, 7)


def test_an_entity_that_lags_holds_no_other_up(cluster: Cluster, followed: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 100, GUEST: 5}, {ORDER: [3, 50, 99]}
    cluster.offsets = {ORDER: 4, GUEST: 5}
    for commit in (1, 2, 3):
        cluster.commit = commit
        until(lambda commit=commit: reached(followed, "guest") == commit, "guest is not complete")  # type: ignore[misc]
    assert reached(followed, "order") is None
    cluster.offsets = {ORDER: 100, GUEST: 5}
    until(lambda: reached(followed, "order") == 3, "order is not complete")
    until(lambda: cluster.complete_times == [1.0], "the time was not noted once")


def test_tables_are_complete_at_the_time_of_the_oldest(cluster: Cluster, followed: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 0, GUEST: 5}, {GUEST: [4]}
    cluster.commit = 1
    until(lambda: reached(followed, "order") == 1, "order is not complete")
    assert followed.complete_s() is None
    cluster.offsets = {GUEST: 5}
    until(lambda: followed.complete_s() == 1.0, "the tables are not complete")
    cluster.ends, cluster.messages = {ORDER: 0, GUEST: 7}, {GUEST: [6]}
    cluster.commit = 2
    until(lambda: reached(followed, "order") == 2, "order is not complete")
    assert followed.complete_s() == 1.0
    cluster.are_tables_restored = False
    assert followed.complete_s() is None


def test_what_has_no_message_need_not_be_read(cluster: Cluster, followed: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 60, GUEST: 5}, {ORDER: [9]}
    cluster.commit = 1
    cluster.offsets = {ORDER: 10}
    until(lambda: reached(followed, "order") == reached(followed, "guest") == 1, "the ends hold messages")


def test_what_follows_the_last_message_need_not_be_read(cluster: Cluster, followed: TablesProgress) -> None:
    cluster.ends, cluster.messages = {ORDER: 60, GUEST: 0}, {ORDER: [9]}
    cluster.commit = 1
    time.sleep(0.1)  # the message is found
    assert reached(followed, "order") is None
    cluster.offsets = {ORDER: 10}
    until(lambda: reached(followed, "order") == 1, "the rest has no message")


def test_an_error_is_kept_until_kafka_answers(cluster: Cluster, followed: TablesProgress) -> None:
    cluster.error = ChangelogError(Kind.ACCESS, "asking Kafka: not authorized")
    until(lambda: followed.error is cluster.error, "there is no error")
    cluster.error, cluster.commit = None, 1
    until(lambda: reached(followed, "order") == 1, "order is not complete")
    until(lambda: followed.error is None, "the error stays")


def test_only_a_restoration_is_no_error(cluster: Cluster, followed: TablesProgress) -> None:
    def shown() -> str:
        return str(followed.error)

    cluster.error = ChangelogError(Kind.PRECONDITION, "a topic is gone")
    until(lambda: shown() == "a topic is gone", "there is no error")
    cluster.error = KeyError("a value")
    until(lambda: shown() == "finding out how far rows are complete: KeyError", "there is no error")
    cluster.error = None
    until(lambda: followed.error is None, "the error stays")
    cluster.error = restoring("order")
    time.sleep(0.02)
    assert followed.error is None
    cluster.error, cluster.commit = None, 1
    until(lambda: reached(followed, "order") == 1, "the thread has ended")


def test_a_long_span_without_messages_holds_nothing_up(cluster: Cluster, followed: TablesProgress) -> None:
    cluster.ends[ORDER] = 10**7
    cluster.commit = 1
    until(lambda: reached(followed, "order") == 1, "order is not complete")


def test_a_standby_is_complete_up_to_its_own_offsets(cluster: Cluster, followed: TablesProgress) -> None:
    def standby_reached() -> int | None:
        completeness = followed.standby_reached(ORDER)
        return None if completeness is None or completeness.position is None else completeness.position.commit

    cluster.ends, cluster.messages = {ORDER: 7, GUEST: 5}, {ORDER: [2, 5]}
    cluster.offsets = {ORDER: 7, GUEST: 5}
    cluster.standby_offsets, cluster.commit = {ORDER: 3}, 1
    until(lambda: reached(followed, "order") == 1, "order is not complete")
    assert standby_reached() is None
    assert followed.complete_s() is None
    cluster.standby_offsets = {ORDER: 6}  # what follows is the end of a transaction
    until(lambda: standby_reached() == 1, "the standby is not complete")
    until(lambda: followed.complete_s() == 1.0, "the tables are not complete")
    cluster.ends, cluster.offsets, cluster.messages, cluster.commit = (
        {**cluster.ends, ORDER: 9},
        {ORDER: 9},
        {ORDER: [8]},
        2,
    )
    until(lambda: reached(followed, "order") == 2, "order is not complete")
    assert standby_reached() == 1
    assert followed.complete_s() == 1.0
    cluster.standby_offsets = {ORDER: 5}  # it was closed, and began again with fewer messages
    assert followed.complete_s() is None
    cluster.standby_offsets = {}
    until(lambda: standby_reached() is None, "there is still a standby")
    cluster.standby_offsets = {ORDER: 3}  # it has fewer messages than before
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
def test_rows_of_a_repartitioned_entity_are_complete_only_in_a_new_topic_into_which_its_table_was_read(
    cluster: Cluster, followed: TablesProgress, topics: tuple[str, str], refusal: str | None, *, is_read: bool
) -> None:
    """The command serves the topic `booking.order`, which is the new one or the old one."""
    cluster.commit = 1
    until(lambda: reached(followed, "order") == reached(followed, "guest") == 1, "the rows are not complete")
    cluster.sink = {GENERATIONS: {"order": [{"topic": name, "partitions": 1} for name in topics]}}
    cluster.windows = {"order": {"complete": is_read}}
    cluster.commit = 2
    until(lambda: reached(followed, "guest") == 2, "the other entity is not complete")
    if refusal is None:
        until(lambda: reached(followed, "order") == 2, "the entity is not complete")
        assert followed.refusal("order") is None
    else:
        assert reached(followed, "order") == 1
        assert refusal in str(followed.refusal("order"))
    assert followed.refusal("guest") is None


def test_stores_with_their_own_changelogs_are_complete_up_to_the_ends_of_these(cluster: Cluster) -> None:
    changelog = ("app-order-changelog", 0)
    cluster.changelogs, cluster.changelog_ends = {"booking.order": changelog[0]}, {changelog: 2}
    cluster.ends, cluster.messages = {ORDER: 7}, {ORDER: [6], changelog: [0, 1]}
    cluster.offsets, cluster.standby_offsets, cluster.commit = {ORDER: 6}, {ORDER: 1}, 1
    with closing(following(cluster, {"order": TOPICS["order"]})) as followed:
        time.sleep(0.1)
        assert followed.standby_reached(ORDER) is None
        assert reached(followed, "order") is None
        cluster.offsets = {ORDER: 7}
        until(lambda: reached(followed, "order") == 1, "order is not complete")
        assert followed.needed(ORDER) == Needed(7, 2)
        time.sleep(0.1)
        assert followed.standby_reached(ORDER) is None
        cluster.standby_offsets = {ORDER: 2}
        until(lambda: followed.standby_reached(ORDER) == followed.reached([ORDER]), "the standby is not complete")
