"""Sends a few messages to a broker, without a transaction."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from changelog.connectors.kafka.client import TIMEOUT_S, Client, error_of, translated
from changelog.envelope.errors import ChangelogError, Kind

ProduceCall = tuple[Any, ...]
"""The arguments of `Producer.produce`: topic, value, key, partition, None, None, milliseconds since 1970, headers.

The two None stand for callbacks. For a message without a time and headers, the tuple ends after the partition.
"""


def send_messages(client: Client, calls: Iterable[ProduceCall], action: str) -> None:
    """Sends messages, and returns when the broker has stored them. Error messages begin with `action`.

    Raises ChangelogError.
    """
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.extend([error] if error is not None else [])

    with translated(action):
        producer = Producer(client.config({"on_delivery": delivered}, enable_idempotence=True))
        for call in calls:
            producer.produce(*call)
        undelivered_count = producer.flush(TIMEOUT_S)
    if errors:
        raise error_of(errors[0], action)
    if undelivered_count:
        raise ChangelogError(Kind.CONNECTION, f"{action}: Kafka has been silent for {TIMEOUT_S:.0f} s")
