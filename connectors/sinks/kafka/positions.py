"""`<prefix>.positions`: how far each source is in the changelog."""

from contextlib import closing

from confluent_kafka import KafkaError, Message, TopicPartition

from connectors.sinks.kafka.client import Client, error_of, translated
from connectors.sinks.kafka.names import positions_topic
from envelope.checkpoint import Checkpoint
from envelope.errors import ChangelogError, Kind

SILENCE_S = 30.0
"""A broker that says nothing for so long is gone."""


def read_checkpoint(client: Client, prefix: str, name: str) -> Checkpoint | None:
    """The last committed checkpoint of the source `name`; None when it has none, or the topic is not there.

    Reads to the end of what is committed: an open transaction of another source holds that end back, never ours,
    which `init_transactions` has ended. Raises ChangelogError.
    """
    found = read_stored(client, prefix, name)
    return None if found is None else found[0]


def read_stored(client: Client, prefix: str, name: str) -> tuple[Checkpoint, float] | None:
    """As `read_checkpoint`, with when it was stored, in seconds since 1970."""
    found = _newest(client, positions_topic(prefix), name.encode())
    value = None if found is None else found.value()
    if found is None or value is None:
        return None
    return Checkpoint.from_json(value), found.timestamp()[1] / 1000


def _newest(client: Client, topic: str, key: bytes) -> Message | None:
    """The key's newest message in the topic's one partition; None when there is none."""
    doing = f"reading {topic}"
    found: Message | None = None
    with closing(client.reader()) as consumer, translated(doing):
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(SILENCE_S)
            if message is None:
                raise ChangelogError(Kind.CONNECTION, f"{doing}: Kafka has been silent for {SILENCE_S:.0f} s")
            error = message.error()
            if error is None:
                found = message if message.key() == key else found
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            elif error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
                return None
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise error_of(error, doing)
