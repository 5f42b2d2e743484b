"""Converts the messages of the Kafka client to `SourceRecord`s, and measures them."""

from collections.abc import Sequence
from typing import cast

from confluent_kafka import Message as KafkaMessage

from changelog.connectors.sources.debezium.decode.events import SourceRecord


def message_of(answer: KafkaMessage) -> SourceRecord:
    """Returns the record in a message of the client. The message must not be an error."""
    return SourceRecord(
        topic=answer.topic() or "",
        key=answer.key(),
        value=answer.value(),
        headers=cast(Sequence[tuple[str, bytes | None]], answer.headers() or ()),
        timestamp_ms=answer.timestamp()[1],
    )


def size(message: SourceRecord | None) -> int:
    """Returns the size of a message's key and value in bytes; 0 for no message."""
    return 0 if message is None else len(message.key or b"") + len(message.value or b"")
