"""Starts, stops and crashes the embedded Kafka broker, and stores a schema in the registry."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from changelog.connectors.java.program import find_java
from changelog.connectors.servers.kafka import LIB_VARIABLE, Broker, find_lib
from changelog.connectors.servers.unprivileged import temporary_folder
from changelog.envelope.errors import ChangelogError, Kind
from tests.patience import PATIENCE_S
from tests.proxy import Proxy
from tests.servers import kafka_lib
from tests.servers.registry import Registry


@pytest.fixture
def folder(starts_servers: None) -> Iterator[Path]:
    with temporary_folder("changelog-test-") as new_folder:
        yield new_folder


def test_committed_messages_survive_a_crash_and_a_restart_of_the_broker(folder: Path) -> None:
    broker = Broker(kafka_lib(), folder / "kafka")
    with Proxy("127.0.0.1", broker.port) as proxy:
        broker.advertised = proxy.address
        with broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "one"})
            producer.init_transactions(PATIENCE_S)
            _commit(producer, b"before")
            broker.kill()
            assert not broker.running
            broker.start()
            _commit(producer, b"after a crash")
            broker.stop()
            broker.start()
            _commit(producer, b"after a restart")
            producer.begin_transaction()
            producer.produce("t", b"never")
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
            proxy.stop()  # only the clients above need the proxy; the reader below connects directly
            assert _read(broker.direct_servers, 3) == [b"before", b"after a crash", b"after a restart"]


def test_the_registry_stores_avro_schemas(registry: Registry) -> None:
    with SchemaRegistryClient({"url": registry.url}) as client:
        schema_id = client.register_schema("embedded-value", Schema('"string"', "AVRO"))
        assert client.get_schema(schema_id).schema_str == '"string"'
        client.delete_subject("embedded-value")


def test_errors_about_missing_programs_say_how_to_install_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIB_VARIABLE, str(tmp_path))
    with pytest.raises(ChangelogError, match="make kafka") as no_jars:
        find_lib()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ChangelogError, match="apt-get install openjdk") as no_java:
        find_java()
    (tmp_path / "bin").mkdir()
    old_java = tmp_path / "bin" / "java"
    old_java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_412\"' >&2\n")
    old_java.chmod(0o755)
    with pytest.raises(ChangelogError, match="is Java 8;"):
        find_java()
    assert no_jars.value.kind is no_java.value.kind is Kind.PRECONDITION


def test_a_broker_that_cannot_start_says_why(folder: Path) -> None:
    broken = Broker(kafka_lib(), folder / "kafka", settings={"log.retention.hours": "soon"})
    with pytest.raises(ChangelogError, match=r"log\.retention\.hours") as raised, broken:
        pass
    assert "\n" not in str(raised.value)


def _commit(producer: Producer, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce("t", value)
    producer.commit_transaction(PATIENCE_S)


def _read(servers: str, count: int) -> list[bytes | None]:
    """Returns the values of the first `count` committed messages of topic `t`."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["t"])
        return [message.value() for message in consumer.consume(count, PATIENCE_S)]
    finally:
        consumer.close()
