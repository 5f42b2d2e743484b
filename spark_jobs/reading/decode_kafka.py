"""Decodes Kafka's messages into rows of `changelog.envelope.columnar.batch.SCHEMA`. Spark's executors run this on Arrow
batches.

The first byte of a message's value is 0 if the value is in Avro, and never 0 if it is in JSON. A value in JSON has the
members `provenance`, `current` and `original`. Usually, their JSON is copied without being decoded; only those members
of the provenance that have a column of their own are decoded. If a value does not have the usual form,
`changelog.envelope.codec.json_codec` decodes it. This codec is slower, but it reads every valid message, and raises an
error for a message that is not valid.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Raw

from changelog.envelope.codec import json_codec
from changelog.envelope.codec.avro_codec import AvroCodec
from changelog.envelope.columnar.batch import SCHEMA, provenance_values
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Envelope, Missing
from changelog.envelope.position import UNPLACED, at_offset
from changelog.spark_jobs.reading.executor_registry import ExecutorRegistry

PARTITION: Final = "kafka_partition"
OFFSET: Final = "offset"

DECODED: Final = pa.schema([*SCHEMA, pa.field(PARTITION, pa.int32()), pa.field(OFFSET, pa.int64())])
"""The columns of the batches that the function returned by `decoder` yields."""

MESSAGE_COLUMNS: Final = ("topic", "partition", "offset", "key", "value", "moves")
"""The columns of the batches that the function returned by `decoder` takes. `moves` holds those message headers that
say to which key and partition a row moved, or from which.
"""

_HEADER_BYTES: Final = 5
"""How many bytes come before the body of a value in Avro: a zero byte, and the schema's id in 4 bytes."""

_NULL: Final = b"null"
_MOVE_HEADERS: Final = ("movedTo", "movedFrom")

Decode = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Row = tuple[object, ...]
"""The values of the columns from `op` to `original`, and of `context`."""


def decoder(prefix: str, registry: ExecutorRegistry | None) -> Decode:
    """Returns a function that turns batches of `MESSAGE_COLUMNS`, without tombstones, into batches of `DECODED`.

    The entity of a message is the part of its topic's name between the prefix and the next dot. The function raises
    ChangelogError: MALFORMED if a message cannot be decoded, or an error of `ExecutorRegistry.schema`. The text of the
    error names the topic, the partition and the offset of the message.
    """
    start = len(prefix) + 1

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        value_decoder = _ValueDecoder(registry)
        for batch in batches:
            yield _decoded(batch, value_decoder, start)

    return decode


def _decoded(batch: pa.RecordBatch, value_decoder: "_ValueDecoder", start: int) -> pa.RecordBatch:
    topics, partitions, offsets, keys, values, moves = (batch.column(name).to_pylist() for name in MESSAGE_COLUMNS)
    rows = []
    for topic, partition, offset, key, value, headers in zip(
        topics, partitions, offsets, keys, values, moves, strict=True
    ):
        *row, context = value_decoder.row(value, topic, partition, offset)
        rows.append((topic[start:].partition(".")[0], partition, key.decode(), *row, _moved(headers), context))
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays([*arrays, batch.column("partition"), batch.column("offset")], schema=DECODED)


class _Parts(msgspec.Struct):
    provenance: Raw
    current: Raw
    original: Raw = Raw(_NULL)


class _Source(msgspec.Struct, rename="camel"):
    op: str
    transaction: str
    committed_at: datetime
    position: str = ""


class _Stamped(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str
    service_name: str
    identifier: str
    context: Raw = Raw(_NULL)
    source: _Source


class _ValueDecoder:
    """Decodes the values of messages. Keeps the Avro codec of each schema id for later messages."""

    def __init__(self, registry: ExecutorRegistry | None) -> None:
        self._registry = registry
        self._codecs: dict[int, AvroCodec] = {}
        self._parts, self._stamped = msgspec.json.Decoder(_Parts), msgspec.json.Decoder(_Stamped)

    def row(self, value: bytes, topic: str, partition: int, offset: int) -> Row:
        """Decodes `value`. The other arguments say from where the message is."""
        try:
            if value[:1] == b"\0":
                return _of_envelope(self._avro(value), partition, offset)
            return self._json(value) or _of_envelope(json_codec.decode(value), partition, offset)
        except ChangelogError as error:
            where = f"{error.message}: topic {topic}, partition {partition}, offset {offset}"
            raise ChangelogError(error.kind, where, hint=error.hint) from None

    def _json(self, value: bytes) -> Row | None:
        """Decodes a JSON value of the usual form. Returns None for every other value, valid or not."""
        try:
            parts = self._parts.decode(value)
            stamped = self._stamped.decode(parts.provenance)
            source, context = stamped.source, _text(stamped.context)
            if not source.position or (context and not context.startswith("{")):
                return None
            return (
                source.op,
                source.position,
                source.transaction,
                source.committed_at,
                stamped.api_version,
                stamped.service_name,
                stamped.identifier,
                bytes(parts.provenance).decode(),
                _text(parts.current),
                _text(parts.original),
                context,
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _avro(self, value: bytes) -> Envelope:
        if self._registry is None:
            raise ChangelogError(
                Kind.MALFORMED, "a message is in Avro, not in JSON", hint='set [sink] codec = "avro" and registry'
            )
        if len(value) < _HEADER_BYTES:
            raise ChangelogError(Kind.MALFORMED, "a message is shorter than the header with its schema id")
        return self._codec(self._registry, int.from_bytes(value[1:_HEADER_BYTES], "big")).decode(value[_HEADER_BYTES:])

    def _codec(self, registry: ExecutorRegistry, id_: int) -> AvroCodec:
        if id_ not in self._codecs:
            try:
                self._codecs[id_] = AvroCodec(registry.schema(id_))
            except ValueError:
                message = f"registry schema {id_} is not the schema of a changelog message"
                raise ChangelogError(Kind.MALFORMED, message) from None
        return self._codecs[id_]


def _of_envelope(envelope: Envelope, partition: int, offset: int) -> Row:
    """Returns the row of a decoded message.

    If the message is an event that an application published itself, it has no position. Then the position is made from
    its partition and its offset.
    """
    provenance = envelope.provenance
    if provenance.source.position == UNPLACED:
        provenance = replace(provenance, source=replace(provenance.source, position=at_offset(partition, offset)))
    original = envelope.original
    return (
        *provenance_values(provenance),
        None if envelope.current is None else bytes(envelope.current).decode(),
        None if isinstance(original, Missing | None) else bytes(original).decode(),
        provenance.stamp.context,
    )


def _text(state: Raw) -> str | None:
    text = bytes(state)
    return None if text == _NULL else text.decode()


def _moved(headers: list[dict[str, object]] | None) -> str | None:
    """Returns the value of the column `moved`, from the headers of a moved row; None if there are no headers."""
    if not headers:
        return None
    values = {str(header["key"]): header["value"] for header in headers}
    members = [
        f'"{name}":{value.decode()}'
        for name in _MOVE_HEADERS
        if isinstance(value := values.get(name), bytes | bytearray)
    ]
    return f"{{{','.join(members)}}}"
