"""A sink that is opened over a broker, what is stored through it, and the messages that its topics hold."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.model import Record, Stamp
from tests.unit.records import checkpoint

NAME = "app"


def entity(name: str = "order", partitions: int = 1) -> Entity:
    return Entity(
        name=name,
        table=("public", name),
        key=("id",),
        partition_by=("id",),
        partitions=partitions,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )


@contextlib.contextmanager
def opened(settings: KafkaSettings, *entities: Entity) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, JsonValues())) as made:
        made.prepare(entities or [entity()])
        made.recover()
        yield made


def store(into: KafkaSink, commit: int, *records: Record) -> Checkpoint:
    into.add([batch.from_records(records)])
    into.commit(checkpoint(commit))
    return checkpoint(commit)


def read(settings: KafkaSettings, topic: str, *, committed: bool = True) -> list[Message]:
    """All messages of a topic's first partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.client.bootstrap_servers,
            "group.id": "test",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(f"{settings.prefix}.{topic}", 0, 0)])
    found: list[Message] = []
    with contextlib.closing(consumer):
        while True:
            message = consumer.poll(10)
            assert message is not None, "the broker is silent"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF"
                return found
            found.append(message)


def values(messages: Sequence[Message]) -> list[Any]:
    return [None if message.value() is None else json.loads(message.value() or b"") for message in messages]
