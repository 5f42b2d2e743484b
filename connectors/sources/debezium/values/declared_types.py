"""Parses the column types that `[entities.X.types]` declares. Only JSON messages without a schema need such types.

A declared type is either a *neutral* type, which the changelog has for all databases, such as `long`, `decimal(12,2)`
or `array(string)`, or a semantic type of Debezium or Kafka Connect. A semantic type is declared by its full name or the
last part of the name: `io.debezium.time.MicroTimestamp`, `MicroTimestamp`, `Bits(4)`, `Decimal(12,2)`. A neutral type
accepts only values whose meaning does not depend on Debezium's settings. So if a time is a number, its column needs a
semantic type, which says what the number counts.
"""

import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal as Number
from decimal import InvalidOperation
from typing import Any, Final

from changelog.connectors.sources.debezium.values import scalars, temporal
from changelog.connectors.sources.debezium.values.semantics import SEMANTIC_TYPES, Semantics, parsed, semantics
from changelog.envelope.connect.schema import DECIMAL, PRECISION, SCALE, ConnectSchema
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, Decimal, Primitive

_DECLARED: Final = re.compile(r"([A-Za-z_.0-9]+)(?:\((.*)\))?")
_NUMBERS: Final = re.compile(r"\s*(\d{1,5})\s*(?:,\s*(\d{1,5})\s*)?")

_BASES: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
}
ENCODINGS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "bytes": lambda text: b64decode(text, validate=True),
    "base64": lambda text: b64decode(text, validate=True),
    "base64-url-safe": lambda text: urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)),
    "hex": bytes.fromhex,
}
"""For each value of Debezium's setting `binary.handling.mode`: how to decode the text that JSON has for bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredType:
    """A declared type: the schema that a value has in a message, and how it is published."""

    schema: ConnectSchema
    semantics: Semantics


def declared_type(text: str, connector: str) -> DeclaredType:
    """Returns the type that `text` declares, for values of this connector.

    Raises ChangelogError (USAGE) if there is no such type.
    """
    match = _DECLARED.fullmatch(text.strip())
    declared = None if match is None else _declared(match[1], match[2], connector)
    if declared is None:
        raise ChangelogError(
            Kind.USAGE,
            f"there is no type {text!r}",
            hint="use a neutral type (docs/reference/types.md), or a semantic type (docs/reference/debezium-events.md)",
        )
    return declared


def _declared(name: str, arguments: str | None, connector: str) -> DeclaredType | None:
    numbers = _NUMBERS.fullmatch(arguments or "")
    if name in _BASES and arguments is None:
        return _of(ConnectSchema(type=_BASES[name], optional=True), connector)
    if name in _NEUTRAL and arguments is None:
        return _NEUTRAL[name]
    if name == "bytes" and (arguments or "base64") in ENCODINGS:
        render = scalars.spelled_binary(ENCODINGS[arguments or "base64"])
        return _text(Semantics(column_type=Primitive.BYTES, render=render))
    if name == "decimal" and numbers and numbers[2]:
        return _decimal(int(numbers[1]), int(numbers[2]))
    if name == "array" and arguments:
        return _array(arguments, connector)
    return _semantic(name, arguments, numbers, connector)


def _semantic(name: str, arguments: str | None, numbers: re.Match[str] | None, connector: str) -> DeclaredType | None:
    full = next((semantic for semantic in SEMANTIC_TYPES if name in (semantic, semantic.rpartition(".")[2])), None)
    if full is None or (arguments is not None and numbers is None):
        return None
    parameters: dict[str, str] = {}
    if full == DECIMAL:
        if numbers is None:
            return None
        parameters = {SCALE: numbers[2], PRECISION: numbers[1]} if numbers[2] else {SCALE: numbers[1]}
    elif full == "io.debezium.data.Bits":
        parameters = {"length": numbers[1] if numbers else "0"}
    elif arguments is not None:
        return None
    type_ = SEMANTIC_TYPES[full]
    return _of(ConnectSchema(type=type_, name=full, optional=True, parameters=parameters), connector)


def _of(schema: ConnectSchema, connector: str) -> DeclaredType:
    return DeclaredType(schema=schema, semantics=semantics(schema, connector, lambda _: None))


def _text(semantics_: Semantics) -> DeclaredType:
    return DeclaredType(schema=ConnectSchema(type="string", optional=True), semantics=semantics_)


def _array(element_text: str, connector: str) -> DeclaredType:
    element = declared_type(element_text, connector)

    def render(value: Any) -> bytes:
        if type(value) is not list:
            raise TypeError("not an array")
        return b"[%b]" % b",".join([b"null" if item is None else element.semantics.render(item) for item in value])

    return DeclaredType(
        schema=ConnectSchema(type="array", items=element.schema, optional=True),
        semantics=Semantics(column_type=Array(element=element.semantics.column_type), render=render),
    )


def _decimal(precision: int, scale: int) -> DeclaredType | None:
    if scale > precision:
        return None
    number = scalars.decimal(scale)

    def render(value: Any) -> bytes:
        if value in ("NaN", "Infinity", "-Infinity"):
            return f'"{value}"'.encode()
        try:
            return number(Number(value))
        except InvalidOperation:
            raise ValueError("not a number") from None

    return _text(Semantics(column_type=Decimal(precision=precision, scale=scale), render=render))


def _spelled(convert: Callable[[str], bytes]) -> Callable[[Any], bytes]:
    def render(value: Any) -> bytes:
        if type(value) is not str:
            raise TypeError("not a string: a semantic type says what a number counts")
        return b'"%b"' % convert(value)

    return render


def _day(value: Any) -> bytes:
    return b'"%b"' % (temporal.day(value) if type(value) is int else temporal.from_iso_date(value))


def _document(token: bytes) -> bytes:
    """Converts the token of a JSON document: the document itself, or a string that contains the document's text."""
    return scalars.embedded(parsed(token)) if token.startswith(b'"') else token


_NEUTRAL: Final = {
    "uuid": _text(Semantics(column_type=Primitive.UUID, render=scalars.uuid)),
    "date": _text(Semantics(column_type=Primitive.DATE, render=_day)),
    "time": _text(Semantics(column_type=Primitive.TIME, render=_spelled(temporal.from_iso_clock))),
    "timestamp": _text(Semantics(column_type=Primitive.TIMESTAMP, render=_spelled(temporal.from_iso_timestamp))),
    "timestamp_tz": _text(Semantics(column_type=Primitive.TIMESTAMP_TZ, render=_spelled(temporal.from_zoned))),
    "json": _text(Semantics(column_type=Primitive.JSON, render=scalars.embedded, of_token=_document)),
}
