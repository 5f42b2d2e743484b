"""Tests `ChangelogProducer`, with which an application publishes its own events to Kafka.

A batch of events is published completely or not at all. An event that is published twice has the same id both times.
"""

import contextlib
import itertools
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from changelog.connectors.kafka.client import Client
from changelog.connectors.producer import EVENTS_MAX, ChangelogProducer, Event
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import free_port, temporary_folder
from changelog.envelope.codec import json_codec
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition
from changelog.envelope.position import UNPLACED
from tests.integration.kafka.topics import settled
from tests.message_schema import MESSAGE
from tests.patience import PATIENCE_S, until
from tests.proxy import Proxy
from tests.servers import kafka_lib

AT = datetime(2026, 11, 21, 3, 10, 2, 886044, UTC)
PARTITIONS = 3

APPLICATION = """
import logging, sys
from datetime import UTC, datetime
from changelog.connectors.producer import ChangelogProducer, Event

servers, prefix, *logs = sys.argv[1:]
if logs:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(name)s %(levelname)s")
event = Event(entity="viewed", id="e-1", key=("1",), state={}, at=datetime.now(UTC))
with ChangelogProducer(
    servers, prefix=prefix, service_name="web", instance="web-0", client={"debug": "eos"}
) as producer:
    producer.publish([event])
"""

_numbers = itertools.count()

OpenProducer = Callable[..., ChangelogProducer]


@pytest.fixture
def prefix(broker: Broker) -> str:
    """A prefix of topics that only this test uses. The topic of the entity `viewed` exists."""
    prefix = f"events{next(_numbers)}"
    create(broker, f"{prefix}.viewed")
    return prefix


@pytest.fixture
def open_producer(broker: Broker, prefix: str) -> Iterator[OpenProducer]:
    """Returns a function that opens a producer of the service `web`, by default as instance `web-0`. The producer is
    closed at the end of the test.
    """
    with contextlib.ExitStack() as producers:

        def make(
            servers: str = broker.bootstrap_servers, *, instance: str = "web-0", **options: Any
        ) -> ChangelogProducer:
            producer = ChangelogProducer(
                servers, prefix=prefix, service_name="web", api_version="v3", instance=instance, **options
            )
            return producers.enter_context(producer)

        yield make


def create(broker: Broker, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.direct_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result()


def event(number: int, **changes: Any) -> Event:
    return replace(
        Event(entity="viewed", id=f"e-{number}", key=(str(number),), state={"id": number, "page": "Zürich"}, at=AT),
        **changes,
    )


def read(broker: Broker, topic: str) -> list[Message]:
    """Waits until no transaction is open. Returns the committed messages; those of one partition are in order."""
    settled(Client(bootstrap_servers=broker.direct_servers), [(topic, number) for number in range(PARTITIONS)])
    consumer = Consumer(
        {
            "bootstrap.servers": broker.direct_servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    messages: list[Message] = []
    read_partitions: set[int | None] = set()
    with contextlib.closing(consumer):
        while len(read_partitions) < PARTITIONS:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "the broker does not answer"
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                assert error.name() == "_PARTITION_EOF"
                read_partitions.add(message.partition())
    return messages


def headers_of(message: Message) -> dict[str, Any]:
    return dict(message.headers() or ())


def ids(messages: Sequence[Message]) -> list[str]:
    return sorted(headers_of(message)["id"].decode() for message in messages)


def test_an_event_has_the_form_of_every_message(broker: Broker, prefix: str, open_producer: OpenProducer) -> None:
    context = {"ticket": "PAY-7", "user": {"größe": 1.5}}
    open_producer().publish(
        [event(7, identifier="req-1", context=context), event(8, key=("a", "b"), partition_by=("g",))]
    )
    by_id = {headers_of(message)["id"]: message for message in read(broker, f"{prefix}.viewed")}
    first, second = by_id[b"e-7"], by_id[b"e-8"]
    assert (first.key(), first.partition()) == (b"7", partition(b"7", PARTITIONS))
    assert (second.key(), second.partition()) == (b'["a","b"]', partition(b"g", PARTITIONS))
    assert first.timestamp()[1] == int(AT.timestamp() * 1000)
    assert headers_of(second) == {
        "op": b"create",
        "transaction": b"e-7",
        "serviceName": b"web",
        "id": b"e-8",
    }
    value = json.loads(first.value() or b"")
    MESSAGE.validate(value)
    assert value == {
        "provenance": {
            "apiVersion": "v3",
            "serviceName": "web",
            "identifier": "req-1",
            "context": context,
            "source": {
                "connector": "producer",
                "name": "web",
                "database": "",
                "table": "",
                "op": "create",
                "transaction": "e-7",
                "committedAt": "2026-11-21T03:10:02.886044Z",
                "id": "e-7",
            },
        },
        "current": {"id": 7, "page": "Zürich"},
    }
    assert json_codec.decode(first.value() or b"").provenance.source.position == UNPLACED


def test_a_key_keeps_its_order(broker: Broker, prefix: str, open_producer: OpenProducer) -> None:
    producer = open_producer()
    producer.publish([event(n, key=("7",)) for n in range(50)])
    producer.publish([event(n, key=("7",)) for n in range(50, 100)])
    messages = read(broker, f"{prefix}.viewed")
    assert [json.loads(message.value() or b"")["current"]["id"] for message in messages] == list(range(100))


def test_a_batch_with_a_message_that_is_too_large_is_not_published(
    broker: Broker, prefix: str, open_producer: OpenProducer
) -> None:
    create(broker, f"{prefix}.small", **{"max.message.bytes": "2000"})
    producer = open_producer()
    too_large = event(3, entity="small", state={"text": random.Random(1).randbytes(5000).hex()})
    with pytest.raises(ChangelogError, match="nothing was stored") as caught:
        producer.publish([event(1), event(2, entity="small"), too_large])
    assert caught.value.kind is Kind.LIMIT
    assert read(broker, f"{prefix}.viewed") == read(broker, f"{prefix}.small") == []
    producer.publish([event(1), event(2, entity="small")])
    assert ids(read(broker, f"{prefix}.viewed")) == ["e-1"]
    assert ids(read(broker, f"{prefix}.small")) == ["e-2"]


def test_a_message_that_the_client_refuses_leaves_no_transaction_open(
    broker: Broker, prefix: str, open_producer: OpenProducer
) -> None:
    producer = open_producer()
    with pytest.raises(ChangelogError, match="nothing was stored") as caught:
        producer.publish([event(1), event(2, state={"text": "x" * 2_000_000})])
    assert caught.value.kind is Kind.LIMIT
    producer.publish([event(3)])
    assert ids(read(broker, f"{prefix}.viewed")) == ["e-3"]


def test_an_older_instance_publishes_nothing_more(broker: Broker, prefix: str, open_producer: OpenProducer) -> None:
    older, newer = open_producer(), open_producer()
    older.publish([event(1)])
    newer.publish([event(2)])
    for _ in range(2):  # the older instance does not get the name back, even if it tries again
        with pytest.raises(ChangelogError, match="another process now uses the name") as caught:
            older.publish([event(3)])
        assert caught.value.kind is Kind.IN_USE
    newer.publish([event(4)])
    assert ids(read(broker, f"{prefix}.viewed")) == ["e-1", "e-2", "e-4"]


def test_instances_with_different_names_publish_side_by_side(
    broker: Broker, prefix: str, open_producer: OpenProducer
) -> None:
    first, second = open_producer(instance="web-0"), open_producer(instance="web-1")
    for number in range(3):
        first.publish([event(2 * number)])
        second.publish([event(2 * number + 1)])
    assert ids(read(broker, f"{prefix}.viewed")) == [f"e-{number}" for number in range(6)]


def test_a_repeated_event_has_the_same_id(broker: Broker, prefix: str, open_producer: OpenProducer) -> None:
    open_producer().publish([event(1), event(2)])
    open_producer().publish([event(1), event(2)])
    messages = read(broker, f"{prefix}.viewed")
    assert ids(messages) == ["e-1", "e-1", "e-2", "e-2"]
    assert len({(message.key(), message.value()) for message in messages}) == 2


def publish_again_until_stored(producer: ChangelogProducer, events: Sequence[Event]) -> None:
    """Publishes events. If Kafka does not confirm them in time, publishes the same events again, until it does."""

    def is_published() -> bool:
        try:
            producer.publish(events)
        except ChangelogError as error:
            if error.kind not in (Kind.CONNECTION, Kind.IN_DOUBT):
                raise
            return False
        return True

    until(is_published, "the events are not published")


@pytest.mark.usefixtures("starts_servers")
def test_after_an_unknown_outcome_the_same_ids_are_published_again() -> None:
    port = free_port()
    with (
        temporary_folder("changelog-test-") as folder,
        Proxy("127.0.0.1", port) as proxy,
        Broker(kafka_lib(), folder, port=port, advertised=proxy.address) as broker,
        ChangelogProducer(proxy.address, prefix="p", service_name="web", instance="web-0", timeout_s=5) as producer,
    ):
        create(broker, "p.viewed")
        publish_again_until_stored(producer, [event(1)])
        proxy.hang()
        with pytest.raises(ChangelogError) as caught:
            producer.publish([event(2), event(3)])
        assert caught.value.kind is Kind.IN_DOUBT
        assert caught.value.hint == "publish the same events again, with the same ids"
        del caught  # the error's traceback would keep the failed client alive
        proxy.resume()
        publish_again_until_stored(producer, [event(2), event(3)])
        assert sorted(set(ids(read(broker, "p.viewed")))) == ["e-1", "e-2", "e-3"]


def test_several_threads_can_use_one_producer(broker: Broker, prefix: str, open_producer: OpenProducer) -> None:
    producer = open_producer()
    threads = [threading.Thread(target=producer.publish, args=([event(n), event(n + 10)],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids(read(broker, f"{prefix}.viewed"))) == 16


def test_another_number_of_partitions_is_refused(broker: Broker, prefix: str, open_producer: OpenProducer) -> None:
    with pytest.raises(ChangelogError, match="has 3 partitions, and 4 are expected") as caught:
        open_producer(partitions={"viewed": 4}).publish([event(1)])
    assert caught.value.kind is Kind.PRECONDITION
    assert "a topic that grew cannot shrink: set partitions={'viewed': 3}" in str(caught.value)
    open_producer(partitions={"viewed": 3}).publish([event(2)])
    assert ids(read(broker, f"{prefix}.viewed")) == ["e-2"]


def test_the_producer_waits_for_a_topic_that_is_being_created(
    broker: Broker, prefix: str, open_producer: OpenProducer
) -> None:
    """Some brokers learn of a new topic later than the client that created it."""
    producer = open_producer()
    producer.publish([event(1)])
    creation = threading.Timer(1.0, create, [broker, f"{prefix}.new"])
    creation.start()
    try:
        producer.publish([event(2, entity="new")])
    finally:
        creation.join()
    assert ids(read(broker, f"{prefix}.new")) == ["e-2"]


def test_a_missing_topic_is_an_error(open_producer: OpenProducer) -> None:
    with pytest.raises(ChangelogError, match=r"topic .*\.nothing") as caught:
        open_producer().publish([event(1, entity="nothing")])
    assert caught.value.kind is Kind.PRECONDITION


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": ""}, "needs an id"),
        ({"key": ()}, "needs an id, a key"),
        ({"at": AT.replace(tzinfo=None)}, "a time with a zone"),
        ({"state": {"n": float("nan")}}, "not JSON"),
        ({"state": {"at": AT}}, "not JSON"),
        ({"state": {"text": "\ud800"}}, "not JSON"),
        ({"context": {"at": AT}}, "has a context that is not JSON"),
        ({"context": ["x"]}, "has a context that is not an object"),
        ({"context": {"text": "x" * 4096}}, "has a context that has more than 4096 bytes"),
        ({"key": ("\ud800",)}, "not valid Unicode"),
        ({"identifier": "\ud800"}, "not valid Unicode"),
        ({"entity": "Viewed"}, "cannot be the name of an entity"),
        ({"entity": "positions"}, "cannot be the name of an entity"),
    ],
)
def test_a_batch_with_an_invalid_event_is_refused(
    broker: Broker, prefix: str, open_producer: OpenProducer, changes: dict[str, Any], message: str
) -> None:
    producer = open_producer()
    with pytest.raises(ChangelogError, match=message) as caught:
        producer.publish([event(1), event(2, **changes)])
    assert caught.value.kind is Kind.USAGE
    assert read(broker, f"{prefix}.viewed") == []


def test_a_batch_has_a_maximum_size(open_producer: OpenProducer) -> None:
    with pytest.raises(ChangelogError, match="may have at most 10000") as caught:
        open_producer().publish([event(1)] * (EVENTS_MAX + 1))
    assert caught.value.kind is Kind.LIMIT


def test_a_closed_producer_refuses_events(open_producer: OpenProducer) -> None:
    producer = open_producer()
    producer.close()
    with pytest.raises(ChangelogError, match="closed"):
        producer.publish([event(1)])


def test_an_instance_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ChangelogError, match="instance should be made of"):
        ChangelogProducer("127.0.0.1:1", prefix="a", service_name="b", instance="c/d")


@pytest.mark.parametrize(("words", "log_lines"), [([], set()), (["logs"], {"changelog.librdkafka DEBUG"})])
def test_the_log_of_librdkafka_goes_to_the_applications_log(
    broker: Broker, prefix: str, words: list[str], log_lines: set[str]
) -> None:
    command = [sys.executable, "-c", APPLICATION, broker.bootstrap_servers, prefix, *words]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    assert run.stdout == ""
    assert set(run.stderr.splitlines()) == log_lines
