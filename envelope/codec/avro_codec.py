"""Encodes envelopes in Avro, with a schema from `changelog.schemas.avro.value_schema`, and decodes them. An encoded
envelope is the body of a message, without the header that names the schema.

In an envelope, the states `current` and `original` are JSON text. In Avro, each state is a record with one typed field
for each column. No value is lost: decoding makes JSON with the same canonical text. A column is *unavailable* if the
database's log did not send its value. The state has no member for such a column, and Avro has null. The decoder leaves
the column out again, because the provenance names it as unavailable.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import fastavro
from msgspec import Raw

from changelog.envelope.codec import json_codec
from changelog.envelope.codec.avro_values import (
    DAY_US,
    NULL,
    Encode,
    counted,
    encoder,
    json_object,
    long,
    quoted,
    renderer,
)
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Envelope, Missing, Op, Provenance, Source, Stamp
from changelog.envelope.position import Position
from changelog.schemas import avro

PRESENT: Final = long(1)
"""The byte that Avro writes before a state or a string in a union [null, ...]: the index 1, which means the second
branch.
"""

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


class AvroCodec:
    """Encodes envelopes of one entity with `schema`, and decodes envelopes that were encoded with this schema.

    Older versions of the program made schemas without `context` in the provenance; with such a schema, the codec can
    only decode. May raise ValueError if `schema` is not a schema from `changelog.schemas.avro.value_schema`.
    """

    def __init__(self, schema: avro.Schema) -> None:
        self.columns = avro.columns(schema)
        self.encoders = [encoder(column.type, nullable=column.nullable) for column in self.columns]
        self._renderers = [
            (avro.safe(column.name), column.name, quoted(column.name), renderer(column.type)) for column in self.columns
        ]
        self._plain: Any = fastavro.parse_schema(without_logical_types(schema))

    def encode(self, envelope: Envelope) -> bytes:
        """Returns the envelope in Avro's binary encoding.

        Raises ChangelogError: of kind *malformed* if a state does not match the schema (the error names the column), of
        kind *limit* if a state is nested too deeply to be read.
        """
        current, original = envelope.current, envelope.original
        return self.value(
            envelope.provenance,
            None if current is None else bytes(current),
            None if isinstance(original, Missing | None) else bytes(original),
        )

    def value(self, provenance: Provenance, current: bytes | None, original: bytes | None) -> bytes:
        """Returns what `encode` returns for an envelope with these parts. `current` and `original` are JSON."""
        source = provenance.source
        return b"".join(
            (
                provenance_bytes(provenance),
                self._state(current, source.unavailable),
                self._state(original, source.unavailable_original),
            )
        )

    def decode(self, body: bytes) -> Envelope:
        """Decodes an envelope. Raises ChangelogError of kind *malformed* if `body` is not exactly one envelope."""
        try:
            datum = _read(body, self._plain)
            provenance = _provenance(datum["provenance"])
            source = provenance.source
            current = self._json(datum["current"], source.unavailable)
            original = self._json(datum["original"], source.unavailable_original)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise ChangelogError(Kind.MALFORMED, "a message is not an Avro envelope of its schema") from error
        return Envelope(
            provenance=provenance,
            current=None if current is None else Raw(current),
            original=json_codec.original_of(source.op, None if original is None else original.decode()),
        )

    def _state(self, text: bytes | None, unavailable: Collection[str]) -> bytes:
        if text is None:
            return NULL
        try:
            tokens = json_codec.members(text)
        except ValueError as error:
            raise ChangelogError(Kind.MALFORMED, "a state is not a JSON object") from error
        except RecursionError as error:
            raise ChangelogError(Kind.LIMIT, "a state is nested too deeply to be read") from error
        parts = [PRESENT]
        for column, encode in zip(self.columns, self.encoders, strict=True):
            token = tokens.pop(column.name, None)
            if token is None:
                if column.name not in unavailable:
                    raise ChangelogError(
                        Kind.MALFORMED, f"column {column.name} is missing, and is not listed as unavailable"
                    )
                token = b"null"
            parts.append(encoded(encode, column.name, token))
        if tokens:
            raise ChangelogError(Kind.MALFORMED, f"column {next(iter(tokens))} is not in the schema")
        return b"".join(parts)

    def _json(self, record: dict[str, Any] | None, unavailable: Collection[str]) -> bytes | None:
        if record is None:
            return None
        return json_object(
            [
                (label, render(record[field]))
                for field, name, label, render in self._renderers
                if record[field] is not None or name not in unavailable
            ]
        )


def encoded(encode: Encode, column: str, token: bytes) -> bytes:
    """Encodes one value. Raises ChangelogError (MALFORMED) if the value does not fit; the error names the column."""
    try:
        return encode(token)
    except ValueError:  # The cause is left out, because its message may hold the value.
        raise ChangelogError(
            Kind.MALFORMED, f"a value of column {column} does not fit its type in the schema"
        ) from None


def provenance_bytes(provenance: Provenance) -> bytes:
    """Encodes the record `changelog.Provenance`. Raises ValueError if the commit time has no zone."""
    stamp, source = provenance.stamp, provenance.source
    return b"".join(
        (
            texts((stamp.api_version, stamp.service_name, stamp.identifier)),
            optional_text(stamp.context),
            opening(source),
            texts((str(source.position), source.transaction)),
            long(_micros(source.committed_at)),
            closing(source),
        )
    )


def opening(source: Source) -> bytes:
    """Encodes the fields of `changelog.Source` before `position`."""
    return texts((source.connector, source.name, source.database, source.table, source.op))


def closing(source: Source) -> bytes:
    """Encodes the fields of `changelog.Source` after `committedAt`."""
    lists = (source.unavailable, source.unavailable_original, source.json_null, source.json_null_original)
    blocks = [long(len(names)) + texts(names) + NULL if names else NULL for names in lists]
    return b"".join((*blocks, optional_text(source.mask), optional_text(source.id)))


def optional_text(text: str | None) -> bytes:
    """Encodes None or a text as a union of null and a string."""
    return NULL if text is None else PRESENT + counted(text.encode())


def texts(values: Sequence[str]) -> bytes:
    """Encodes strings, one after another."""
    return b"".join([counted(value.encode()) for value in values])


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError("a commit time needs a zone")
    elapsed = moment - _UNIX
    return elapsed.days * DAY_US + elapsed.seconds * 1_000_000 + elapsed.microseconds


def _provenance(datum: dict[str, Any]) -> Provenance:
    source = datum["source"]
    return Provenance(
        stamp=Stamp(
            api_version=datum["apiVersion"],
            service_name=datum["serviceName"],
            identifier=datum["identifier"],
            context=datum.get("context"),
        ),
        source=Source(
            connector=source["connector"],
            name=source["name"],
            database=source["database"],
            table=source["table"],
            op=Op(source["op"]),
            position=Position.parse(source["position"]),
            transaction=source["transaction"],
            committed_at=_UNIX + timedelta(microseconds=source["committedAt"]),
            unavailable=tuple(source["unavailable"]),
            unavailable_original=tuple(source["unavailableOriginal"]),
            json_null=tuple(source["jsonNull"]),
            json_null_original=tuple(source["jsonNullOriginal"]),
            mask=source["mask"],
            id=source["id"],
        ),
    )


def without_logical_types(schema: avro.Schema) -> avro.Schema:
    """Removes logical types from a schema, so that fastavro returns plain numbers and bytes.

    Python's own types cannot hold all values of the logical types.
    """
    if isinstance(schema, dict):
        return {name: without_logical_types(member) for name, member in schema.items() if name != "logicalType"}
    return [without_logical_types(branch) for branch in schema] if isinstance(schema, list) else schema


class _Bytes:
    """A stream with the one method that fastavro calls, `read`."""

    def __init__(self, body: bytes) -> None:
        self._body, self.at = body, 0

    def read(self, size: int) -> bytes:
        if size < 0:
            raise ValueError("a length below zero")
        chunk = self._body[self.at : self.at + size]
        self.at += len(chunk)
        return chunk


def _read(body: bytes, schema: Any) -> Any:
    stream = _Bytes(body)
    datum = fastavro.schemaless_reader(stream, schema, None)  # type: ignore[arg-type]
    if stream.at != len(body):
        raise ValueError("bytes are left over")
    return datum
