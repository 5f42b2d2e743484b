"""Decodes messages in Avro. Their schemas are in a registry.

A message begins with a zero byte and the id of its schema in four bytes. Converters of Apicurio may write an id of
eight bytes. They may also put the id into a header: then the message begins with neither the zero byte nor the id.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from changelog.connectors.sources.debezium.decode.avro.reader import UNUSUAL, event_reader, values_reader
from changelog.connectors.sources.debezium.decode.avro.schemas import from_avro
from changelog.connectors.sources.debezium.decode.facts import SourceBlock, TransactionBlock
from changelog.connectors.sources.debezium.decode.layouts import Layout
from changelog.connectors.sources.debezium.decode.payloads import NULL, Count, MessageBlock, Payload
from changelog.envelope.errors import ChangelogError, Kind

MAGIC: Final = 0
Headers = Sequence[tuple[str, bytes | None]]
Part = Literal["key", "value"]
SCHEMAS_MAX: Final = 4096
"""How many schemas are remembered."""


@dataclass(frozen=True, slots=True)
class _SchemaReaders:
    layout: Layout
    plain: Callable[[bytes, int], Any]
    values: Callable[[bytes, int], Any] | None
    event: Callable[[bytes, int], Payload] | None


class AvroReader:
    """Decodes messages.

    `schema_of` returns the schema that has a given id, as JSON. `id_bytes` is the length of an id in messages, 0 if the
    ids are in headers.
    """

    def __init__(self, schema_of: Callable[[int], Any], id_bytes: int) -> None:
        self._schema_of, self._start = schema_of, 1 + id_bytes if id_bytes else 0
        self._schemas: dict[bytes, _SchemaReaders] = {}

    def has(self, content: bytes, headers: Headers, part: Part) -> bool:
        """Returns whether `content`, the non-empty key or value of a message (`part` says which), is in Avro."""
        return content[0] == MAGIC if self._start else _id_in(headers, part) is not None

    def read(self, content: bytes, headers: Headers, part: Part) -> tuple[Layout, Any]:
        """Returns the layout of the content, and the content's value: a dict if the schema is a record.

        Raises ChangelogError (MALFORMED), or what `schema_of` raises.
        """
        readers = self._readers_of(content, headers, part)
        if readers.values is not None:
            try:
                return readers.layout, readers.values(content, self._start)
            except UNUSUAL:
                pass  # fastavro reads the content instead, or raises an error
        return readers.layout, readers.plain(content, self._start)

    def event(self, content: bytes, headers: Headers) -> tuple[Layout, Payload]:
        """Returns the layout and the members of a message's value.

        The message is an event, or it is about a transaction or a table. The rows of an event are dicts by column, or
        tuples with the values of the columns. Raises ChangelogError (MALFORMED), msgspec.ValidationError, or what
        `schema_of` raises.
        """
        readers = self._readers_of(content, headers, "value")
        if readers.event is not None:
            try:
                return readers.layout, readers.event(content, self._start)
            except UNUSUAL:
                pass
        return readers.layout, payload_of(readers.plain(content, self._start))

    def _readers_of(self, content: bytes, headers: Headers, part: Part) -> _SchemaReaders:
        return self._schema(content[1 : self._start] if self._start else _id_in(headers, part) or b"")

    def _schema(self, number: bytes) -> _SchemaReaders:
        readers = self._schemas.get(number)
        if readers is None:
            if len(number) < max(self._start - 1, 1):
                raise ChangelogError(Kind.MALFORMED, "it ends inside the id of its schema")
            schema = self._schema_of(int.from_bytes(number))
            from changelog.connectors.sources.debezium.decode.avro import fastavro_reader  # noqa: PLC0415 - optional

            try:
                layout, plain = Layout.of(from_avro(schema)), fastavro_reader.plain_schema(schema)
                readers = _SchemaReaders(
                    layout, fastavro_reader.plain_reader(plain), values_reader(plain), event_reader(plain)
                )
            except fastavro_reader.MALFORMED_SCHEMA:
                raise ChangelogError(Kind.MALFORMED, "its schema is not a schema of Kafka Connect") from None
            if len(self._schemas) >= SCHEMAS_MAX:
                self._schemas.clear()
            self._schemas[number] = readers
        return readers


def _id_in(headers: Headers, part: Part) -> bytes | None:
    """Returns the eight bytes of the schema id of a message's key or value; None if no header has the id."""
    names = f"apicurio.{part}.globalId", f"apicurio.{part}.contentId"
    return next((content for name, content in headers if name in names), None)


def payload_of(value: dict[str, Any]) -> Payload:
    """Returns the members of a message. `value` is the message's value, decoded from Avro.

    Raises msgspec.ValidationError.
    """
    source, transaction, message = value.get("source"), value.get("transaction"), value.get("message")
    before: Any = value.get("before")
    after: Any = value.get("after")
    payload = Payload(
        op=value.get("op"),
        before=NULL if before is None else before,
        after=NULL if after is None else after,
        source=None if source is None else msgspec.convert(source, SourceBlock),
        transaction=None if transaction is None else msgspec.convert(transaction, TransactionBlock),
        message=None if message is None else _message(message),
        status=value.get("status"),
        id=value.get("id"),
        event_count=value.get("event_count"),
        data_collections=msgspec.convert(value.get("data_collections"), list[Count] | None),
        ts_ms=value.get("ts_ms"),
    )
    if "ddl" in value or "tableChanges" in value:
        payload.ddl = NULL
    return payload


def _message(value: dict[str, Any]) -> MessageBlock:
    """Returns a logical message. Content that is bytes in Avro becomes base64, as in JSON; a string stays as it is."""
    content = value.get("content") or b""
    return MessageBlock(
        prefix=value["prefix"], content=content if isinstance(content, str) else b64encode(content).decode()
    )
