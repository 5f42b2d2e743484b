"""Encodes values that have a schema of Kafka Connect: in Avro, or in JSON with the schema in each message."""

from collections.abc import Callable
from typing import Any, Final

import fastavro
import msgspec

from changelog.envelope.codec.avro_codec import without_logical_types
from changelog.envelope.connect.schema import ConnectSchema, to_avro, to_json

Encode = Callable[[Any], bytes]

NULL_IN_JSON: Final = b'{"schema":null,"payload":null}'
"""How the JsonConverter writes null. A compacted topic accepts a message with these bytes as its key, but none without
a key.
"""

_encoder = msgspec.json.Encoder()


def json_encoder(schema: ConnectSchema) -> Encode:
    """Returns an encoder for JSON. With `schemas.enable = true`, Kafka Connect's JsonConverter can read the encoder's
    messages.
    """
    before = b'{"schema":%b,"payload":' % _encoder.encode(to_json(schema))

    def encode(value: Any) -> bytes:
        return b"%b%b}" % (before, _encoder.encode(value))

    return encode


def avro_encoder(schema: ConnectSchema, header: bytes) -> Encode:
    """Returns the encoder for Avro. Each message begins with `header`, which names the schema."""
    parsed = fastavro.parse_schema(without_logical_types(to_avro(schema)))

    def encode(value: Any) -> bytes:
        message = _Message(header)
        fastavro.schemaless_writer(message, parsed, value)  # type: ignore[arg-type]
        return bytes(message)

    return encode


class _Message(bytearray):
    """A stream with the methods that fastavro calls."""

    def write(self, content: bytes) -> None:
        self += content

    def flush(self) -> None:
        pass
