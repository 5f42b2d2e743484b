"""Tests how the service notices that it cannot continue its changelog from its topics, and at which offset it begins to
read each partition.
"""

import zlib
from base64 import b64encode
from random import Random

import pytest

from changelog.connectors.kafka.client import Client
from changelog.connectors.sources.debezium.inputs.engine.history import packed, unpacked
from changelog.connectors.sources.debezium.inputs.topics.lineage import (
    InputTopic,
    InputTopics,
    offsets,
    offsets_over_gap,
    part_name,
    part_of,
    problems,
    refuse,
)
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings
from changelog.envelope.errors import ChangelogError, Kind

IDENTITY = {"a": {"id": "A", "partitions": 2}}
GROWN = "topic a has 4 partitions, and had 2 when its events were published, so the order of a key's events is unknown"
PROGRESS = {"a/0": 5, "a/1": 7}


def topics(begin: int = 0, end: int = 9, *, id_: str = "A", partitions: int = 2) -> InputTopics:
    parts = [("a", number) for number in range(partitions)]
    return InputTopics(
        states={"a": InputTopic(id=id_, partitions=partitions)},
        begins=dict.fromkeys(parts, begin),
        ends=dict.fromkeys(parts, end),
    )


@pytest.mark.parametrize(
    ("present", "lines"),
    [
        (topics(), []),
        (topics(id_=""), []),
        (topics(begin=5), []),
        (
            topics(begin=6),
            ["partition 0 of topic a begins at offset 6, but the changelog continues at offset 5; offsets lost: 1"],
        ),
        (
            topics(end=6),
            [
                (
                    "partition 1 of topic a ends at offset 6, but the changelog continues at offset 7: "
                    "the topic has lost its newest messages"
                )
            ],
        ),
        (topics(id_="B", end=0), ["topic a was deleted and created again"]),
        (
            topics(partitions=4),
            [GROWN],
        ),
        (InputTopics(states={}, begins={}, ends={}), ["topic a is gone"]),
    ],
)
def test_the_ways_in_which_topics_no_longer_continue_the_changelog_are_reported(
    present: InputTopics, lines: list[str]
) -> None:
    assert problems(IDENTITY, PROGRESS, present, {"a"}) == lines
    assert problems(IDENTITY, PROGRESS, present, set()) == [], "a topic that is no longer configured may change"
    assert problems(None, None, present, set()) == []


def test_a_refusal_has_the_first_problem_and_the_number_of_others() -> None:
    with pytest.raises(ChangelogError, match=r"^one \(and 2 more\)") as caught:
        refuse(["one", "two", "three"])
    assert caught.value.kind is Kind.GAP
    refuse([])


def test_each_partition_is_read_from_its_stored_offset_or_its_beginning() -> None:
    assert offsets(PROGRESS, topics(begin=2, partitions=3)) == {("a", 0): 5, ("a", 1): 7, ("a", 2): 2}


@pytest.mark.parametrize(
    ("present", "first", "second"),
    [(topics(), 5, 7), (topics(begin=6), 6, 7), (topics(end=6), 5, 0), (topics(id_="B"), 0, 0)],
)
def test_after_a_gap_partitions_that_lost_nothing_continue(present: InputTopics, first: int, second: int) -> None:
    assert offsets_over_gap(IDENTITY, PROGRESS, present) == {("a", 0): first, ("a", 1): second}


def test_a_partition_is_read_back_from_its_name() -> None:
    assert part_of(part_name(("app.public.x-y_z", 12))) == ("app.public.x-y_z", 12)


@pytest.mark.parametrize(
    ("topic", "is_read"),
    [("app.item", True), ("app.old", False), ("other", False), ("__consumer_offsets", False), ("__exact", True)],
)
def test_the_configured_topics_are_read(topic: str, is_read: bool) -> None:
    settings = TopicsSettings(
        client=Client(bootstrap_servers="a:1"), include=("app.*", "__*", "__exact"), exclude=("*.old",), group="g"
    )
    assert settings.matches(topic) == is_read


def test_the_history_of_schemas_is_packed_and_unpacked() -> None:
    records = [b'{"ddl":"CREATE TABLE t"}', b'{"ddl":"ALTER TABLE t"}']
    assert unpacked(packed(records)) == records
    assert (packed([]), unpacked("")) == ("", [])
    random = Random(1)
    noise = b64encode(random.randbytes(700_000))
    assert len(zlib.compress(noise)) > 512 << 10
    with pytest.raises(ChangelogError, match="history of schemas takes up") as caught:
        packed([noise])
    assert caught.value.kind is Kind.LIMIT
