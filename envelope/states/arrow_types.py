"""Converts column types to Arrow's types, and makes the Arrow schema of an entity's states."""

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from changelog.envelope.states.fold import ABOUT, BEGUN_FIELD
from changelog.schemas.avro import Column
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

_PRIMITIVES: Final[Mapping[Primitive, pa.DataType]] = {
    Primitive.BOOLEAN: pa.bool_(),
    Primitive.INT: pa.int32(),
    Primitive.LONG: pa.int64(),
    Primitive.FLOAT: pa.float32(),
    Primitive.DOUBLE: pa.float64(),
    Primitive.STRING: pa.utf8(),
    Primitive.BYTES: pa.binary(),
    Primitive.UUID: pa.utf8(),
    Primitive.DATE: pa.date32(),
    Primitive.TIME: pa.utf8(),
    Primitive.TIMESTAMP: pa.timestamp("us"),
    Primitive.TIMESTAMP_TZ: pa.timestamp("us", tz="UTC"),
    Primitive.JSON: pa.utf8(),
}


def to_arrow(type_: ColumnType) -> pa.DataType:
    """Returns the Arrow type of a column. Spark's own type for the column is `changelog.schemas.spark.to_spark(type_)`;
    Spark converts values of that type to this Arrow type.
    """
    match type_:
        case Primitive():
            return _PRIMITIVES[type_]
        case Decimal(precision=precision, scale=scale):
            return pa.decimal128(precision, scale) if precision <= DIGITS_MAX else pa.utf8()
        case Array(element=element):
            return pa.list_(pa.field("element", to_arrow(element)))
        case Map(value=value):
            return pa.map_(pa.utf8(), pa.field("value", to_arrow(value)))
        case Struct(fields=fields):
            return pa.struct([pa.field(name, to_arrow(field)) for name, field in fields])


def states_schema(columns: Iterable[Column]) -> pa.Schema:
    """Returns the schema of the batches that `changelog.envelope.states.fold.fold` yields for these columns."""
    return pa.schema([*(pa.field(column.name, to_arrow(column.type)) for column in columns), *ABOUT, BEGUN_FIELD])
