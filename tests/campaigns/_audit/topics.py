"""The rows of a changelog on a broker, read by a plain consumer of committed messages."""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.campaigns._audit.rows import Gap, Row, gap_of, row_of
from tests.campaigns._audit.tables import ENTITIES
from tests.campaigns._audit.values import parsed

PATIENCE_S = 60.0


def of_topics(servers: str, prefix: str, entities: Sequence[str]) -> Iterator[Row]:
    """The rows of all partitions, one partition after the other, each in the order of its offsets."""
    for entity in entities:
        for number in range(ENTITIES[entity].partitions):
            yield from _rows(entity, number, committed(servers, f"{prefix}.{entity}", number))


def gaps_of_topics(servers: str, prefix: str) -> list[Gap]:
    """The gaps that the changelog tells of."""
    messages = committed(servers, f"{prefix}.gaps", 0)
    return [gap_of(parsed(message.value() or b"")["current"]) for message in messages]


def committed(servers: str, topic: str, number: int) -> Iterator[Message]:
    """The messages of a partition that are there now. Raises AssertionError when a transaction is still open there."""
    consumer = Consumer(_settings(servers))
    try:
        place = TopicPartition(topic, number, 0)
        consumer.assign([place])
        while (message := consumer.poll(PATIENCE_S)) is not None:
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                _, end = consumer.get_watermark_offsets(place, cached=True)
                assert message.offset() == end, f"{topic}[{number}]: a transaction is open at {message.offset()}"
                return
            else:
                raise AssertionError(f"{topic}[{number}]: {error.str()}")
        raise AssertionError(f"{topic}[{number}] has no end")
    finally:
        consumer.close()


def _settings(servers: str) -> dict[str, Any]:
    silent = logging.getLogger("tests.campaigns.audit")
    silent.setLevel(logging.CRITICAL)
    return {
        "bootstrap.servers": servers,
        "group.id": "audit",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 20,
        "queued.max.messages.kbytes": 4096,
        "logger": silent,
    }


def _rows(entity: str, number: int, messages: Iterator[Message]) -> Iterator[Row]:
    """The partition's rows; each delete is followed by its tombstone, which is left out."""
    due: bytes | None = None
    for message in messages:
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if due is not None:
            assert (key, value) == (due, None), f"{entity}[{number}]: the delete of {due!r} has no tombstone"
            due = None
            continue
        assert value is not None, f"{entity}[{number}]: {key!r} has a tombstone without a delete"
        row = _row(entity, number, key, parsed(value), message)
        due = key if row.op == "delete" else None
        yield row
    assert due is None, f"{entity}[{number}]: the delete of {due!r} has no tombstone"


def _row(entity: str, number: int, key: bytes, envelope: dict[str, Any], message: Message) -> Row:
    headers: Any = message.headers() or []  # pairs, where producers may give a mapping as well
    texts = {name: value.decode() for name, value in headers}
    moved = {name: json.loads(texts[name]) for name in ("movedTo", "movedFrom") if name in texts}
    return row_of({"entity": entity, "partition": number, "key": key.decode(), **texts}, envelope, moved)
