"""Converts rows to Kafka messages and back. This module converts headers; a codec (`ValueCodec`) converts values.

A message in another envelope than our own has the headers `KEY` and `SOURCE`, and lacks some headers of our envelope.
By `KEY` and `SOURCE`, the service recognizes its own rows without decoding their values. Kafka Connect guesses the type
of a header from its text, and fails if the text is the JSON value null, or JSON with values of several types. So every
header of a message in another envelope must be plain text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Final, Protocol, cast
from urllib.parse import quote, unquote_to_bytes

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from msgspec import Raw

from changelog.envelope.codec import json_codec
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position

KEY, SOURCE = "entityKey", "sourceName"
"""Headers of messages in another envelope. `KEY` holds `=` and the percent-encoded key; a text that begins with `=` is
never JSON. `SOURCE` holds the name of the source.
"""

_PLAIN_HEADERS = frozenset({"op", "position", "transaction"})

Headers = list[tuple[str, bytes]]

_BINARY = pa.binary()

# These are Arrow scalars, because Arrow tries to import pandas each time it receives a plain Python value.
_TRUNCATE, _NULL, _NOTHING, _END = (pa.scalar(text) for text in (Op.TRUNCATE.value, "null", "", "}"))
_ABSENT = pa.scalar(None, pa.utf8())
_PROVENANCE, _CURRENT, _ORIGINAL = (pa.scalar(text) for text in ('{"provenance":', ',"current":', ',"original":'))

_HEADERS = {"op": "op", "position": "position", "transaction": "transaction", "serviceName": "service_name"}
_SHARED_HEADERS = frozenset({"op", "serviceName"})
"""Headers that have few distinct values within a batch."""

_MOVES = {"movedTo": "moved_to", "movedFrom": "moved_from"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The messages of `rows`, one for each. A value is None if the message is only a tombstone."""

    rows: pa.RecordBatch
    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]
    added_nbytes: int = 0
    """An upper bound of the bytes of one row's headers `KEY` and `SOURCE`."""

    @property
    def nbytes_max(self) -> int:
        """An upper bound of the bytes of one message, not counting headers' names (see `oversized.OVERHEAD_BYTES`)."""
        columns = ("op", "position", "transaction", "service_name", "moved")
        of_headers = sum(pc.max(pc.binary_length(self.rows.column(name))).as_py() or 0 for name in columns)
        of_values = max(map(len, filter(None, self.values)), default=0)
        return int(of_headers) + self.added_nbytes + max(map(len, self.keys)) + of_values


class ValueCodec(Protocol):
    """A codec for the values of messages."""

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Announces the entities whose rows will be encoded."""

    def messages(self, batch: pa.RecordBatch) -> Messages:
        """Returns the messages of the rows. The messages of one entity are in the rows' order.

        A row for which the envelope has no message is left out.
        """

    def decode(self, value: bytes) -> Envelope:
        """Decodes a value. Raises ChangelogError (MALFORMED) if it is not an envelope."""


class JsonValues:
    """Encodes envelopes as JSON, column by column. The bytes are those that `json_codec.encode` makes from records."""

    def prepare(self, entities: Sequence[Entity]) -> None:
        """See `ValueCodec`: JSON needs no preparation."""

    def messages(self, batch: pa.RecordBatch) -> Messages:
        """See `ValueCodec`."""
        return of_envelopes(batch, self.encode(batch))

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Returns the value of each row's message, in the rows' order."""
        current, original = batch.column("current"), batch.column("original")
        is_truncate = pc.equal(batch.column("op"), _TRUNCATE)
        if pc.any(is_truncate).as_py():
            original = pc.if_else(is_truncate, _NULL, original)
        texts = pc.binary_join_element_wise(
            _PROVENANCE,
            batch.column("provenance"),
            _CURRENT,
            pc.fill_null(current, _NULL) if current.null_count else current,
            pc.if_else(pc.is_valid(original), _ORIGINAL, _ABSENT) if original.null_count else _ORIGINAL,
            original,
            _END,
            _NOTHING,
            null_handling="skip",
        )
        values: list[bytes] = texts.cast(_BINARY).to_pylist()
        return values

    def decode(self, value: bytes) -> Envelope:
        """See `ValueCodec`. If a value begins with a zero byte, the error says that the value is in Avro."""
        if value[:1] == b"\0":
            raise ChangelogError(
                Kind.MALFORMED, "a message is in Avro, not in JSON", hint='set [sink] codec = "avro" and registry'
            )
        return json_codec.decode(value)


JSON: Final = JsonValues()


def joined(parts: Sequence[Messages]) -> Messages:
    """Returns the messages of all parts, one part after another."""
    return Messages(
        rows=pa.concat_batches([part.rows for part in parts]),
        keys=[key for part in parts for key in part.keys],
        values=[value for part in parts for value in part.values],
        headers=[row_headers for part in parts for row_headers in part.headers],
        added_nbytes=max((part.added_nbytes for part in parts), default=0),
    )


def of_envelopes(batch: pa.RecordBatch, values: Sequence[bytes]) -> Messages:
    """Returns the messages of rows in our own envelope. `values` has the encoded envelope of each row."""
    keys = batch.column("key").cast(_BINARY).to_pylist()
    return Messages(rows=batch, keys=keys, values=values, headers=headers(batch))


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


def other_headers(batch: pa.RecordBatch, source_names: Sequence[str]) -> list[Headers]:
    """Returns the headers for each row's message in another envelope. `source_names` has the source of each row."""
    names = {name: (SOURCE, name.encode()) for name in source_names}
    return [
        [
            *(header for header in row_headers if header[0] in _PLAIN_HEADERS),
            (KEY, f"={quote(key)}".encode()),
            names[name],
        ]
        for row_headers, key, name in zip(headers(batch), batch.column("key").to_pylist(), source_names, strict=True)
    ]


def is_row(message: Message) -> bool:
    """Returns whether a message is a row of a changelog. If not, it is the tombstone that follows a delete. A tombstone
    has no further information; it is there only for compaction.
    """
    return message.value() is not None or KEY in _headers_of(message)


def key_of(message: Message) -> bytes:
    """Returns the canonical text of the key of a row."""
    quoted_key = _headers_of(message).get(KEY)
    return message.key() or b"" if quoted_key is None else unquote_to_bytes(quoted_key[1:])


def source_of(message: Message) -> str | None:
    """Returns the name of the source of a row in another envelope; None if the row is in our own envelope."""
    name = _headers_of(message).get(SOURCE)
    return None if name is None else name.decode()


def without_states(entity: str, message: Message) -> Record:
    """Returns the record of a row in another envelope, as far as its headers describe it.

    Its `current` is an empty object in place of the row, and None after a delete or a truncate. Raises ChangelogError
    (MALFORMED) if a header is missing or invalid.
    """
    headers_by_name = {name: value.decode() for name, value in _headers_of(message).items()}
    try:
        op, position = Op(headers_by_name["op"]), Position.parse(headers_by_name["position"])
        transaction, name = headers_by_name["transaction"], headers_by_name[SOURCE]
    except (KeyError, ValueError) as error:
        raise ChangelogError(Kind.MALFORMED, "a message lacks a header of this service") from error
    source = Source(
        connector="",
        name=name,
        database="",
        table="",
        op=op,
        position=position,
        transaction=transaction,
        committed_at=datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC),
    )
    return Record(
        entity=entity,
        place=Place(key=key_of(message).decode(), partition=cast(int, message.partition())),
        envelope=Envelope(
            provenance=Provenance(stamp=Stamp(api_version="", service_name="", identifier=""), source=source),
            current=None if op in (Op.DELETE, Op.TRUNCATE) else Raw(b"{}"),
            original=None if op is Op.TRUNCATE else MISSING,
        ),
    )


def _headers_of(message: Message) -> Mapping[str, bytes]:
    return dict(cast(Headers, message.headers() or []))


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


def _header(name: str, column: pa.StringArray) -> Iterable[tuple[str, bytes]]:
    """Returns one header for each row, from the row's value in `column`."""
    values = column.cast(_BINARY)
    if name not in _SHARED_HEADERS:
        return zip(repeat(name), values.to_pylist())
    distinct = values.dictionary_encode()
    pairs = [(name, value) for value in distinct.dictionary.to_pylist()]
    return repeat(pairs[0], len(column)) if len(pairs) == 1 else map(pairs.__getitem__, distinct.indices.tolist())


def _place(text: bytes) -> Place:
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.DecodeError as error:
        raise ChangelogError(Kind.MALFORMED, "a message has an invalid header movedTo or movedFrom") from error
