"""Encodes deltas as values of messages, in JSON or Avro (schema `schemas/delta.avsc`). Decodes only deltas in JSON."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from changelog.envelope.canonical import dumps, parse
from changelog.envelope.codec import json_codec
from changelog.envelope.codec.avro_codec import provenance_bytes, texts
from changelog.envelope.codec.avro_values import NULL, counted, long
from changelog.envelope.delta.deltas import Delta
from changelog.envelope.delta.patch import Operation
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Provenance


class _Delta(msgspec.Struct):
    provenance: Raw
    patch: Raw


_decoder = msgspec.json.Decoder(_Delta)


def encode(delta: Delta) -> bytes:
    """Returns a message's value in JSON: `{"provenance": …, "patch": […]}`, compact, in UTF-8."""
    provenance = json_codec.provenance_json(delta.provenance)
    return b'{"provenance":%b,"patch":%b}' % (provenance, dumps(delta.patch))


def decode(text: bytes) -> Delta:
    """Decodes a delta from JSON.

    Raises ChangelogError: of kind *malformed* if `text` is not a delta, of kind *limit* if it is nested too deeply to
    be read.
    """
    try:
        wire = _wire(text)
    except ValueError as error:
        raise ChangelogError(Kind.MALFORMED, "a message is not a delta in JSON") from error
    except RecursionError as error:
        raise ChangelogError(Kind.LIMIT, "a delta in JSON is nested too deeply to be read") from error
    patch = parse(wire.patch)
    if not isinstance(patch, list):
        raise ChangelogError(Kind.MALFORMED, "a message is not a delta in JSON")
    return Delta(provenance=json_codec.decode_provenance(bytes(wire.provenance)), patch=patch)


def avro(provenance: Provenance, patch: Sequence[Operation]) -> bytes:
    """Returns a message's value in Avro, without the header that names the schema."""
    operations = [_operation(operation) for operation in patch]
    block = long(len(operations)) + b"".join(operations) if operations else b""
    return provenance_bytes(provenance) + block + NULL


def _operation(operation: Operation) -> bytes:
    value = long(1) + counted(dumps(operation["value"])) if "value" in operation else NULL
    return texts((operation["op"], operation["path"])) + value + bytes([operation.get("reset", False)])


def _wire(text: bytes) -> _Delta:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        wire = _decoder.decode(json_codec.shielded(text))
        return _Delta(provenance=json_codec.unshielded(wire.provenance), patch=json_codec.unshielded(wire.patch))
