"""Tests that the service and the readers do not wait forever for a broker that stops or falls silent during a call."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from changelog.connectors import config
from changelog.connectors.config import Config
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.service.service import Service
from changelog.connectors.sinks.kafka import insistence, sink
from changelog.connectors.sinks.kafka.admin.topics import Topic, ensure
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.reading import consume
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Stamp
from tests.integration.site import Running
from tests.patience import PATIENCE_S
from tests.proxy import Proxy
from tests.servers import kafka_lib
from tests.unit.records import checkpoint, record

MESSAGES = 3000
VALUE = b"x" * 1000

ORDER = Entity(
    name="order",
    table=("public", "orders"),
    key=("id",),
    partition_by=("id",),
    partitions=1,
    masks={},
    default_stamp=Stamp(api_version="", service_name="", identifier=""),
)

pytestmark = pytest.mark.xdist_group("silence")


class Link:
    """A broker whose clients connect only through `proxy`."""

    def __init__(self, broker: Broker, proxy: Proxy) -> None:
        self.broker, self.proxy = broker, proxy

    def client(self, **options: str) -> Client:
        settings = {name.replace("_", "."): value for name, value in options.items()}
        return Client(bootstrap_servers=self.proxy.address, options=settings)


@pytest.fixture(scope="module")
def module_link(starts_servers: None) -> Iterator[Link]:
    with temporary_folder("changelog-kafka-") as folder:
        broker = Broker(reachable(kafka_lib(), folder), folder / "kafka")
        with closing(Proxy("127.0.0.1", broker.port)) as proxy:
            broker.advertised = proxy.address
            with broker:
                yield Link(broker, proxy)


@pytest.fixture
def link(module_link: Link) -> Iterator[Link]:
    yield module_link
    module_link.proxy.resume()


def fill(topic: str, servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(MESSAGES):
        producer.produce(topic, VALUE, b"1", 0)
    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("fault", ["stop", "mute"])
def test_a_read_of_a_topic_ends_if_the_broker_falls_silent(
    link: Link, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"read.{fault}"
    ensure(link.client(), [Topic(name=topic, partitions=1, settings={})], create=True, replication_factor=None)
    fill(topic, link.broker.direct_servers)
    assert sum(1 for _ in consume.consumed(link.client(), topic)) == MESSAGES

    options = {"fetch_max_bytes": "10000", "message_max_bytes": "10000", "queued_min_messages": "1"}
    messages = consume.consumed(link.client(**options, reconnect_backoff_max_ms="500"), topic)
    next(messages)
    monkeypatch.setattr(consume, "SILENCE_S", 2.0)
    getattr(link.proxy, fault)()
    with pytest.raises(ChangelogError, match=f"reading {topic}: Kafka has been silent") as caught:
        list(messages)
    assert caught.value.kind is Kind.CONNECTION


def changes(commit: int, count: int = 1) -> list[pa.RecordBatch]:
    ordinals = range(2, 2 * count + 2, 2)
    return [batch.from_records([record(Op.CREATE, f'{{"id":{commit}}}', commit=commit, ordinal=n) for n in ordinals])]


def unanswered_calls(logs: list[Any]) -> int:
    return sum(entry["event"] == "kafka does not answer yet" for entry in logs)


@pytest.mark.parametrize("fault", ["hang", "mute"])
def test_a_stopping_sink_leaves_an_unanswered_commit_to_the_next_start(
    link: Link, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `hang`, Kafka never receives the request. With `mute`, Kafka commits, but its answer is lost."""
    settings = KafkaSettings(client=link.client(), name="app", prefix=f"commit-{fault}")
    monkeypatch.setattr(insistence, "CALL_S", 1.0)
    monkeypatch.setattr(sink, "STOP_PATIENCE_S", 0.5)
    stopping = Event()
    with closing(KafkaSink(settings, JsonValues(), stopping=stopping.is_set)) as app_sink:
        app_sink.prepare([ORDER])
        app_sink.recover()
        app_sink.add(changes(1))
        app_sink.commit(checkpoint(1))
        app_sink.add(changes(2))
        getattr(link.proxy, fault)()
        stopping.set()
        with capture_logs() as logs, pytest.raises(ChangelogError, match="committing to Kafka") as caught:
            app_sink.commit(checkpoint(2))
    assert caught.value.kind is Kind.CONNECTION
    assert unanswered_calls(logs) == 0
    link.proxy.resume()
    with closing(KafkaSink(settings, JsonValues())) as app_sink:
        stored = app_sink.recover()
    assert stored in (checkpoint(1), checkpoint(2))
    messages = consume.consumed(link.client(), f"commit-{fault}.order")
    assert len(list(messages)) == through_lsn(stored)


def test_a_stopping_sink_does_not_wait_for_a_full_queue(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    client = link.client(queue_buffering_max_messages="10")
    settings = KafkaSettings(client=client, name="app", prefix="room")
    monkeypatch.setattr(insistence, "CALL_S", 1.0)
    monkeypatch.setattr(sink, "STOP_PATIENCE_S", 0.5)
    stopping = Event()
    with closing(KafkaSink(settings, JsonValues(), stopping=stopping.is_set)) as app_sink:
        app_sink.prepare([ORDER])
        app_sink.recover()
        app_sink.add(changes(1, 100))
        app_sink.commit(checkpoint(1))
        link.proxy.hang()
        stopping.set()
        with capture_logs() as logs, pytest.raises(ChangelogError, match="sending to Kafka") as caught:
            app_sink.add(changes(2, 100))
    assert caught.value.kind is Kind.CONNECTION
    assert unanswered_calls(logs) == 0


@contextmanager
def running(settings: Config) -> Iterator[Running]:
    service = Running(Service(settings))
    try:
        yield service
    finally:
        service.stop()
    service.check()


def test_a_stopping_service_does_not_wait_for_kafka(link: Link, database: str, tmp_path: Path) -> None:
    name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])
    file = tmp_path / "changelog.toml"
    file.write_text(
        f"""
        name = "{name}"
        source = {{ kind = "postgres", dsn = {json.dumps(database)} }}
        sink = {{ kind = "kafka", bootstrap_servers = "{link.proxy.address}" }}
        service = {{ listen = "127.0.0.1:0" }}
        entities = {{ order = {{ table = "public.orders" }} }}
        """
    )
    settings = config.load(file, os.environ)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        with running(settings) as service:  # the end of this block fails if the stop takes too long
            service.until(lambda: service.said("streaming"))
            service.until(lambda: service.phase == "streaming")
            link.proxy.hang()
            connection.execute("INSERT INTO orders VALUES (1), (2)")
        link.proxy.resume()
        with running(settings) as service:
            service.until(lambda: len(list(consume.consumed(link.client(), f"{name}.order"))) >= 2)
    assert [message.key for message in consume.consumed(link.client(), f"{name}.order")] == ["1", "2"]
