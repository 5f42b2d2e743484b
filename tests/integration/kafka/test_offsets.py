"""Tests the functions that ask a broker for the first and last offsets of partitions."""

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from changelog.connectors.kafka import offsets
from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.servers.kafka import Broker
from tests.patience import until

PARTITIONS = 24


@pytest.fixture
def admin(broker: Broker) -> Admin:
    return Client(bootstrap_servers=broker.bootstrap_servers).admin()


@pytest.fixture
def parts(admin: Admin, own_name: str) -> list[Part]:
    """The partitions of a topic that has just been created. For a moment, they have no leader."""
    [creation] = admin.create_topics([NewTopic(own_name, PARTITIONS, 1)]).values()
    creation.result()
    until(lambda: own_name in admin.topics(), f"the broker does not list the topic {own_name}")
    return [(own_name, number) for number in range(PARTITIONS)]


def test_a_topic_that_was_just_created_is_empty(admin: Admin, parts: list[Part]) -> None:
    assert offsets.ends(admin, parts) == dict.fromkeys(parts, 0)
    assert offsets.begins(admin, parts) == dict.fromkeys(parts, 0)
    assert offsets.since(admin, dict.fromkeys(parts, 0)) == dict.fromkeys(parts)
    assert offsets.ends(admin, []) == {}


def test_an_open_transaction_is_after_the_end_that_readers_see(broker: Broker, admin: Admin, parts: list[Part]) -> None:
    [part, *_] = parts
    topic, number = part
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"committed", partition=number)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=number)
    producer.flush()
    assert offsets.ends(admin, [part]) == {part: 2}  # the message and the marker of its commit
    assert offsets.written_ends(admin, [part]) == {part: 3}
    producer.abort_transaction()


def test_offsets_are_asked_for_only_after_a_broker_has_answered(
    broker: Broker, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asked for offsets before it had a connection would repeat the request only after 3 s."""
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    offsets.ends(client.admin(), parts[:1])  # waits until the partition has a leader
    admin, requests = client.admin(), []

    def record(name: str) -> None:
        request = getattr(admin, name)

        def call(*arguments: Any, **options: Any) -> Any:
            requests.append(name)
            return request(*arguments, **options)

        monkeypatch.setattr(admin, name, call)

    record("list_topics")
    record("list_offsets")
    for _ in range(2):
        assert offsets.ends(admin, parts[:1]) == {parts[0]: 0}
    assert requests[0] == "list_topics"
    assert set(requests[1:]) == {"list_offsets"}
