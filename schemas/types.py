"""Defines the neutral column types: the types of published values, which are the same for all databases.

`docs/reference/types.md` says which types of Avro and Spark the column types become. Every value may be null. A value
outside of its type's usual range (an infinite date, a numeric NaN, an array with lower bounds other than 1) is
published as a string. The same page lists these values.
"""

from dataclasses import dataclass
from enum import StrEnum


class Primitive(StrEnum):
    """A type without parameters."""

    BOOLEAN = "boolean"
    INT = "int"  # 32 bits, signed
    LONG = "long"  # 64 bits, signed
    FLOAT = "float"  # IEEE 754, 32 bits; NaN and infinities are strings
    DOUBLE = "double"  # IEEE 754, 64 bits; NaN and infinities are strings
    STRING = "string"
    BYTES = "bytes"  # base64, RFC 4648 section 4
    UUID = "uuid"
    DATE = "date"  # YYYY-MM-DD
    TIME = "time"  # time of day, without a zone
    TIMESTAMP = "timestamp"  # ISO 8601, microseconds, without a zone
    TIMESTAMP_TZ = "timestamp_tz"  # ISO 8601, microseconds, UTC
    JSON = "json"  # any JSON value, embedded


@dataclass(frozen=True, slots=True, kw_only=True)
class Decimal:
    """A decimal number of at most `precision` digits, of which `scale` are after the point. In JSON it is a string."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A list. An array of several dimensions has the same type as an array of one dimension; in JSON, it is a list of
    lists.
    """

    element: "ColumnType"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A JSON object with any member names; every member has the type `value`."""

    value: "ColumnType"


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """A JSON object with these members, in this order."""

    fields: tuple[tuple[str, "ColumnType"], ...]


ColumnType = Primitive | Decimal | Array | Map | Struct


def to_json(type_: ColumnType) -> object:
    """Converts a type to a JSON value.

    Examples: `"long"`, `{"decimal": [12, 2]}`, `{"array": "string"}`, `{"map": "string"}`,
    `{"struct": [["a", "int"], …]}`.
    """
    match type_:
        case Primitive():
            return type_.value
        case Decimal():
            return {"decimal": [type_.precision, type_.scale]}
        case Array():
            return {"array": to_json(type_.element)}
        case Map():
            return {"map": to_json(type_.value)}
        case Struct():
            return {"struct": [[name, to_json(field)] for name, field in type_.fields]}


def from_json(value: object) -> ColumnType:
    """Returns the type from which `to_json` made the value. Raises ValueError for any other value."""
    match value:
        case str():
            return Primitive(value)
        case {"decimal": [int(precision), int(scale)]}:
            return Decimal(precision=precision, scale=scale)
        case {"array": element}:
            return Array(element=from_json(element))
        case {"map": member}:
            return Map(value=from_json(member))
        case {"struct": [*fields]}:
            return Struct(fields=tuple(_field(field) for field in fields))
    raise ValueError(f"not a column type: {value!r}")


def _field(value: object) -> tuple[str, ColumnType]:
    match value:
        case [str(name), type_]:
            return name, from_json(type_)
    raise ValueError(f"not a field of a struct: {value!r}")
