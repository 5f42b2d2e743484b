"""Encodes message values as Avro in Confluent's wire format, and decodes them.

A value has a zero byte, then the schema's id (four bytes, big-endian), then the Avro body.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sinks.kafka.admin.names import subject
from changelog.connectors.sinks.kafka.encoding.messages import Messages, of_envelopes
from changelog.envelope.codec import json_codec
from changelog.envelope.codec.avro_codec import AvroCodec
from changelog.envelope.columnar import batch
from changelog.envelope.columnar.avro_columns import ColumnarEncoder
from changelog.envelope.entity import Entity
from changelog.envelope.errors import RETRIED, ChangelogError, Kind
from changelog.envelope.model import Envelope
from changelog.envelope.position import Position
from changelog.schemas.avro import value_schema
from changelog.schemas.types import Struct

MAGIC = 0
HEADER_BYTES = 5


class AvroValues:
    """Encodes values with the Avro schema that is made from the columns of an entity. Implements `ValueCodec`.

    A batch says which columns its entities have (`changelog.envelope.columnar.batch.shapes`). If the columns of an
    entity differ from those in the batch before, so does its schema. Then `registry` looks up the new schema, and
    registers or refuses it. `keys` maps each entity to the columns of its key; `prepare` replaces the mapping. If a
    batch does not name the columns of an entity, the entity's values are encoded as JSON, for example those of `dead`
    (messages that were set aside).
    """

    def __init__(self, registry: Registry, prefix: str, keys: Mapping[str, Sequence[str]] | None = None) -> None:
        self._registry, self._prefix, self._keys = registry, prefix, keys or {}
        self._encoders: dict[str, tuple[Struct, ColumnarEncoder]] = {}
        self._codecs: dict[int, AvroCodec] = {}

    def prepare(self, entities: Sequence[Entity]) -> None:
        """See `ValueCodec`. Stores the entities' key columns, because a schema says that these are never null."""
        self._keys = {entity.name: entity.key for entity in entities}

    def messages(self, rows: pa.RecordBatch) -> Messages:
        """See `ValueCodec`. Raises the errors of `encode`."""
        return of_envelopes(rows, self.encode(rows))

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Returns the values for the rows of a batch (`changelog.envelope.columnar.batch.SCHEMA`), in their order.

        Raises ChangelogError: the errors of `Registry.id_of`, and MALFORMED if a row's state does not fit the entity's
        columns. If the error's kind is not retried, the error has the position of the entity's first row in the batch.
        """
        shapes = batch.shapes(rows)
        entities = rows.column("entity").dictionary_encode()
        codes = entities.indices.to_numpy()
        values: list[bytes] = [b""] * rows.num_rows
        for code, entity in enumerate(entities.dictionary.to_pylist()):
            if len(entities.dictionary) == 1:
                return self._values(entity, shapes.get(entity), rows)
            indexes = np.flatnonzero(codes == code)
            entity_values = self._values(entity, shapes.get(entity), rows.take(pa.array(indexes)))
            for index, value in zip(indexes.tolist(), entity_values, strict=True):
                values[index] = value
        return values

    def decode(self, value: bytes) -> Envelope:
        """Decodes a value in Avro or JSON. Raises ChangelogError: MALFORMED, and the errors of `Registry.schema`."""
        if not value or value[0] != MAGIC:
            return json_codec.decode(value)
        if len(value) < HEADER_BYTES:
            raise ChangelogError(Kind.MALFORMED, "a message ends inside the id of its schema")
        return self._codec(int.from_bytes(value[1:HEADER_BYTES], "big")).decode(value[HEADER_BYTES:])

    def _values(self, entity: str, shape: Struct | None, rows: pa.RecordBatch) -> list[bytes]:
        if shape is None:
            return _as_json(rows)
        try:
            return self._encoder(entity, shape).encode(rows)
        except ChangelogError as error:
            if error.kind in RETRIED:
                raise
            message = f"entity {entity}: {error.message}" if error.kind is Kind.MALFORMED else error.message
            first = Position.parse(rows.column("position")[0].as_py())
            raise ChangelogError(error.kind, message, hint=error.hint, position=first) from error

    def _encoder(self, entity: str, shape: Struct) -> ColumnarEncoder:
        cached = self._encoders.get(entity)
        if cached is None or cached[0] != shape:
            schema = value_schema(entity, shape, self._keys[entity], self._prefix)
            id_ = self._registry.id_of(subject(self._prefix, entity), schema)
            cached = self._encoders[entity] = shape, ColumnarEncoder(AvroCodec(schema), wire_header(id_))
        return cached[1]

    def _codec(self, id_: int) -> AvroCodec:
        if id_ not in self._codecs:
            try:
                self._codecs[id_] = AvroCodec(self._registry.schema(id_))
            except ValueError as error:
                raise ChangelogError(
                    Kind.MALFORMED, f"schema {id_} of the registry is not the schema of an envelope"
                ) from error
        return self._codecs[id_]


def wire_header(id_: int) -> bytes:
    """Returns the bytes with which a value begins: the zero byte, and the id of the value's schema."""
    return bytes([MAGIC]) + id_.to_bytes(HEADER_BYTES - 1, "big")


def _as_json(rows: pa.RecordBatch) -> list[bytes]:
    return [json_codec.encode(record.envelope) for record in batch.records(rows)]
