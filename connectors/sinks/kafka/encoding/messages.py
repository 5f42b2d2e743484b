"""Rows as Kafka messages, and back: the headers, and the values as a codec has them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from envelope.codec import json_codec
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.model import Envelope, Op, Place, Record

Headers = list[tuple[str, bytes]]

_BINARY = pa.binary()

# As scalars: of a Python value, Arrow asks each time whether it is one of pandas', whose import is then tried in vain.
_TRUNCATE, _NULL, _NOTHING, _END = (pa.scalar(text) for text in (Op.TRUNCATE.value, "null", "", "}"))
_PROVENANCE, _CURRENT, _ORIGINAL = (pa.scalar(text) for text in ('{"provenance":', ',"current":', ',"original":'))

_HEADERS = {"op": "op", "position": "position", "transaction": "transaction", "serviceName": "service_name"}
_MOVES = {"movedTo": "moved_to", "movedFrom": "moved_from"}


class Values(Protocol):
    """A codec: what the value of a message is."""

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Hears of the entities whose rows it is to encode."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """The value of each row's message, in the rows' order."""

    def decode(self, value: bytes) -> Envelope:
        """The envelope that a value holds. Raises ChangelogError, of kind *malformed* when it holds none."""


class JsonValues:
    """The envelope as JSON; column by column what `json_codec.encode` makes of a record."""

    def prepare(self, entities: Sequence[Entity]) -> None:
        """See `Values`: all are alike."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """See `Values`."""
        original = batch.column("original")
        truncated = pc.equal(batch.column("op"), _TRUNCATE)
        before = pc.if_else(truncated, _NULL, original)
        joined = pc.binary_join_element_wise(
            _PROVENANCE,
            batch.column("provenance"),
            _CURRENT,
            pc.fill_null(batch.column("current"), _NULL),
            pc.fill_null(pc.binary_join_element_wise(_ORIGINAL, before, _NOTHING), _NOTHING),
            _END,
            _NOTHING,
        )
        values: list[bytes] = joined.cast(_BINARY).to_pylist()
        return values

    def decode(self, value: bytes) -> Envelope:
        """See `Values`; says so where the value is Avro's, which begins with a zero byte."""
        if value[:1] == b"\0":
            raise ChangelogError(
                Kind.MALFORMED, "a message is in Avro, not in JSON", hint='set [sink] codec = "avro", and its registry'
            )
        return json_codec.decode(value)


JSON: Final = JsonValues()


def headers(batch: pa.RecordBatch) -> list[Headers]:
    """What a reader can route by without decoding, for each row."""
    columns = (_header(name, batch.column(column)) for name, column in _HEADERS.items())
    made: list[Headers] = list(map(list, zip(*columns, strict=True)))
    moved = batch.column("moved")
    if moved.null_count < len(moved):
        for row, text in zip(made, moved.to_pylist(), strict=True):
            if text is not None:
                row += [(name, msgspec.json.encode(place)) for name, place in msgspec.json.decode(text).items()]
    return made


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


def _header(name: str, column: pa.StringArray) -> Iterator[tuple[str, bytes]]:
    """One header of each row; rows of one value share it."""
    distinct = column.cast(_BINARY).dictionary_encode()
    found = [(name, value) for value in distinct.dictionary.to_pylist()]
    return map(found.__getitem__, distinct.indices.tolist())


def _place(text: bytes) -> Place:
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError as error:
        raise ChangelogError(Kind.MALFORMED, "a message's header says no place that it moved to or from") from error
