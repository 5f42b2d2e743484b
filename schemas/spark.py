"""Converts column types to Spark's types and back. A Spark type is given here as the JSON that Spark itself writes for
it.

`docs/reference/types.md` lists which types match. Several column types become the same type of Spark. If Spark's type
does not show the column type, the field's metadata stores it, under `COLUMN_TYPE`.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct, from_json, to_json

COLUMN_TYPE: Final = "changelog"
"""The member of a field's metadata that stores its column type, as `changelog.schemas.types.to_json` writes it."""

DIGITS_MAX: Final = 38
"""The largest precision of a decimal in Spark. A column with a larger precision becomes a string."""

SparkType = Any
"""A type as Spark writes it in JSON: a name, or an object with the member `type`."""

_PRIMITIVES: Final[dict[Primitive, str]] = {
    Primitive.BOOLEAN: "boolean",
    Primitive.INT: "integer",
    Primitive.LONG: "long",
    Primitive.FLOAT: "float",
    Primitive.DOUBLE: "double",
    Primitive.STRING: "string",
    Primitive.BYTES: "binary",
    Primitive.UUID: "string",
    Primitive.DATE: "date",
    Primitive.TIME: "string",
    Primitive.TIMESTAMP: "timestamp_ntz",
    Primitive.TIMESTAMP_TZ: "timestamp",
    Primitive.JSON: "string",
}

_PLAIN: Final = {name: type_ for type_, name in reversed(_PRIMITIVES.items())} | {
    "byte": Primitive.INT,
    "short": Primitive.INT,
    "string": Primitive.STRING,
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def to_spark(type_: ColumnType) -> SparkType:
    """Converts a column type to Spark's type. Elements of arrays, values of maps and fields of structs may be null."""
    match type_:
        case Primitive():
            return _PRIMITIVES[type_]
        case Decimal(precision=precision, scale=scale):
            return f"decimal({precision},{scale})" if precision <= DIGITS_MAX else "string"
        case Array(element=element):
            return {"type": "array", "elementType": to_spark(element), "containsNull": True}
        case Map(value=value):
            return {"type": "map", "keyType": "string", "valueType": to_spark(value), "valueContainsNull": True}
        case Struct(fields=fields):
            return struct(Column(name=name, type=field, nullable=True) for name, field in fields)


def struct(columns: Iterable[Column]) -> SparkType:
    """Returns Spark's type of a row with these columns."""
    return {"type": "struct", "fields": [_field(column) for column in columns]}


def of_spark(spark_type: SparkType) -> ColumnType:
    """Converts a Spark type to a column type. Raises ValueError for a type that no published value has.

    A Spark string becomes STRING, even if the metadata of its field stores another type: only `columns` reads metadata.
    """
    match spark_type:
        case str() if spark_type in _PLAIN:
            return _PLAIN[spark_type]
        case str() if match_ := _DECIMAL.fullmatch(spark_type):
            return Decimal(precision=int(match_[1]), scale=int(match_[2]))
        case {"type": "array", "elementType": element}:
            return Array(element=of_spark(element))
        case {"type": "map", "keyType": "string", "valueType": value}:
            return Map(value=of_spark(value))
        case {"type": "struct"}:
            return Struct(fields=tuple((column.name, column.type) for column in columns(spark_type)))
    raise ValueError(f"no published value has Spark's type {str(spark_type)[:80]}")


def columns(spark_type: SparkType) -> tuple[Column, ...]:
    """Returns the columns from which `struct` made the type. Raises ValueError for any other type."""
    match spark_type:
        case {"type": "struct", "fields": [*fields]}:
            return tuple(_column(field) for field in fields)
    raise ValueError("the Spark type is not a struct")


def _field(column: Column) -> dict[str, Any]:
    spark_type = to_spark(column.type)
    metadata = {} if of_spark(spark_type) == column.type else {COLUMN_TYPE: to_json(column.type)}
    return {"name": column.name, "type": spark_type, "nullable": column.nullable, "metadata": metadata}


def _column(field: dict[str, Any]) -> Column:
    column_type = field.get("metadata", {}).get(COLUMN_TYPE)
    type_ = of_spark(field["type"]) if column_type is None else from_json(column_type)
    return Column(name=field["name"], type=type_, nullable=field["nullable"])
