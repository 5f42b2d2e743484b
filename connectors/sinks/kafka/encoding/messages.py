"""Converts rows to Kafka messages and back. This module converts headers; a codec (`Values`) converts values."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.codec import json_codec
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Envelope, Op, Place, Record

Headers = list[tuple[str, bytes]]

_BINARY = pa.binary()

# These are Arrow scalars, because Arrow tries to import pandas each time that it gets a plain Python value.
_TRUNCATE, _NULL, _NOTHING, _END = (pa.scalar(text) for text in (Op.TRUNCATE.value, "null", "", "}"))
_PROVENANCE, _CURRENT, _ORIGINAL = (pa.scalar(text) for text in ('{"provenance":', ',"current":', ',"original":'))

_HEADERS = {"op": "op", "position": "position", "transaction": "transaction", "serviceName": "service_name"}
_MOVES = {"movedTo": "moved_to", "movedFrom": "moved_from"}


class Values(Protocol):
    """A codec for the values of messages."""

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Announces the entities whose rows will be encoded."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Returns the value of each row's message, in the rows' order."""

    def decode(self, value: bytes) -> Envelope:
        """Decodes a value. Raises ChangelogError (MALFORMED) if it is not an envelope."""


class JsonValues:
    """Encodes envelopes as JSON, column by column. The bytes are those that `json_codec.encode` makes from records."""

    def prepare(self, entities: Sequence[Entity]) -> None:
        """See `Values`: JSON needs no preparation."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """See `Values`."""
        original = batch.column("original")
        truncated = pc.equal(batch.column("op"), _TRUNCATE)
        original_or_null = pc.if_else(truncated, _NULL, original)
        texts = pc.binary_join_element_wise(
            _PROVENANCE,
            batch.column("provenance"),
            _CURRENT,
            pc.fill_null(batch.column("current"), _NULL),
            pc.fill_null(pc.binary_join_element_wise(_ORIGINAL, original_or_null, _NOTHING), _NOTHING),
            _END,
            _NOTHING,
        )
        values: list[bytes] = texts.cast(_BINARY).to_pylist()
        return values

    def decode(self, value: bytes) -> Envelope:
        """See `Values`. If a value begins with a zero byte, the error says that the value is in Avro."""
        if value[:1] == b"\0":
            raise ChangelogError(
                Kind.MALFORMED, "a message is in Avro, not in JSON", hint='set [sink] codec = "avro", and its registry'
            )
        return json_codec.decode(value)


JSON: Final = JsonValues()


def headers(batch: pa.RecordBatch) -> list[Headers]:
    """Returns the headers for each row's message. With them, a reader can route messages without decoding values."""
    columns = (_header(name, batch.column(column)) for name, column in _HEADERS.items())
    rows: list[Headers] = list(map(list, zip(*columns, strict=True)))
    moved = batch.column("moved")
    if moved.null_count < len(moved):
        for row, text in zip(rows, moved.to_pylist(), strict=True):
            if text is not None:
                row += [(name, msgspec.json.encode(place)) for name, place in msgspec.json.decode(text).items()]
    return rows


def record(
    entity: str,
    partition: int,
    key: bytes,
    value: bytes,
    message_headers: Sequence[tuple[str, bytes]],
    decode: Callable[[bytes], Envelope],
) -> Record:
    """Returns the record that a message of `entity` holds. The message must not be a tombstone.

    Raises ChangelogError: MALFORMED for invalid headers, and the errors of `decode`.
    """
    moves = {_MOVES[name]: _place(text) for name, text in message_headers if name in _MOVES}
    return Record(entity=entity, place=Place(key=key.decode(), partition=partition), envelope=decode(value), **moves)


def _header(name: str, column: pa.StringArray) -> Iterator[tuple[str, bytes]]:
    """Yields one header for each row, from the row's value in `column`. Rows with the same value share one header."""
    distinct = column.cast(_BINARY).dictionary_encode()
    pairs = [(name, value) for value in distinct.dictionary.to_pylist()]
    return map(pairs.__getitem__, distinct.indices.tolist())


def _place(text: bytes) -> Place:
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError as error:
        raise ChangelogError(Kind.MALFORMED, "a message has an invalid header movedTo or movedFrom") from error
