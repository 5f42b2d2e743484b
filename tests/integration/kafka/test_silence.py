"""A broker that goes away or falls silent while it is asked: every wait for it has an end."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connectors.embedded_kafka import Broker
from connectors.sinks.kafka import consumed
from connectors.sinks.kafka.client import Client
from connectors.sinks.kafka.topics import Topic, ensure
from connectors.unprivileged import reachable, temporary_folder
from envelope.errors import ChangelogError, Kind
from tests.proxy import Proxy
from tests.servers import kafka_lib

COUNT = 3000
VALUE = b"x" * 1000

pytestmark = pytest.mark.xdist_group("kafka")


class Link:
    """A broker that is reached only by way of `proxy`."""

    def __init__(self, broker: Broker, proxy: Proxy) -> None:
        self.broker, self.proxy = broker, proxy

    def client(self, **options: str) -> Client:
        named = {name.replace("_", "."): value for name, value in options.items()}
        return Client(bootstrap_servers=self.proxy.address, options=named)


@pytest.fixture(scope="module")
def started() -> Iterator[Link]:
    with temporary_folder("changelog-kafka-") as folder:
        broker = Broker(reachable(kafka_lib(), folder), folder / "kafka")
        with closing(Proxy("127.0.0.1", broker.port)) as proxy:
            broker.advertised = proxy.address
            with broker:
                yield Link(broker, proxy)


@pytest.fixture
def link(started: Link) -> Iterator[Link]:
    yield started
    started.proxy.resume()


def fill(topic: str, servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(COUNT):
        producer.produce(topic, VALUE, b"1", 0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("failing", ["stop", "mute"])
def test_a_topic_that_is_read_no_further(link: Link, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"read.{failing}"
    ensure(link.client(), [Topic(name=topic, partitions=1, settings={})], create=True, replication_factor=None)
    fill(topic, link.broker.direct_servers)
    assert sum(1 for _ in consumed.consumed(link.client(), topic)) == COUNT

    monkeypatch.setattr(consumed, "SILENCE_S", 2.0)
    options = {"fetch_max_bytes": "10000", "message_max_bytes": "10000", "queued_min_messages": "1"}
    reading = consumed.consumed(link.client(**options, reconnect_backoff_max_ms="500"), topic)
    next(reading)
    getattr(link.proxy, failing)()
    with pytest.raises(ChangelogError, match=f"reading {topic}: Kafka has been silent") as caught:
        list(reading)
    assert caught.value.kind is Kind.CONNECTION
