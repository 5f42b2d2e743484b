"""Tests the names of an entity's topics, and what a checkpoint says about these topics.

Repartitioning an entity begins a new topic, the next *generation* of the entity.
"""

from dataclasses import replace

import pytest

from changelog.connectors.sinks.kafka.admin.generations import Generation, generations_of, has_all_rows, present_numbers
from changelog.connectors.sinks.kafka.admin.names import entity_of, first_topic, generation_of, topic
from changelog.connectors.sinks.kafka.reading.spans import by_generation
from changelog.envelope.checkpoint import GENERATIONS
from tests.unit.records import checkpoint

FIRST = {"topic": "shop.eu.order", "partitions": 4, "last": "00000001/0000000000000002/00000004"}
SECOND = {"topic": "shop.eu.order.G2", "partitions": 12}


@pytest.mark.parametrize("entity", ["order", "g2"])
def test_the_name_of_a_topic_tells_its_entity_and_its_generation(entity: str) -> None:
    assert topic("shop.eu", entity) == f"shop.eu.{entity}"
    for generation in (1, 2, 10):
        name = topic("shop.eu", entity, generation)
        assert (entity_of("shop.eu", name), generation_of(name)) == (entity, generation)
        assert first_topic(name) == f"shop.eu.{entity}"


def test_partitions_are_grouped_by_generation_oldest_first() -> None:
    parts = [(topic("shop", entity, generation), 0) for generation in (10, 2, 1) for entity in ("guest", "order")]
    assert by_generation(parts) == [parts[4:], parts[2:4], parts[:2]]


def test_the_checkpoint_has_the_topics_of_repartitioned_entities() -> None:
    stored = replace(
        checkpoint(1),
        sink={GENERATIONS: {"order": [FIRST, SECOND]}},
        settings={"order": {"partitions": 12}, "guest": {"partitions": 2}},
    )
    generations = generations_of(stored, "shop.eu", "order")
    assert [generation.to_json() for generation in generations] == [FIRST, SECOND]
    assert generations_of(stored, "shop.eu", "guest") == [Generation(topic="shop.eu.guest", partitions=2)]
    assert generations_of(None, "shop.eu", "guest") == [Generation(topic="shop.eu.guest", partitions=1)]
    assert present_numbers(stored.sink[GENERATIONS]) == {"order": 2}


@pytest.mark.parametrize(
    ("progress", "expected"),
    [({"complete": True}, True), ({"complete": False, "again": ["*"]}, True), ({"complete": False}, False)],
)
def test_a_topic_has_all_rows_once_the_table_was_read(progress: dict[str, object], *, expected: bool) -> None:
    assert has_all_rows(replace(checkpoint(1), windows={"order": progress}), "order") is expected
