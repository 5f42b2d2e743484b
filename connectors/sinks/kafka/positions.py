"""`<prefix>.positions`: how far each source is in the changelog."""

import time
from contextlib import closing

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from connectors.sinks.kafka.client import Client, error_of, translated
from connectors.sinks.kafka.names import positions_topic
from envelope.checkpoint import Checkpoint
from envelope.errors import ChangelogError, Kind

SILENCE_S = 30.0
"""A broker that says nothing for so long is gone."""

_ASK_AGAIN_S = 0.1


def read_checkpoint(client: Client, prefix: str, name: str) -> Checkpoint | None:
    """The last committed checkpoint of the source `name`; None when it has none.

    For who is to go on from it: `init_transactions` has ended the last transaction of ours. What is committed behind
    another source's open transaction is not seen before that has ended, and so is waited for. Raises ChangelogError,
    CONNECTION while such a transaction, or the topic's absence, hides what may be there.
    """
    topic = positions_topic(prefix)
    found = _newest(client, topic, name.encode(), end=_end(client, topic))
    return None if found is None or (value := found.value()) is None else Checkpoint.from_json(value)


def read_stored(client: Client, prefix: str, name: str) -> tuple[Checkpoint, float] | None:
    """The last checkpoint of the source `name` that readers see now, and when it was stored, in seconds since 1970;
    None when there is none, or the topic is not there.
    """
    found = _newest(client, positions_topic(prefix), name.encode())
    value = None if found is None else found.value()
    if found is None or value is None:
        return None
    return Checkpoint.from_json(value), found.timestamp()[1] / 1000


def _end(client: Client, topic: str) -> int:
    """The offset behind all that the topic's one partition holds, of open transactions too.

    It is asked for, because what a reader is told beside its messages may be out of date: a leader answers this only
    once it knows what its predecessor had committed (KIP-207).
    """
    admin = client.admin()  # it must outlive the answer
    partition, latest = TopicPartition(topic, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + SILENCE_S
    while True:
        asked = admin.list_offsets(
            {partition: latest}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=SILENCE_S
        )
        try:
            return int(asked[partition].result().offset)
        except KafkaException as error:
            found = error_of(error.args[0], f"reading {topic}")
            if found.kind is not Kind.CONNECTION or time.monotonic() >= deadline:
                raise found from error
            time.sleep(_ASK_AGAIN_S)  # a topic that was just made has no leader yet


def _newest(client: Client, topic: str, key: bytes, *, end: int | None = None) -> Message | None:
    """The key's newest message in the topic's one partition; None when there is none.

    Reads as far as is committed, and waits until that is up to `end`, if it is given.
    """
    doing = f"reading {topic}"
    found: Message | None = None
    deadline = time.monotonic() + SILENCE_S
    with closing(client.reader()) as consumer, translated(doing):
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(max(deadline - time.monotonic(), 0.0))
            if message is None:
                held_back = "" if end is None else ", or another source's transaction is open"
                text = f"{doing}: Kafka has been silent for {SILENCE_S:.0f} s{held_back}"
                raise ChangelogError(Kind.CONNECTION, text)
            error = message.error()
            if error is None:
                deadline = time.monotonic() + SILENCE_S
                found = message if message.key() == key else found
            elif error.code() == KafkaError._PARTITION_EOF:
                if end is None or (message.offset() or 0) >= end:
                    return found
            elif error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
                if end is not None:
                    raise ChangelogError(Kind.CONNECTION, f"{doing}: the topic is not there")
                return None
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise error_of(error, doing)
