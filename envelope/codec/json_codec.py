"""Encodes envelopes as JSON, and decodes them.

The states, `current` and `original`, are not parsed: their numbers, escapes and white space stay as they are. Members
are written in the order that docs/reference/messages.md shows.
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from changelog.envelope.codec import deep_json
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Provenance, Source, Stamp
from changelog.envelope.position import UNPLACED, Position

_ABSENT: Final = b""
_UNPLACED: Final = ""


class _Source(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    connector: str
    name: str
    database: str
    table: str
    op: Op
    position: str = _UNPLACED
    transaction: str
    committed_at: str
    unavailable: tuple[str, ...] = ()
    unavailable_original: tuple[str, ...] = ()
    json_null: tuple[str, ...] = ()
    json_null_original: tuple[str, ...] = ()
    mask: str | None = None
    id: str | None = None


class _Provenance(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str
    service_name: str
    identifier: str
    context: Raw | UnsetType = UNSET
    source: _Source


class _Envelope(msgspec.Struct):
    provenance: _Provenance
    current: Raw
    original: Raw = Raw(_ABSENT)


# PostgreSQL's json keeps the escape of an unpaired surrogate, but msgspec's decoder refuses such an escape, even in
# text that it only passes through. So such escapes are replaced, during decoding, by bytes that never occur in UTF-8.
_SURROGATE = re.compile(rb"\\(?:u([dD][89a-fA-F])|.)", re.DOTALL)
_SHIELD = b"\xff\xfe"

_encoder = msgspec.json.Encoder()
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_provenance_decoder = msgspec.json.Decoder(_Provenance)
_object_decoder = msgspec.json.Decoder(dict[str, Raw])


def encode(envelope: Envelope) -> bytes:
    """Returns the value of a message: compact JSON in UTF-8."""
    return value(
        provenance=provenance_json(envelope.provenance),
        current=None if envelope.current is None else bytes(envelope.current),
        original=envelope.original if isinstance(envelope.original, Missing | None) else bytes(envelope.original),
    )


def value(*, provenance: bytes, current: bytes | None, original: bytes | Missing | None) -> bytes:
    """Returns the value of a message, as `encode` does. Each part of the envelope is given as JSON."""
    before = b"" if original is MISSING else b',"original":%b' % (b"null" if original is None else original)
    return b'{"provenance":%b,"current":%b%b}' % (provenance, b"null" if current is None else current, before)


def original_of(op: str, text: str | None) -> Raw | Missing | None:
    """Returns the `original` of an envelope. `text` is the value of the column that stores it. If `text` is None, a
    truncate has an `original` of null, and every other operation has none.
    """
    if text is not None:
        return Raw(text)
    return None if op == Op.TRUNCATE else MISSING


def decode(text: bytes) -> Envelope:
    """Decodes an envelope. Its states are slices of `text`.

    Unknown members are ignored. Raises ChangelogError: of kind *malformed* if `text` is not an envelope, of kind
    *limit* if the provenance is nested too deeply to be read.
    """
    try:
        wire = _wire(text)
        return Envelope(
            provenance=_provenance(wire.provenance),
            current=_state(wire.current),
            original=MISSING if bytes(wire.original) == _ABSENT else _state(wire.original),
        )
    except (KeyError, ValueError) as error:
        raise ChangelogError(Kind.MALFORMED, "a message is not an envelope in JSON") from error
    except RecursionError as error:
        raise ChangelogError(Kind.LIMIT, "a message in JSON is nested too deeply to be read") from error


def provenance_json(provenance: Provenance) -> bytes:
    """Returns the JSON of the member `provenance`. Raises ValueError if the commit time has no zone."""
    stamp, source = provenance.stamp, provenance.source
    return _encoder.encode(
        _Provenance(
            api_version=stamp.api_version,
            service_name=stamp.service_name,
            identifier=stamp.identifier,
            context=UNSET if stamp.context is None else Raw(stamp.context),
            source=_Source(
                connector=source.connector,
                name=source.name,
                database=source.database,
                table=source.table,
                op=source.op,
                position=_position_text(source),
                transaction=source.transaction,
                committed_at=time_text(source.committed_at),
                unavailable=source.unavailable,
                unavailable_original=source.unavailable_original,
                json_null=source.json_null,
                json_null_original=source.json_null_original,
                mask=source.mask,
                id=source.id,
            ),
        )
    )


def decode_provenance(text: bytes | str) -> Provenance:
    """Decodes a provenance.

    Raises ChangelogError: of kind *malformed* if `text` is not a provenance, of kind *limit* if it is nested too deeply
    to be read.
    """
    try:
        return _provenance(_wire_provenance(text))
    except ValueError as error:
        raise ChangelogError(Kind.MALFORMED, "a message's provenance cannot be read") from error
    except RecursionError as error:
        raise ChangelogError(Kind.LIMIT, "a message's provenance is nested too deeply to be read") from error


def time_text(time: datetime) -> str:
    """Returns a time as messages have it: `2026-11-21T03:10:02.886044Z`. Raises ValueError if `time` has no zone."""
    if time.tzinfo is None:
        raise ValueError("a commit time needs a zone")
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def members(text: bytes) -> dict[str, bytes]:
    """Returns the members of a JSON object, each as a slice of `text`. Raises ValueError if `text` is not an object."""
    try:
        return _shallow_members(text)
    except RecursionError:
        return deep_json.members(text)


def _shallow_members(text: bytes) -> dict[str, bytes]:
    try:
        return {name: bytes(raw) for name, raw in _object_decoder.decode(text).items()}
    except msgspec.DecodeError:
        raw_members = _object_decoder.decode(shielded(text))
        return {name: bytes(unshielded(raw)) for name, raw in raw_members.items()}


def _wire(text: bytes) -> _Envelope:
    try:
        return _shallow_wire(text)
    except RecursionError:
        return _deep_wire(text)


def _shallow_wire(text: bytes) -> _Envelope:
    try:
        return _envelope_decoder.decode(text)
    except msgspec.DecodeError:
        safe = shielded(text)
        if safe == text:
            raise
        wire = _envelope_decoder.decode(safe)
        return _Envelope(
            provenance=_unshielded_provenance(wire.provenance),
            current=unshielded(wire.current),
            original=unshielded(wire.original),
        )


def _deep_wire(text: bytes) -> _Envelope:
    parts = deep_json.members(text)
    return _Envelope(
        provenance=_wire_provenance(parts["provenance"]),
        current=Raw(parts["current"]),
        original=Raw(parts.get("original", _ABSENT)),
    )


def _wire_provenance(text: bytes | str) -> _Provenance:
    try:
        return _provenance_decoder.decode(text)
    except msgspec.DecodeError:
        plain = text.encode() if isinstance(text, str) else text
        safe = shielded(plain)
        if safe == plain:
            raise
        return _unshielded_provenance(_provenance_decoder.decode(safe))


def _unshielded_provenance(wire: _Provenance) -> _Provenance:
    if wire.context is not UNSET:
        wire.context = unshielded(wire.context)
    return wire


def shielded(text: bytes) -> bytes:
    """Replaces the escapes of unpaired surrogates by bytes that never occur in UTF-8. Then msgspec accepts the JSON."""
    return text if _SHIELD in text else _SURROGATE.sub(_shield, text)


def unshielded(raw: Raw) -> Raw:
    """Puts the escapes back that `shielded` replaced."""
    return Raw(bytes(raw).replace(_SHIELD, b"\\u"))


def _shield(escape: re.Match[bytes]) -> bytes:
    return _SHIELD + escape[1] if escape[1] else escape[0]


def _provenance(wire: _Provenance) -> Provenance:
    source = wire.source
    return Provenance(
        stamp=Stamp(
            api_version=wire.api_version,
            service_name=wire.service_name,
            identifier=wire.identifier,
            context=_context(wire.context),
        ),
        source=Source(
            connector=source.connector,
            name=source.name,
            database=source.database,
            table=source.table,
            op=source.op,
            position=_position(source),
            transaction=source.transaction,
            committed_at=_time(source.committed_at),
            unavailable=source.unavailable,
            unavailable_original=source.unavailable_original,
            json_null=source.json_null,
            json_null_original=source.json_null_original,
            mask=source.mask,
            id=source.id,
        ),
    )


def _context(raw: Raw | UnsetType) -> str | None:
    """Returns the JSON of the context; None if the member `context` is missing or null. Raises ValueError if it is not
    an object.
    """
    if raw is UNSET or bytes(raw) == b"null":
        return None
    text = bytes(raw).decode()
    if not text.startswith("{"):
        raise ValueError("a context is a JSON object")
    return text


def _position_text(source: Source) -> str:
    return _UNPLACED if source.position == UNPLACED and source.id is not None else str(source.position)


def _position(source: _Source) -> Position:
    """Returns the position. It may be missing only in an event that an application published itself, which has an id.
    Then the result is `UNPLACED`.
    """
    return UNPLACED if source.position == _UNPLACED and source.id is not None else Position.parse(source.position)


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a commit time needs a zone")
    return time.astimezone(UTC)


def _state(raw: Raw) -> Raw | None:
    return None if bytes(raw) == b"null" else raw
