"""Encodes rows as Debezium does: in Debezium's envelope, or *flat* (only the row after a change).

docs/reference/debezium.md describes the messages. Rows of the reserved entities (`changelog.envelope.entity.RESERVED`)
stay in our own envelope, in JSON: only the service reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sinks.kafka.admin.names import key_subject, subject
from changelog.connectors.sinks.kafka.encoding.avro import wire_header
from changelog.connectors.sinks.kafka.encoding.messages import JSON, Messages, joined, other_headers
from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.connect.encoders import NULL_IN_JSON, Encode, avro_encoder, json_encoder
from changelog.envelope.connect.event_schema import event_schemas
from changelog.envelope.connect.events import Rendering
from changelog.envelope.connect.schema import ConnectSchema, to_avro
from changelog.envelope.entity import TRUNCATE_KEY, Entity
from changelog.envelope.errors import RETRIED, ChangelogError
from changelog.envelope.model import Envelope
from changelog.envelope.position import Position
from changelog.schemas.types import Struct

OtherEnvelope = Literal["debezium", "flat"]

_log = structlog.get_logger("kafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoders:
    """The encoders for the rows of one entity whose columns are `shape`."""

    shape: Struct
    rendering: Rendering
    key: Encode
    value: Encode


class ConnectValues:
    """Encodes rows as `envelope` says, with schemas of Kafka Connect. Implements `ValueCodec`.

    With `registry`, keys and values are in Avro, otherwise in JSON with the schema inside. A batch says which columns
    its entities have. If the columns of an entity differ from those in the batch before, so do its schemas. The
    function `publishes_truncates` says for which entities a truncate has a message; for other entities, truncates are
    left out.
    """

    def __init__(self, envelope: OtherEnvelope, prefix: str, registry: Registry | None) -> None:
        self._envelope, self._prefix, self._registry = envelope, prefix, registry
        self._entities: dict[str, Entity] = {}
        self._encoders: dict[str, _Encoders] = {}
        self._warned: set[tuple[str, str]] = set()

    def prepare(self, entities: Sequence[Entity]) -> None:
        self._entities = {entity.name: entity for entity in entities}

    def messages(self, rows: pa.RecordBatch) -> Messages:
        """See `ValueCodec`. Raises ChangelogError: the errors of `Registry.id_of`, and STOP if Debezium cannot
        represent a key.
        """
        names = pc.unique(rows.column("entity")).to_pylist()
        if len(names) == 1:
            return self._part(names[0], rows)
        return joined(
            [self._part(name, rows.filter(pc.equal(rows.column("entity"), pa.scalar(name)))) for name in names]
        )

    def decode(self, value: bytes) -> Envelope:
        """Decodes a value of a reserved entity."""
        return json_codec.decode(value)

    def _part(self, name: str, rows: pa.RecordBatch) -> Messages:
        entity, shape = self._entities.get(name), batch.shapes(rows).get(name)
        if entity is None or shape is None:
            return JSON.messages(rows)
        if not publishes_truncates(entity, self._envelope, is_avro=self._registry is not None):
            rows = self._without_truncates(name, rows)
        first = rows.column("position")[0].as_py() if rows.num_rows else None
        try:
            return self._rendered(entity, shape, rows)
        except ChangelogError as error:
            if error.kind in RETRIED or error.position is not None or first is None:
                raise
            raise ChangelogError(error.kind, error.message, hint=error.hint, position=Position.parse(first)) from error

    def _rendered(self, entity: Entity, shape: Struct, rows: pa.RecordBatch) -> Messages:
        encoders = self._encoders_of(entity, shape)
        rendering = encoders.rendering
        rendered = rendering.flat(rows) if self._envelope == "flat" else rendering.events(rows)
        message_headers = other_headers(rows, [row.source_name for row in rendered])
        self._warn(entity.name, rendering.without_form)
        return Messages(
            rows=rows,
            keys=[NULL_IN_JSON if row.key is None else encoders.key(row.key) for row in rendered],
            values=[None if row.value is None else encoders.value(row.value) for row in rendered],
            headers=message_headers,
            added_nbytes=max((len(value) for heads in message_headers for _, value in heads[-2:]), default=0) * 2,
        )

    def _encoders_of(self, entity: Entity, shape: Struct) -> _Encoders:
        cached = self._encoders.get(entity.name)
        if cached is None or cached.shape != shape:
            schemas = event_schemas(entity.name, shape, entity.key, self._prefix)
            value = schemas.row if self._envelope == "flat" else schemas.event
            cached = self._encoders[entity.name] = _Encoders(
                shape=shape,
                rendering=Rendering(entity, shape, as_json=self._registry is None),
                key=self._encoder(key_subject(self._prefix, entity.name), schemas.key),
                value=self._encoder(subject(self._prefix, entity.name), value),
            )
        return cached

    def _encoder(self, name: str, schema: ConnectSchema) -> Encode:
        if self._registry is None:
            return json_encoder(schema)
        return avro_encoder(schema, wire_header(self._registry.id_of(name, to_avro(schema))))

    def _without_truncates(self, name: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        truncates = pc.equal(rows.column("key"), pa.scalar(TRUNCATE_KEY))
        if pc.any(truncates).as_py():
            hint = "delete the rows at the consumer; docs/reference/debezium.md says why"
            _log.warning("left out a truncate", entity=name, envelope=self._envelope, hint=hint)
            return rows.filter(pc.invert(truncates))
        return rows

    def _warn(self, name: str, columns: set[str]) -> None:
        """Warns once about each column that had a value that Debezium's types cannot represent."""
        for column in sorted(columns):
            if (name, column) not in self._warned:
                self._warned.add((name, column))
                hint = "docs/reference/debezium.md lists these values"
                _log.warning("published null, as debezium has no such value", entity=name, column=column, hint=hint)


def publishes_truncates(entity: Entity, envelope: str, *, is_avro: bool) -> bool:
    """Returns whether a truncate of the entity has a message.

    Flat messages have only rows, so they cannot express a truncate. With several partitions, a consumer could read a
    truncate after rows that were inserted later, and would delete these rows, too. Debezium's truncates have no key,
    but a compacted topic takes only messages with a key. Only JSON has a key that can stand for a missing key
    (`NULL_IN_JSON`).
    """
    return envelope == "debezium" and not is_avro and entity.partitions == 1
