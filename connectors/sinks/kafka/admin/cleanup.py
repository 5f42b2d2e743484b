"""Removes a changelog's topics and its checkpoint from a broker."""

import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer

from changelog.connectors.kafka.client import TIMEOUT_S, Client, error_of, translated
from changelog.connectors.sinks.kafka.admin.names import positions_topic
from changelog.envelope.errors import ChangelogError, Kind

_POLL_S = 0.05


def delete_topics(client: Client, names: Sequence[str]) -> None:
    """Deletes these topics and their messages, and waits, at most `TIMEOUT_S`, until the broker lists none of them.

    The broker still lists a deleted topic for a moment. A service that starts in that moment would use the deleted
    topic. If a topic is listed for longer than `TIMEOUT_S`, somebody else has created it again, and no error is raised.
    Raises ChangelogError if a topic cannot be deleted.
    """
    admin = client.admin()
    with translated("deleting topics"):
        for future in admin.delete_topics(list(names), request_timeout=TIMEOUT_S).values():
            future.result()
    deadline = time.monotonic() + TIMEOUT_S
    while not admin.topics().keys().isdisjoint(names) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def forget_checkpoint(client: Client, prefix: str, name: str) -> None:
    """Replaces the checkpoint of the source `name` by a tombstone, so that the source starts from the beginning.

    Raises ChangelogError.
    """
    action = f"writing to {positions_topic(prefix)}"
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        errors.extend([error] if error is not None else [])

    with translated(action):
        producer = Producer(client.config(enable_idempotence=True))
        producer.produce(positions_topic(prefix), None, name.encode(), 0, on_delivery=delivered)
        undelivered = producer.flush(TIMEOUT_S)
    if errors:
        raise error_of(errors[0], action)
    if undelivered:
        raise ChangelogError(Kind.CONNECTION, f"{action}: Kafka has been silent for {TIMEOUT_S:.0f} s")
