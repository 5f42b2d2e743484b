"""Reads published JSON tokens as values of their columns' types. Every number is read exactly
(docs/reference/types.md).
"""

import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final

import msgspec
from msgspec import Raw

from changelog.envelope.codec import json_codec
from changelog.envelope.codec.json_codec import members
from changelog.schemas import types
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import Array, ColumnType, Map, Primitive, Struct

Read = Callable[[bytes], object]
"""Reads the value of a JSON token that is not null. Raises ValueError if the type cannot hold the value."""

NULL: Final = b"null"

_INTEGER = re.compile(rb"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_FIXED = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_NOT_FINITE: Final = {b'"NaN"': "nan", b'"Infinity"': "inf", b'"-Infinity"': "-inf"}

_strings = msgspec.json.Decoder(str)
_arrays = msgspec.json.Decoder(list[Raw])


def reader(type_: ColumnType) -> Read:
    """Returns the function that reads values of this type. The values that it returns fit into an Arrow column of the
    type `changelog.envelope.states.arrow_types.to_arrow(type_)`.
    """
    match type_:
        case Primitive():
            return _PRIMITIVES[type_]
        case types.Decimal(precision=precision, scale=scale):
            return _decimal(precision, scale) if precision <= DIGITS_MAX else text
        case Array(element=element):
            return _array(reader(element))
        case Map(value=value):
            return _map(reader(value))
        case Struct(fields=fields):
            return _struct({name: reader(field) for name, field in fields})


def text(token: bytes) -> str:
    """Returns the content of a JSON string, and any other token unchanged."""
    return _strings.decode(token) if token[:1] == b'"' else token.decode()


def _raw(token: bytes) -> str:
    return token.decode()


def _boolean(token: bytes) -> bool:
    if token not in (b"true", b"false"):
        raise ValueError("not a boolean")
    return token == b"true"


def _integer(bits: int) -> Read:
    bound = 1 << bits - 1

    def read(token: bytes) -> int:
        if not _INTEGER.fullmatch(token):
            raise ValueError("not an integer")
        value = int(token)
        if not -bound <= value < bound:
            raise ValueError("an integer out of range")
        return value

    return read


def _floating(form: str) -> Read:
    rounded = struct.Struct(form)

    def read(token: bytes) -> float:
        if token in _NOT_FINITE:
            return float(_NOT_FINITE[token])
        if not _NUMBER.fullmatch(token):
            raise ValueError("not a number")
        value = float(token)
        try:
            (value,) = rounded.unpack(rounded.pack(value))
        except OverflowError:
            value = math.inf
        if math.isinf(value):
            raise ValueError("a number out of range")
        return value

    return read


def _decimal(precision: int, scale: int) -> Read:
    """Returns a function that reads a number exactly. It raises ValueError if the type cannot hold the exact number."""
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def read(token: bytes) -> Decimal:
        content = text(token)
        if not _FIXED.fullmatch(content):
            raise ValueError("not a decimal number")
        try:
            return Decimal(content).quantize(unit, context=context)
        except (Inexact, InvalidOperation):
            raise ValueError("more digits than declared") from None

    return read


def _bytes(token: bytes) -> bytes:
    return binascii.a2b_base64(_strings.decode(token), strict_mode=True)


def _day(token: bytes) -> date:
    content = _strings.decode(token)
    day = date.fromisoformat(content)
    if day.isoformat() != content:
        raise ValueError("not a date with a year of four digits")
    return day


def _instant(zone: str) -> Read:
    def read(token: bytes) -> datetime:
        content = _strings.decode(token)
        at = datetime.fromisoformat(content.removesuffix(zone))
        if at.isoformat(timespec="microseconds") + zone != content:
            raise ValueError("not a time with a year of four digits")
        return at.replace(tzinfo=UTC) if zone else at

    return read


def _array(element: Read) -> Read:
    def read(token: bytes) -> list[object]:
        return [_optional(item, element) for item in _items(token)]

    return read


def _map(value: Read) -> Read:
    def read(token: bytes) -> list[tuple[str, object]]:
        return [(name, _optional(item, value)) for name, item in members(token).items()]

    return read


def _struct(fields: Mapping[str, Read]) -> Read:
    def read(token: bytes) -> dict[str, object]:
        values = members(token)
        if values.keys() != fields.keys():
            raise ValueError("an object whose members are not the fields of the type")
        return {name: _optional(values[name], field) for name, field in fields.items()}

    return read


def _optional(token: bytes, read: Read) -> object:
    return None if token == NULL else read(token)


def _items(token: bytes) -> list[bytes]:
    try:
        return [bytes(item) for item in _arrays.decode(token)]
    except msgspec.DecodeError:
        return [bytes(json_codec.unshielded(item)) for item in _arrays.decode(json_codec.shielded(token))]


_PRIMITIVES: Final[Mapping[Primitive, Read]] = {
    Primitive.BOOLEAN: _boolean,
    Primitive.INT: _integer(32),
    Primitive.LONG: _integer(64),
    Primitive.FLOAT: _floating("<f"),
    Primitive.DOUBLE: _floating("<d"),
    Primitive.STRING: text,
    Primitive.BYTES: _bytes,
    Primitive.UUID: text,
    Primitive.DATE: _day,
    Primitive.TIME: text,
    Primitive.TIMESTAMP: _instant(""),
    Primitive.TIMESTAMP_TZ: _instant("Z"),
    Primitive.JSON: _raw,
}
