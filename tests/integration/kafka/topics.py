"""Opens a sink on a broker, stores rows through it, and reads the messages of its topics."""

import contextlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import Part, ends, written_ends
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.model import Record, Stamp
from tests.patience import PATIENCE_S, until
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
    with closing(KafkaSink(settings, JsonValues())) as sink:
        sink.prepare(entities or [entity()])
        sink.recover()
        yield sink


def store(sink: KafkaSink, commit: int, *records: Record) -> Checkpoint:
    sink.add([batch.from_records(records)])
    sink.commit(checkpoint(commit))
    return checkpoint(commit)


def delete(client: Client, topic: str) -> None:
    """Deletes a topic. Waits until the broker no longer shows it."""
    admin = client.admin()
    for future in admin.delete_topics([topic]).values():
        future.result()
    until(lambda: topic not in admin.topics(), f"the broker still shows {topic}, which was deleted")


def grow(client: Client, topic: str, partitions: int) -> None:
    """Gives a topic more partitions. Waits until the broker shows them."""
    admin = client.admin()
    for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result()
    until(lambda: len(admin.topics()[topic].partitions) == partitions, f"the broker does not show that {topic} grew")


_numbers = itertools.count(60_001)


def alter(client: Client, topic: str, changes: Mapping[str, str]) -> None:
    """Changes settings of a topic. Waits until the broker has applied them.

    A broker handles changes in order, and shows each change before it applies the change. So this function makes a
    second change: once the broker shows the second one, it has applied the first one.
    """
    admin = client.admin()
    _set(admin, topic, changes)
    # This second change has no effect on the tests. Its value is always new, so the broker cannot have shown it before.
    _set(admin, topic, {"file.delete.delay.ms": str(next(_numbers))})


def _set(admin: Admin, topic: str, changes: Mapping[str, str]) -> None:
    """Changes settings of a topic. Waits until the broker shows them."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()

    def is_shown() -> bool:
        [future] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        configs = future.result()
        return all(configs[name].value == value for name, value in changes.items())

    until(is_shown, f"the broker does not show {changes} of {topic}")


def settled(client: Client, parts: Collection[Part]) -> None:
    """Waits until these partitions have no open transaction, so that readers of committed messages see all messages.

    Kafka acknowledges a commit before it marks the transaction's end in each partition. So a reader that does not wait
    may miss messages.
    """
    admin = client.admin()
    until(lambda: ends(admin, parts) == written_ends(admin, parts), "a transaction is still open")


def read(settings: KafkaSettings, topic: str, *, committed: bool = True) -> list[Message]:
    """Returns the messages of a topic's first partition. With `committed`, first waits until no transaction is open
    there, and returns only the committed messages.
    """
    if committed:
        settled(settings.client, [(f"{settings.prefix}.{topic}", 0)])
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
    messages: list[Message] = []
    with contextlib.closing(consumer):
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "the broker is silent"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF"
                return messages
            messages.append(message)


def values(messages: Sequence[Message]) -> list[Any]:
    return [None if message.value() is None else json.loads(message.value() or b"") for message in messages]
