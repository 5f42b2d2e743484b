"""Reads all committed messages of a topic one by one, including tombstones, like an ordinary consumer."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaError, Message, TopicPartition

from changelog.connectors.kafka.client import TIMEOUT_S, Client, error_of, translated
from changelog.connectors.sinks.kafka.reading.positions import SILENCE_S
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """One message. A tombstone is a message with `value` None."""

    partition: int
    offset: int
    key: str
    value: bytes | None
    headers: dict[str, str]


def consumed(client: Client, topic: str) -> Iterator[Consumed]:
    """Yields every committed message that the topic holds now. The messages of one partition are in order.

    Raises ChangelogError.
    """
    action = f"reading {topic}"
    with closing(client.reader()) as consumer, translated(action):
        pending = set(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in pending])
        deadline = time.monotonic() + SILENCE_S
        while pending:
            message = consumer.poll(max(deadline - time.monotonic(), 0.0))
            if message is None:
                raise ChangelogError(Kind.CONNECTION, f"{action}: Kafka has been silent for {SILENCE_S:.0f} s")
            error = message.error()
            if error is None:
                yield _consumed(message)
                deadline = time.monotonic() + SILENCE_S
            elif error.code() == KafkaError._PARTITION_EOF:
                pending.discard(cast(int, message.partition()))
                deadline = time.monotonic() + SILENCE_S
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise error_of(error, action)


def _consumed(message: Message) -> Consumed:
    headers = cast(list[tuple[str, bytes]], message.headers() or [])
    return Consumed(
        partition=cast(int, message.partition()),
        offset=cast(int, message.offset()),
        key=cast(bytes, message.key()).decode(),
        value=message.value(),
        headers={name: value.decode() for name, value in headers},
    )
