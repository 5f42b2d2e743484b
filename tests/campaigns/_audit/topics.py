"""The rows of a changelog on a broker, read by a plain consumer of committed messages."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.campaigns._audit.rows import Gap, Row, gap_of, row_of
from tests.campaigns._audit.tables import entity_of
from tests.campaigns._audit.values import parsed

PATIENCE_S = 60.0

Place = tuple[str, int]
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
    """The rows of all partitions, each partition's in the order of its offsets."""
    topics = {f"{prefix}.{name}": name for name in entities}
    due: dict[Place, bytes] = {}
    places = [(topic, number) for topic, name in topics.items() for number in range(entity_of(name).partitions)]
    for place, message in messages(servers, places):
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        deleted = due.pop(place, None)
        if deleted is not None:
            assert (key, value) == (deleted, None), f"{place}: the delete of {deleted!r} has no tombstone"
            continue
        assert value is not None, f"{place}: {key!r} has a tombstone without a delete"
        row = _row(topics[place[0]], place[1], key, parsed(value), message)
        if row.op == "delete":
            due[place] = key
        yield row
    assert not due, f"deletes have no tombstone: {due}"


def gaps_of_topics(servers: str, prefix: str) -> list[Gap]:
    """The gaps that the changelog tells of."""
    told = messages(servers, [(f"{prefix}.gaps", 0)])
    return [gap_of(parsed(message.value() or b"")["current"]) for _, message in told]


def messages(
    servers: str, places: Sequence[Place], isolation: str = "read_committed"
) -> Iterator[tuple[Place, Message]]:
    """The messages of these partitions that are there now, each partition's in the order of its offsets.

    Raises AssertionError when a transaction is still open in one of them.
    """
    consumer, left = Consumer({**_SETTINGS, "bootstrap.servers": servers, "isolation.level": isolation}), set(places)
    try:
        consumer.assign([TopicPartition(*place, 0) for place in places])
        while left:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"these partitions have no end: {sorted(left)[:5]}"
            place, error = (message.topic() or "", message.partition() or 0), message.error()
            if error is None:
                yield place, message
                continue
            assert error.code() == KafkaError._PARTITION_EOF, f"{place}: {error.str()}"
            _, end = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            assert message.offset() == end, f"{place}: a transaction is open at {message.offset()}"
            left.discard(place)
    finally:
        consumer.close()


def _row(entity: str, number: int, key: bytes, envelope: dict[str, Any], message: Message) -> Row:
    headers: Any = message.headers() or []  # pairs, where producers may give a mapping as well
    texts = {name: value.decode() for name, value in headers}
    moved = {name: json.loads(texts[name]) for name in ("movedTo", "movedFrom") if name in texts}
    return row_of({"entity": entity, "partition": number, "key": key.decode(), **texts}, envelope, moved)
