"""Tests which topics can be served, in which of their partitions a key can be, and for which topics a view can choose
rows by service.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from changelog.connectors.sinks.kafka.admin.topics import Profile, Topic, TopicSettings, TopicState
from changelog.connectors.views.streams import topics
from changelog.connectors.views.streams.topics import ServedTopic, loss
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, None),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, None),
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, "retention.ms = 1000"),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "5"}, "retention.bytes = 5"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000"}, "retention.ms = 1000"),
    ],
)
def test_a_topic_that_deletes_messages_is_recognized(settings: dict[str, str], expected: str | None) -> None:
    assert loss(TopicState(partitions=1, settings=settings)) == expected


def test_topics_whose_settings_may_not_be_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise ChangelogError(Kind.ACCESS, "asking Kafka for the topics' settings: not authorized")

    monkeypatch.setattr(topics, "read", read)
    log = SimpleNamespace(checkpoint=lambda: SimpleNamespace(settings={"order": {}}, sink={}))
    admin = SimpleNamespace(topics=lambda: {"booking.order": None})
    with pytest.raises(ChangelogError) as caught:
        topics.served_topics(cast(Any, admin), cast(Any, log), "booking", [])
    assert caught.value.kind is Kind.ACCESS
    assert "grant DescribeConfigs" in str(caught.value)


@pytest.mark.parametrize(("profile", "keeps"), [("changelog", True), ("aggressive", True), ("history", False)])
def test_topics_of_the_service_keep_the_last_message_of_each_key(profile: Profile, keeps: bool) -> None:
    state = TopicState(partitions=1, settings=TopicSettings(profile=profile).to_kafka())
    assert (loss(state) is None) == keeps


def test_a_key_is_in_one_partition_if_it_decides_the_partition() -> None:
    placed = ServedTopic(name="booking.order", key=("id",), partitions=3, is_placed_by_key=True)
    assert placed.partitions_of(b"42") == [partition(b"42", 3)]
    elsewhere = ServedTopic(name="booking.order", key=("id",), partitions=3, is_placed_by_key=False)
    assert list(elsewhere.partitions_of(b"42")) == [0, 1, 2]
    assert placed.parts() == [("booking.order", 0), ("booking.order", 1), ("booking.order", 2)]


def test_a_view_by_service_needs_rows_that_stay_in_their_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = ServedTopic(name="booking.guest", key=("id",), partitions=3, is_placed_by_key=False)
    settings: dict[str, str] = {}

    def ensured(_: object, new_topics: Sequence[Topic], **__: object) -> dict[str, TopicState]:
        settings.update(new_topics[0].settings)
        return {new_topics[0].name: TopicState(partitions=new_topics[0].partitions, settings=settings)}

    def changelog(served: ServedTopic) -> tuple[str, float]:
        client = cast(Any, SimpleNamespace(admin=lambda: None))
        return topics.ensure_changelog(client, "views-guest-changelog", served, create=True, replication_factor=None)

    monkeypatch.setattr(topics, "ensure", ensured)
    monkeypatch.setattr(topics, "read_ids", lambda *_: {"views-guest-changelog": "id"})
    with pytest.raises(
        ChangelogError, match=r"rows of the topic booking\.guest can move between its partitions, so they cannot"
    ):
        changelog(moving)
    assert changelog(replace(moving, partitions=1, message_bytes=5 << 20)) == ("id", 7 * 86_400.0)
    assert (settings["cleanup.policy"], settings["max.message.bytes"]) == ("compact", str(5 << 20))
    monkeypatch.setattr(topics, "loss", lambda _: "retention.ms = 1000")
    with pytest.raises(ChangelogError, match=r"topic views-guest-changelog deletes messages \(retention\.ms = 1000\)"):
        changelog(replace(moving, is_placed_by_key=True))
