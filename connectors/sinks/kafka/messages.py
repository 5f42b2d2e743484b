"""Rows as Kafka messages, and back: the headers, and the values as a codec has them."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from envelope.codec import json_codec
from envelope.errors import ChangelogError, Kind
from envelope.model import Envelope, Op, Place, Record

Headers = list[tuple[str, bytes]]

_BINARY = pa.binary()
_MOVES = {"movedTo": "moved_to", "movedFrom": "moved_from"}


class Values(Protocol):
    """A codec: what the value of a message is."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """The value of each row's message, in the rows' order."""

    def decode(self, value: bytes) -> Envelope:
        """The envelope that a value holds. Raises ChangelogError, of kind *malformed* when it holds none."""


class JsonValues:
    """The envelope as JSON; column by column what `json_codec.encode` makes of a record."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """See `Values`."""
        original = batch.column("original")
        truncated = pc.equal(batch.column("op"), Op.TRUNCATE.value)
        before = pc.if_else(truncated, "null", original)
        joined = pc.binary_join_element_wise(
            '{"provenance":',
            batch.column("provenance"),
            ',"current":',
            pc.fill_null(batch.column("current"), "null"),
            pc.fill_null(pc.binary_join_element_wise(',"original":', before, ""), ""),
            "}",
            "",
        )
        values: list[bytes] = joined.cast(_BINARY).to_pylist()
        return values

    def decode(self, value: bytes) -> Envelope:
        """See `Values`."""
        return json_codec.decode(value)


JSON: Final = JsonValues()


def headers(batch: pa.RecordBatch) -> list[Headers]:
    """What a reader can route by without decoding, for each row."""
    columns = (
        _headed("op", batch.column("op")),
        [("position", position) for position in batch.column("position").cast(_BINARY).to_pylist()],
        _headed("transaction", batch.column("transaction")),
        _headed("serviceName", batch.column("service_name")),
    )
    made: list[Headers] = list(map(list, zip(*columns, strict=True)))
    moved = batch.column("moved")
    if moved.null_count < len(moved):
        for row, text in zip(made, moved.to_pylist(), strict=True):
            if text is not None:
                row += [(name, msgspec.json.encode(place)) for name, place in msgspec.json.decode(text).items()]
    return made


def _headed(name: str, column: pa.Array) -> list[tuple[str, bytes]]:
    """A header for each row, one object for all rows of one value."""
    encoded = column.cast(_BINARY).dictionary_encode()
    distinct = [(name, value) for value in encoded.dictionary.to_pylist()]
    return [distinct[index] for index in encoded.indices.to_pylist()]


def record(
    entity: str,
    partition: int,
    key: bytes,
    value: bytes,
    heads: Sequence[tuple[str, bytes]],
    decode: Callable[[bytes], Envelope],
) -> Record:
    """The record that a message of `entity` holds; a tombstone is none. Raises ChangelogError (MALFORMED)."""
    moves = {_MOVES[name]: _place(text) for name, text in heads if name in _MOVES}
    return Record(entity=entity, place=Place(key=key.decode(), partition=partition), envelope=decode(value), **moves)


def _place(text: bytes) -> Place:
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError as error:
        raise ChangelogError(Kind.MALFORMED, "a message's header says no place that it moved to or from") from error
