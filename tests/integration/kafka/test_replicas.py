"""Tests the Kafka sink while a topic has fewer in-sync replicas than the topic requires. The sink logs what a commit
waits for, and repeats no message.

The tests need two brokers, because a broker never requires more in-sync replicas than the topic has replicas. One of
the two brokers is stopped.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic, PartitionMetadata
from structlog.testing import capture_logs

from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import ends
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.sinks.kafka import insistence, sink
from changelog.connectors.sinks.kafka.admin.topic_check import findings
from changelog.connectors.sinks.kafka.admin.topics import topics_of
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
LED_BY_BOTH = "led-by-both"
PARTS = [(LED_BY_BOTH, number) for number in range(6)]
"""Partitions of a topic. Each of the two brokers leads some of them."""

pytestmark = pytest.mark.xdist_group("replicas")


def settings_of(broker: Broker, prefix: str) -> KafkaSettings:
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    return KafkaSettings(client=client, name="app", prefix=prefix, replication_factor=2, transaction_timeout_s=10)


@pytest.fixture(scope="module")
def cluster(starts_servers: None) -> Iterator[tuple[Broker, Admin]]:
    """The first of two brokers, and a client. Every topic has a replica on each broker. The client asked for the ends
    of `PARTS` while both brokers ran. Then the second broker was stopped.
    """
    settings = {"transaction.state.log.replication.factor": "2", "offsets.topic.replication.factor": "2"}
    with temporary_folder("changelog-kafka-") as folder:
        lib = reachable(kafka_lib(), folder)
        with Broker(lib, folder / "first", heap="256m", settings=settings) as first:
            with Broker(lib, folder / "second", heap="256m", settings=settings, joins=first):
                admin = Client(bootstrap_servers=first.bootstrap_servers).admin()
                until(
                    lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2,
                    "the second broker does not register",
                )
                [creation] = admin.create_topics([NewTopic(LED_BY_BOTH, len(PARTS), 2)]).values()
                creation.result()
                earlier_admin = Client(bootstrap_servers=first.bootstrap_servers).admin()
                assert ends(earlier_admin, PARTS) == dict.fromkeys(PARTS, 0)
                for prefix in PREFIXES:
                    with closing(KafkaSink(settings_of(first, prefix), JsonValues())) as new_sink:
                        new_sink.prepare([ORDER])
                        new_sink.recover()
                        store(new_sink, 1)
            until(lambda: all(part.isrs == [1] for part in parts_of(admin)), "the other broker still counts as in sync")
            yield first, earlier_admin


@pytest.fixture
def remaining_broker(cluster: tuple[Broker, Admin]) -> Broker:
    return cluster[0]


def parts_of(admin: Admin) -> list[PartitionMetadata]:
    return [part for topic in admin.topics().values() for part in topic.partitions.values()]


def store(target: KafkaSink, commit: int) -> None:
    target.add([batch.from_records([record(Op.CREATE, f'{{"id":{commit}}}', commit=commit)])])
    target.commit(checkpoint(commit))


def require_in_sync(client: Client, topic: str, in_sync: int) -> None:
    alter(client, topic, {"min.insync.replicas": str(in_sync)})


def events(logs: list[Any], event: str) -> list[dict[str, Any]]:
    return [entry for entry in logs if entry["event"] == event]


def failure_of(attempt: Callable[[], object]) -> tuple[Kind, str]:
    """Returns the kind and the message of the error that `attempt` raises.

    It does not return the error itself, because the frames in the error's traceback would keep a producer alive. That
    producer would go on trying to take over the topics, and would fence the test's next producer.
    """
    try:
        attempt()
    except ChangelogError as error:
        return error.kind, error.message
    raise AssertionError("the attempt did not fail")


def rows_of(settings: KafkaSettings) -> list[Any]:
    settled(settings.client, [(f"{settings.prefix}.order", 0)])
    rows = consume.consumed(settings.client, f"{settings.prefix}.order")
    return [json.loads(message.value or b"")["current"] for message in rows]


def test_a_client_gets_the_ends_of_partitions_that_have_another_leader_since_it_last_asked(
    cluster: tuple[Broker, Admin],
) -> None:
    _, earlier_admin = cluster
    assert ends(earlier_admin, PARTS) == dict.fromkeys(PARTS, 0)


@pytest.mark.parametrize("prefix", ["order", "transactions"])
def test_the_log_says_which_topic_a_commit_waits_for(
    remaining_broker: Broker, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(remaining_broker, prefix)
    topic = TRANSACTIONS if prefix == "transactions" else f"{prefix}.order"
    with closing(KafkaSink(settings, JsonValues())) as app_sink, ThreadPoolExecutor(1) as pool, capture_logs() as logs:
        app_sink.prepare([ORDER])
        assert app_sink.recover() == checkpoint(1)
        logs.clear()  # the recovery may have logged waits, too, because the other broker has just stopped
        require_in_sync(settings.client, topic, 2)
        monkeypatch.setattr(insistence, "CALL_S", 1.0)
        commit_task = pool.submit(store, app_sink, 2)
        try:
            until(lambda: bool(events(logs, "kafka waits for in-sync replicas")), "the wait is not logged")
            assert not commit_task.done()
        finally:
            require_in_sync(settings.client, topic, 1)
        commit_task.result(PATIENCE_S)
    [warning] = events(logs, "kafka waits for in-sync replicas")
    assert {name: warning[name] for name in ("topic", "in_sync", "needed", "other_topics", "hint", "log_level")} == {
        "topic": topic,
        "in_sync": 1,
        "needed": 2,
        "other_topics": 0,
        "hint": HINT,
        "log_level": "warning",
    }
    [wait] = events(logs, "kafka does not answer yet")
    assert wait["doing"] == "committing to Kafka"
    assert rows_of(settings) == [{"id": 1}, {"id": 2}]


def test_after_a_commit_has_waited_too_long_the_sink_recovers_and_repeats_nothing(
    remaining_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the error, the next recovery also waits, because Kafka ends the transaction with a marker in the same
    topic.
    """
    settings = settings_of(remaining_broker, "restart")
    with capture_logs() as logs, closing(KafkaSink(settings, JsonValues())) as app_sink:
        app_sink.prepare([ORDER])
        assert app_sink.recover() == checkpoint(1)
        require_in_sync(settings.client, "restart.order", 2)
        monkeypatch.setattr(insistence, "CALL_S", 1.0)
        monkeypatch.setattr(sink, "PATIENCE_S_MAX", 3.0)
        try:
            [failure] = [
                finding
                for finding in findings(settings.client, topics_of("restart", [ORDER], {}), create=True)
                if finding.status == "fail"
            ]
            assert failure.message == (
                "a partition has 1 in-sync replicas, and min.insync.replicas is 2: the service waits at each commit"
            )
            for doing, attempt in (
                ("committing to Kafka", lambda: store(app_sink, 2)),
                ("taking over the topics of Kafka", app_sink.recover),
            ):
                kind, message = failure_of(attempt)
                assert kind is Kind.CONNECTION
                assert doing in message
                assert events(logs, "kafka does not answer yet")[-1]["doing"] == doing
        finally:
            require_in_sync(settings.client, "restart.order", 1)
        monkeypatch.undo()
        assert app_sink.recover() == checkpoint(1)
        store(app_sink, 2)
    assert {entry["topic"] for entry in events(logs, "kafka waits for in-sync replicas")} == {"restart.order"}
    assert rows_of(settings) == [{"id": 1}, {"id": 2}]
