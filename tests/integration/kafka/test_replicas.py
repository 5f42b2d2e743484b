"""A topic with fewer in-sync replicas than it asks for: the log says what a commit waits for, and nothing is repeated.

Needs two brokers, one of which is away: a broker asks for no more replicas than a topic has.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import PartitionMetadata
from structlog.testing import capture_logs

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.sinks.kafka import insistence, sink
from changelog.connectors.sinks.kafka.admin.topic_check import findings
from changelog.connectors.sinks.kafka.admin.topics import topics_of
from changelog.connectors.sinks.kafka.client import Admin, Client
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.reading import consume
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from tests.integration.kafka.test_silence import ORDER
from tests.integration.kafka.topics import alter, settled
from tests.patience import PATIENCE_S, until
from tests.servers import kafka_lib
from tests.unit.records import checkpoint, record

TRANSACTIONS = "__transaction_state"
HINT = "start the missing brokers, add replicas to the topic, or lower its min.insync.replicas"
PREFIXES = ("order", "transactions", "restart")

pytestmark = pytest.mark.xdist_group("kafka")


def settings_of(broker: Broker, prefix: str) -> KafkaSettings:
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    return KafkaSettings(client=client, name="app", prefix=prefix, replication_factor=2, transaction_timeout_s=10)


@pytest.fixture(scope="module")
def left(starts_servers: None) -> Iterator[Broker]:
    """One of two brokers, which both have all topics: the other is away."""
    both = {"transaction.state.log.replication.factor": "2", "offsets.topic.replication.factor": "2"}
    with temporary_folder("changelog-kafka-") as folder:
        lib = reachable(kafka_lib(), folder)
        with Broker(lib, folder / "first", heap="256m", settings=both) as first:
            with Broker(lib, folder / "second", heap="256m", settings=both, joins=first):
                admin = Client(bootstrap_servers=first.bootstrap_servers).admin()
                until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2, "the second broker is not there")
                for prefix in PREFIXES:
                    with closing(KafkaSink(settings_of(first, prefix), JsonValues())) as made:
                        made.prepare([ORDER])
                        made.recover()
                        store(made, 1)
            until(lambda: all(part.isrs == [1] for part in parts_of(admin)), "the other broker still counts as in sync")
            yield first


def parts_of(admin: Admin) -> list[PartitionMetadata]:
    return [part for topic in admin.topics().values() for part in topic.partitions.values()]


def store(into: KafkaSink, commit: int) -> None:
    into.add([batch.from_records([record(Op.CREATE, f'{{"id":{commit}}}', commit=commit)])])
    into.commit(checkpoint(commit))


def ask_for(client: Client, topic: str, in_sync: int) -> None:
    alter(client, topic, {"min.insync.replicas": str(in_sync)})


def events(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [each for each in logs if each["event"] == event]


def failure_of(attempt: Callable[[], object]) -> tuple[Kind, str]:
    """Kind and message, and not the error: its frames would keep a producer alive that still tries to take the topics
    over, and as soon as it could, it would fence the one that we go on with.
    """
    try:
        attempt()
    except ChangelogError as error:
        return error.kind, error.message
    raise AssertionError("it did not fail")


def published(settings: KafkaSettings) -> list[Any]:
    settled(settings.client, [(f"{settings.prefix}.order", 0)])
    rows = consume.consumed(settings.client, f"{settings.prefix}.order")
    return [json.loads(each.value or b"")["current"] for each in rows]


@pytest.mark.parametrize("prefix", ["order", "transactions"])
def test_the_log_says_which_topic_a_commit_waits_for(
    left: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(left, prefix)
    topic = TRANSACTIONS if prefix == "transactions" else f"{prefix}.order"
    with closing(KafkaSink(settings, JsonValues())) as made, ThreadPoolExecutor(1) as pool, capture_logs() as logs:
        made.prepare([ORDER])
        assert made.recover() == checkpoint(1)
        logs.clear()  # the other broker has just gone: its transactions may have been waited for
        ask_for(settings.client, topic, 2)
        monkeypatch.setattr(insistence, "CALL_S", 1.0)
        committed = pool.submit(store, made, 2)
        try:
            until(lambda: bool(events(logs, "kafka waits for in-sync replicas")), "the wait is not logged")
            assert not committed.done()
        finally:
            ask_for(settings.client, topic, 1)
        committed.result(PATIENCE_S)
    [said] = events(logs, "kafka waits for in-sync replicas")
    assert {name: said[name] for name in ("topic", "in_sync", "needed", "other_topics", "hint", "log_level")} == {
        "topic": topic,
        "in_sync": 1,
        "needed": 2,
        "other_topics": 0,
        "hint": HINT,
        "log_level": "warning",
    }
    [waiting] = events(logs, "kafka does not answer yet")
    assert waiting["doing"] == "committing to Kafka"
    assert published(settings) == [{"id": 1}, {"id": 2}]


def test_a_wait_that_outlasts_the_transaction_is_recovered_from_exactly_once(
    left: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next recovery waits, too: Kafka ends the transaction with a mark in that topic."""
    settings = settings_of(left, "restart")
    with capture_logs() as logs, closing(KafkaSink(settings, JsonValues())) as made:
        made.prepare([ORDER])
        assert made.recover() == checkpoint(1)
        ask_for(settings.client, "restart.order", 2)
        monkeypatch.setattr(insistence, "CALL_S", 1.0)
        monkeypatch.setattr(sink, "PATIENCE_S_MAX", 3.0)
        try:
            [failure] = [
                each
                for each in findings(settings.client, topics_of("restart", [ORDER], {}), create=True)
                if each.status == "fail"
            ]
            assert failure.message == (
                "a partition has 1 in-sync replicas, and min.insync.replicas is 2: the service waits at each commit"
            )
            for doing, attempt in (
                ("committing to Kafka", lambda: store(made, 2)),
                ("taking over the topics of Kafka", made.recover),
            ):
                kind, message = failure_of(attempt)
                assert kind is Kind.CONNECTION
                assert doing in message
                assert events(logs, "kafka does not answer yet")[-1]["doing"] == doing
        finally:
            ask_for(settings.client, "restart.order", 1)
        monkeypatch.undo()
        assert made.recover() == checkpoint(1)
        store(made, 2)
    assert {each["topic"] for each in events(logs, "kafka waits for in-sync replicas")} == {"restart.order"}
    assert published(settings) == [{"id": 1}, {"id": 2}]
