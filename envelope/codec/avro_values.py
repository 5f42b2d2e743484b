"""Converts single values between JSON and Avro's binary encoding (Avro 1.12, *Binary Encoding*, *Logical Types*).

A value is encoded as its logical type only if decoding gives the same JSON again. Some types have values for which this
is impossible, such as an infinite date (`docs/reference/types.md` lists these types). In Avro, such a type is a union
with one more branch, a string, for these values. The string is the content of the value's JSON string; for arrays and
structs, it is the value's JSON text.
"""

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.envelope.codec import floats, json_codec
from changelog.schemas.avro import has_outside, safe
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

Encode = Callable[[bytes], bytes]
"""Encodes a JSON token in Avro. Raises ValueError if the token does not fit the type."""

Render = Callable[[Any], bytes]
"""Turns a datum into a JSON token. The datum comes from fastavro, which read it by a schema without logical types.
Raises ValueError if the datum is out of range.
"""

NULL: Final = b"\x00"
"""The byte that Avro writes for a null in a union: index 0. In our unions, null is always the first branch."""

DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - used for columns without a zone
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()

_INTEGER = re.compile(rb"0|-?[1-9][0-9]*")
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")

_UUID = re.compile(rb'"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"')

_strings = msgspec.json.Decoder(str)
_arrays = msgspec.json.Decoder(list[Raw])


def long(value: int) -> bytes:
    """Encodes an int or a long in Avro's zigzag coding, with seven bits per byte, the lowest bits first."""
    rest = value << 1 if value >= 0 else ~(value << 1)
    if rest < 0x80:
        return rest.to_bytes()
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def counted(content: bytes) -> bytes:
    """Encodes a string or bytes: the length, then the content."""
    return long(len(content)) + content


def decimal_bytes(unscaled: int) -> bytes:
    """Returns a number in two's complement, big-endian, in as few bytes as possible."""
    return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)


def encoder(type_: ColumnType, *, nullable: bool) -> Encode:
    """Returns the encoder for values of the Avro type `changelog.schemas.avro.to_avro(type_, nullable=…)`.

    Some types have values *outside* the logical type (`has_outside`). The encoder writes these values as strings.
    """
    inside = _inside(type_)
    lead = long(int(nullable)) if nullable or has_outside(type_) else b""
    last = long(int(nullable) + 1)
    outside = _as_json if isinstance(type_, Array | Struct) else _as_content

    def encode(token: bytes) -> bytes:
        if token == b"null":
            if nullable:
                return NULL
            raise ValueError("null")
        return lead + inside(token)

    def encode_open(token: bytes) -> bytes:
        try:
            return encode(token)
        except ValueError:
            if token == b"null":
                raise
            return last + outside(token)

    return encode_open if has_outside(type_) else encode


def renderer(type_: ColumnType) -> Render:
    """Returns the renderer for the values that `encoder` encodes for this type."""
    inside = _rendering(type_)
    if not has_outside(type_):
        return lambda datum: b"null" if datum is None else inside(datum)
    outside = str.encode if isinstance(type_, Array | Struct) else quoted

    def render(datum: Any) -> bytes:
        if datum is None:
            return b"null"
        return outside(datum) if isinstance(datum, str) else inside(datum)

    return render


def _inside(type_: ColumnType) -> Encode:
    match type_:
        case Primitive():
            return _PRIMITIVES[type_]
        case Decimal():
            return _decimal(type_)
        case Array(element=element):
            return _array(encoder(element, nullable=True))
        case Map(value=value):
            return _map(encoder(value, nullable=True))
        case Struct(fields=fields):
            return _struct({name: encoder(member, nullable=True) for name, member in fields})


def _as_json(token: bytes) -> bytes:
    return counted(token)


def _as_content(token: bytes) -> bytes:
    return counted(_content(token).encode())


def _uuid(token: bytes) -> bytes:
    if not _UUID.fullmatch(token):
        raise ValueError("not a UUID")
    return counted(token[1:-1])


def _content(token: bytes) -> str:
    return _strings.decode(token)


def _boolean(token: bytes) -> bytes:
    if token not in (b"true", b"false"):
        raise ValueError("not a boolean")
    return b"\x01" if token == b"true" else b"\x00"


def _integer(bits: int) -> Encode:
    bound = 1 << bits - 1

    def encode(token: bytes) -> bytes:
        if not _INTEGER.fullmatch(token):
            raise ValueError("not an integer")
        value = int(token)
        if not -bound <= value < bound:
            raise ValueError("an integer out of range")
        return long(value)

    return encode


def _floating(form: str) -> Encode:
    pack = struct.Struct(form).pack

    def encode(token: bytes) -> bytes:
        if token[:1] == b'"':
            return pack(_UNUSUAL[token])
        if not _NUMBER.fullmatch(token):
            raise ValueError("not a number")
        try:
            value = float(token)
            if math.isinf(value):
                raise ValueError("a number out of range")
            return pack(value)
        except OverflowError as error:
            raise ValueError("a number out of range") from error

    return encode


class _Unusual(dict[bytes, float]):
    def __missing__(self, token: bytes) -> float:
        raise ValueError("not a number")


_UNUSUAL: Final = _Unusual({b'"NaN"': math.nan, b'"Infinity"': math.inf, b'"-Infinity"': -math.inf})


def _base64(token: bytes) -> bytes:
    content = _content(token)
    decoded = binascii.a2b_base64(content, strict_mode=True)
    if base64.b64encode(decoded).decode() != content:
        raise ValueError("not the canonical spelling")
    return counted(decoded)


def _day(token: bytes) -> bytes:
    text = _content(token)
    day = date.fromisoformat(text)
    _check_spelling(text, day.isoformat())
    return long(day.toordinal() - _EPOCH_DAY)


def _time_of_day(token: bytes) -> bytes:
    text = _content(token)
    at = time.fromisoformat(text)
    us = ((at.hour * 60 + at.minute) * 60 + at.second) * 1_000_000 + at.microsecond
    _check_spelling(text, _clock(us))
    return long(us)


def _instant(zone: str) -> Encode:
    def encode(token: bytes) -> bytes:
        text = _content(token)
        at = datetime.fromisoformat(text.removesuffix(zone))
        _check_spelling(text, at.isoformat(timespec="microseconds") + zone)
        elapsed = at.replace(tzinfo=None) - _EPOCH
        return long(elapsed.days * DAY_US + elapsed.seconds * 1_000_000 + elapsed.microseconds)

    return encode


def _decimal(type_: Decimal) -> Encode:
    def encode(token: bytes) -> bytes:
        text = _content(token)
        match = _DECIMAL.fullmatch(text)
        if match is None or len(match[2] or "") != type_.scale:
            raise ValueError("not of this scale")
        unscaled = int(text.replace(".", ""))
        if len(str(abs(unscaled))) > type_.precision:
            raise ValueError("more digits than declared")
        _check_spelling(text, _point(unscaled, type_.scale))
        return counted(decimal_bytes(unscaled))

    return encode


def _check_spelling(text: str, again: str) -> None:
    if text != again:
        raise ValueError("not the canonical spelling")


def _array(element: Encode) -> Encode:
    def encode(token: bytes) -> bytes:
        try:
            items = _arrays.decode(token)
        except msgspec.DecodeError:
            items = [json_codec.unshielded(raw) for raw in _arrays.decode(json_codec.shielded(token))]
        return _block([element(bytes(item)) for item in items])

    return encode


def _map(value: Encode) -> Encode:
    def encode(token: bytes) -> bytes:
        return _block([counted(name.encode()) + value(member) for name, member in json_codec.members(token).items()])

    return encode


def _struct(fields: Mapping[str, Encode]) -> Encode:
    def encode(token: bytes) -> bytes:
        members = json_codec.members(token)
        if members.keys() != fields.keys():
            raise ValueError("other members")
        return b"".join([encode(members[name]) for name, encode in fields.items()])

    return encode


def _block(items: Sequence[bytes]) -> bytes:
    """Encodes an array or a map: one block of all items, then a zero, which ends the array or map."""
    return long(len(items)) + b"".join(items) + NULL if items else NULL


_PRIMITIVES: Mapping[Primitive, Encode] = {
    Primitive.BOOLEAN: _boolean,
    Primitive.INT: _integer(32),
    Primitive.LONG: _integer(64),
    Primitive.FLOAT: _floating("<f"),
    Primitive.DOUBLE: _floating("<d"),
    Primitive.STRING: _as_content,
    Primitive.BYTES: _base64,
    Primitive.UUID: _uuid,
    Primitive.DATE: _day,
    Primitive.TIME: _time_of_day,
    Primitive.TIMESTAMP: _instant(""),
    Primitive.TIMESTAMP_TZ: _instant("Z"),
    Primitive.JSON: _as_json,
}


def _rendering(type_: ColumnType) -> Render:
    match type_:
        case Primitive():
            return _RENDERINGS[type_]
        case Decimal(scale=scale):
            return lambda datum: b'"%b"' % _point(int.from_bytes(datum, "big", signed=True), scale).encode()
        case Array(element=element):
            item = renderer(element)
            return lambda datum: b"[%b]" % b",".join(map(item, datum))
        case Map(value=value):
            render_value = renderer(value)
            return lambda datum: json_object([(quoted(name), render_value(member)) for name, member in datum.items()])
        case Struct(fields=fields):
            renderers = [(safe(name), quoted(name), renderer(member)) for name, member in fields]
            return lambda datum: json_object([(label, render(datum[name])) for name, label, render in renderers])


def json_object(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Returns a JSON object. Each pair is a quoted name and the JSON of its value."""
    return b"{%b}" % b",".join([b"%b:%b" % pair for pair in pairs])


def quoted(text: str) -> bytes:
    """Returns a text as a JSON string."""
    return msgspec.json.encode(text)


def _float_token(*, single: bool) -> Render:
    return lambda datum: floats.token(datum, single=single)


def _moment(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")


def _clock(us: int) -> str:
    if not 0 <= us < DAY_US:
        raise ValueError("not a time of day")
    seconds, fraction = divmod(us, 1_000_000)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}"


def _point(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return "-" * (unscaled < 0) + whole + "." * (scale > 0) + fraction


_RENDERINGS: Mapping[Primitive, Render] = {
    Primitive.BOOLEAN: lambda datum: b"true" if datum else b"false",
    Primitive.INT: lambda datum: b"%d" % datum,
    Primitive.LONG: lambda datum: b"%d" % datum,
    Primitive.FLOAT: _float_token(single=True),
    Primitive.DOUBLE: _float_token(single=False),
    Primitive.STRING: quoted,
    Primitive.BYTES: lambda datum: b'"%b"' % base64.b64encode(datum),
    Primitive.UUID: quoted,
    Primitive.DATE: lambda datum: quoted(date.fromordinal(_EPOCH_DAY + datum).isoformat()),
    Primitive.TIME: lambda datum: quoted(_clock(datum)),
    Primitive.TIMESTAMP: lambda datum: quoted(_moment(datum)),
    Primitive.TIMESTAMP_TZ: lambda datum: quoted(_moment(datum) + "Z"),
    Primitive.JSON: str.encode,
}
