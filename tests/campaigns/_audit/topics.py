"""Reads the rows of a changelog from a broker, with an ordinary consumer that sees only committed messages."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.campaigns._audit.rows import Gap, Row, gap_of, row_of
from tests.campaigns._audit.tables import entity_of
from tests.campaigns._audit.values import parsed

PATIENCE_S = 60.0

Part = tuple[str, int]
"""A topic and the number of a partition."""

_SILENT = logging.getLogger("tests.campaigns.audit")
_SILENT.setLevel(logging.CRITICAL)
_SETTINGS: Mapping[str, Any] = {
    "group.id": "audit",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 20,
    "queued.max.messages.kbytes": 4096,
    "logger": _SILENT,
}


def of_topics(servers: str, prefix: str, entities: Sequence[str]) -> Iterator[Row]:
    """The rows of all partitions. Those of the same partition come in the order of their offsets."""
    topics = {f"{prefix}.{name}": name for name in entities}
    due: dict[Part, bytes] = {}
    parts = [(topic, number) for topic, name in topics.items() for number in range(entity_of(name).partitions)]
    for part, message in messages(servers, parts):
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        deleted = due.pop(part, None)
        if deleted is not None:
            assert (key, value) == (deleted, None), f"{part}: the delete of {deleted!r} has no tombstone"
            continue
        assert value is not None, f"{part}: {key!r} has a tombstone without a delete"
        row = _row(topics[part[0]], part[1], key, parsed(value), message)
        if row.op == "delete":
            due[part] = key
        yield row
    assert not due, f"deletes have no tombstone: {due}"


def gaps_of_topics(servers: str, prefix: str) -> list[Gap]:
    """The gaps that the changelog reports."""
    gap_messages = messages(servers, [(f"{prefix}.gaps", 0)])
    return [gap_of(parsed(message.value() or b"")["current"]) for _, message in gap_messages]


def messages(servers: str, parts: Sequence[Part], isolation: str = "read_committed") -> Iterator[tuple[Part, Message]]:
    """The messages that these partitions have now. Those of the same partition come in the order of their offsets.

    With the isolation `read_committed`, raises AssertionError if a transaction is still open in one of the partitions.
    """
    consumer = Consumer({**_SETTINGS, "bootstrap.servers": servers, "isolation.level": isolation})
    unfinished = set(parts)
    try:
        consumer.assign([TopicPartition(*part, 0) for part in parts])
        while unfinished:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"these partitions were not read to their end: {sorted(unfinished)[:5]}"
            part, error = (message.topic() or "", message.partition() or 0), message.error()
            if error is None:
                yield part, message
                continue
            assert error.code() == KafkaError._PARTITION_EOF, f"{part}: {error.str()}"
            _, end = consumer.get_watermark_offsets(TopicPartition(*part), cached=True)
            assert message.offset() == end, f"{part}: a transaction is open at {message.offset()}"
            unfinished.discard(part)
    finally:
        consumer.close()


def _row(entity: str, number: int, key: bytes, envelope: dict[str, Any], message: Message) -> Row:
    headers: Any = message.headers() or []  # consumers get pairs; only producers may use a mapping
    texts = {name: value.decode() for name, value in headers}
    moved = {name: json.loads(texts[name]) for name in ("movedTo", "movedFrom") if name in texts}
    return row_of({"entity": entity, "partition": number, "key": key.decode(), **texts}, envelope, moved)
