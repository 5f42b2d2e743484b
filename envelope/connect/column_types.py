"""Maps column types to Debezium's semantic types, and converts published JSON values to values of these types.

docs/reference/debezium.md lists the semantic type of each column type. The module `schema` writes semantic types as
schemas of Kafka Connect.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

import base64
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.envelope.codec.avro_values import DAY_US, decimal_bytes
from changelog.envelope.connect.schema import DECIMAL, PRECISION, SCALE, ConnectSchema
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What Debezium publishes in place of a value that the database's log did not send."""

Convert = Callable[[bytes], Any]
"""Converts a JSON token that is not null to a value of the semantic type. Raises ValueError if the semantic type cannot
represent the token.
"""

_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.([0-9]+))?")
_DATE: Final = re.compile(r"([0-9]{4,})-([0-9]{2})-([0-9]{2})( BC)?")
_CLOCK: Final = re.compile(r"(-?)([0-9]+):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?")
_TIMESTAMP: Final = re.compile(r"([0-9]{4,}-[0-9]{2}-[0-9]{2})[T ]([0-9:.]+)( BC)?")

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_INT64: Final = range(-(1 << 63), 1 << 63)
_UNUSUAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_strings = msgspec.json.Decoder(str)
_arrays = msgspec.json.Decoder(list[Raw])

_JSON: Final = ConnectSchema(type="string", name="io.debezium.data.Json", version=1)
_SCHEMAS: Final = {
    Primitive.BOOLEAN: ConnectSchema(type="boolean"),
    Primitive.INT: ConnectSchema(type="int32"),
    Primitive.LONG: ConnectSchema(type="int64"),
    Primitive.FLOAT: ConnectSchema(type="float"),
    Primitive.DOUBLE: ConnectSchema(type="double"),
    Primitive.STRING: ConnectSchema(type="string"),
    Primitive.BYTES: ConnectSchema(type="bytes"),
    Primitive.UUID: ConnectSchema(type="string", name="io.debezium.data.Uuid", version=1),
    Primitive.DATE: ConnectSchema(type="int32", name="io.debezium.time.Date", version=1),
    Primitive.TIME: ConnectSchema(type="int64", name="io.debezium.time.MicroTime", version=1),
    Primitive.TIMESTAMP: ConnectSchema(type="int64", name="io.debezium.time.MicroTimestamp", version=1),
    Primitive.TIMESTAMP_TZ: ConnectSchema(type="string", name="io.debezium.time.ZonedTimestamp", version=1),
    Primitive.JSON: _JSON,
}

UNCHANGED: Final = frozenset(
    {
        Primitive.BOOLEAN,
        Primitive.INT,
        Primitive.LONG,
        Primitive.STRING,
        Primitive.BYTES,
        Primitive.UUID,
        Primitive.TIMESTAMP_TZ,
    }
)
"""The column types whose published JSON values already have the form that the semantic type needs."""


def connect_schema(type_: ColumnType, *, optional: bool) -> ConnectSchema:
    """Returns the schema of a column of this type. `optional` says whether the column may be null. Elements of arrays
    may always be null.
    """
    match type_:
        case Primitive():
            plain = _SCHEMAS[type_]
        case Decimal(precision=precision, scale=scale):
            parameters = {SCALE: str(scale), PRECISION: str(precision)}
            plain = ConnectSchema(type="bytes", name=DECIMAL, version=1, parameters=parameters)
        case Array(element=element) if _is_scalar(element):
            plain = ConnectSchema(type="array", items=connect_schema(element, optional=True))
        case _:
            plain = _JSON
    return replace(plain, optional=optional)


def converter(type_: ColumnType, *, as_json: bool) -> Convert:
    """Returns the converter for values of a column of this type.

    `as_json` says that the values will be written as JSON. JSON has no NaN, so the converter raises ValueError for NaN.
    It turns infinity into 1e999: this number is too large for a double, so readers turn it into infinity again.
    """
    match type_:
        case Primitive.FLOAT | Primitive.DOUBLE:
            return _float_in_json if as_json else _float
        case Primitive():
            return _CONVERTERS[type_]
        case Decimal(scale=scale):
            return _decimal(scale)
        case Array(element=element) if _is_scalar(element):
            return _array(converter(element, as_json=as_json))
        case _:
            return bytes.decode


def placeholder(type_: ColumnType) -> Any:
    """Returns the placeholder for a value that the database's log did not send; None if there is none for this type."""
    if type_ is Primitive.BYTES:
        return PLACEHOLDER.encode()
    is_text = type_ in (Primitive.STRING, Primitive.JSON) or connect_schema(type_, optional=True).name == _JSON.name
    return PLACEHOLDER if is_text else None


def key_token(type_: ColumnType, text: str) -> bytes:
    """Converts a value of a key column to a JSON token. `text` is its canonical text (docs/reference/types.md)."""
    match type_:
        case Primitive.BOOLEAN | Primitive.INT | Primitive.LONG | Primitive.JSON:
            return text.encode()
        case Primitive.FLOAT | Primitive.DOUBLE if _NUMBER.fullmatch(text):
            return text.encode()
        case Array() | Map() | Struct() if text[:1] in ("[", "{"):
            return text.encode()
    return msgspec.json.encode(text)


def _is_scalar(type_: ColumnType) -> bool:
    return type_ is not Primitive.JSON and not isinstance(type_, Array | Map | Struct)


def _boolean(token: bytes) -> bool:
    return token == b"true"


def _float(token: bytes) -> float:
    return _UNUSUAL[_strings.decode(token)] if token[:1] == b'"' else float(token)


def _float_in_json(token: bytes) -> Raw:
    if token[:1] != b'"':
        return Raw(token)
    value = _float(token)
    if math.isnan(value):
        raise ValueError("JSON has no NaN")
    return Raw(b"1e999" if value > 0 else b"-1e999")


def _base64(token: bytes) -> bytes:
    return base64.b64decode(_strings.decode(token), validate=True)


def _date(token: bytes) -> int:
    return _days(_strings.decode(token))


def _days(text: str) -> int:
    """Returns how many days after 1970-01-01 a day is, in the proleptic Gregorian calendar."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a day")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if not (year and 1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError("a day with a part that is zero")
    year = 1 - year if match[4] else year
    # Python's dates only have the years 1 to 9999. But the calendar repeats every 400 years, which have 146,097 days.
    cycles, year_in_cycle = divmod(year, 400)
    return date(year_in_cycle + 400, month, day).toordinal() - _EPOCH_DAY + (cycles - 1) * 146_097


def _time(token: bytes) -> int:
    return _clock(_strings.decode(token))


def _clock(text: str) -> int:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("not a time")
    seconds = (int(match[2]) * 60 + int(match[3])) * 60 + int(match[4])
    us = seconds * 1_000_000 + int((match[5] or "").ljust(6, "0"))
    return -us if match[1] else us


def _timestamp(token: bytes) -> int:
    match = _TIMESTAMP.fullmatch(_strings.decode(token))
    if match is None:
        raise ValueError("not a timestamp")
    us = _days(match[1] + (match[3] or "")) * DAY_US + _clock(match[2])
    if us not in _INT64:
        raise ValueError("more microseconds than 64 bits hold")
    return us


def _decimal(scale: int) -> Convert:
    def convert(token: bytes) -> bytes:
        text = _strings.decode(token)
        match = _DECIMAL.fullmatch(text)
        if match is None or len(match[1] or "") != scale:
            raise ValueError("not a number of this scale")
        return decimal_bytes(int(text.replace(".", "")))

    return convert


def _array(element: Convert) -> Convert:
    def convert(token: bytes) -> list[Any]:
        items = [bytes(item) for item in _arrays.decode(token)]
        if any(item[:1] == b"[" for item in items):
            raise ValueError("an array of several dimensions")
        return [None if item == b"null" else element(item) for item in items]

    return convert


_CONVERTERS: Final[dict[Primitive, Convert]] = {
    Primitive.BOOLEAN: _boolean,
    Primitive.INT: int,
    Primitive.LONG: int,
    Primitive.STRING: _strings.decode,
    Primitive.BYTES: _base64,
    Primitive.UUID: _strings.decode,
    Primitive.DATE: _date,
    Primitive.TIME: _time,
    Primitive.TIMESTAMP: _timestamp,
    Primitive.TIMESTAMP_TZ: _strings.decode,
    Primitive.JSON: bytes.decode,
}
