"""Turns the batches of records that the Debezium process sends into single events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from changelog.connectors.debezium.frames import ByteStrings, RecordBatch, Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEvent:
    """A record of a connector.

    `key` and `value` are JSON without schemas, as bytes; None if the record has no key, or no value (a tombstone).
    `decoded_key` and `decoded_value` parse them. `key_schema` and `value_schema` are schemas of Kafka Connect, or None.
    The schemas say how values are encoded: a decimal, for example, is the base64 of its unscaled integer.
    `timestamp_ms` is the time of the record in milliseconds since 1970, if it has one. Kafka Connect divides a source,
    such as a database server, into partitions. `partition` says to which of them the record belongs, and `offset_json`
    says where the record is in this partition; both are JSON.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    key_schema: Schema | None
    value_schema: Schema | None
    timestamp_ms: int | None
    partition: bytes
    offset_json: bytes
    headers_json: bytes

    @property
    def offset(self) -> Mapping[str, object]:
        """The place of the record in its partition of the source."""
        offset: Mapping[str, object] = msgspec.json.decode(self.offset_json)
        return offset

    @property
    def headers(self) -> Sequence[tuple[str, object]]:
        """The names and values of the record's headers, in their order."""
        if not self.headers_json:
            return ()
        return tuple((name, value) for name, _, value in msgspec.json.decode(self.headers_json))

    def decoded_key(self) -> object:
        """Returns the key as Python objects; None if there is none."""
        return None if self.key is None else msgspec.json.decode(self.key)

    def decoded_value(self) -> object:
        """Returns the value as Python objects; None if there is none."""
        return None if self.value is None else msgspec.json.decode(self.value)

    def key_with_schema(self) -> bytes | None:
        """Returns the key as Kafka's JsonConverter writes it with schemas: an object with `schema` and `payload`."""
        return _with_schema(self.key_schema, self.key)

    def value_with_schema(self) -> bytes | None:
        """Returns the value as Kafka's JsonConverter writes it with schemas; None for a tombstone."""
        return _with_schema(self.value_schema, self.value)


def events(batch: RecordBatch) -> list[ChangeEvent]:
    """Returns the events of a batch, in their order."""
    names, partitions, schemas = batch.topic_names, batch.partition_texts, batch.schemas
    rows = zip(
        batch.topics.tolist(),
        batch.partitions.tolist(),
        batch.key_schemas.tolist(),
        batch.value_schemas.tolist(),
        batch.timestamps.tolist(),
        batch.offsets,
        _or_none(batch.keys),
        _or_none(batch.values),
        batch.headers,
        strict=True,
    )
    return [
        ChangeEvent(
            topic=names[topic],
            key=key,
            value=value,
            key_schema=schemas[key_schema],
            value_schema=schemas[value_schema],
            timestamp_ms=None if timestamp == RecordBatch.NO_TIMESTAMP else timestamp,
            partition=partitions[partition],
            offset_json=offset,
            headers_json=headers,
        )
        for topic, partition, key_schema, value_schema, timestamp, offset, key, value, headers in rows
    ]


def _or_none(texts: ByteStrings) -> list[bytes | None]:
    data = bytes(texts.data)
    return [data[start:end] or None for start, end in pairwise(texts.ends.tolist())]


def _with_schema(schema: Schema | None, payload: bytes | None) -> bytes | None:
    if payload is None:
        return None
    return b'{"schema":%b,"payload":%b}' % (b"null" if schema is None else schema.content, payload)
