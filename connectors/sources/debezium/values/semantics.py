"""Defines how the values of each semantic type are published: the type of the column, and the JSON of a value.

A semantic type is a schema of Kafka Connect with a name, such as `io.debezium.time.Date`. A schema without a name is a
base type. `docs/reference/debezium-events.md` has the table for users.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-data-types
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal as Number
from typing import Any, Final

import msgspec

from changelog.connectors.capture.rows.codec import string
from changelog.connectors.sources.debezium.values import temporal, usual_tokens
from changelog.connectors.sources.debezium.values.infinity import INFINITE
from changelog.connectors.sources.debezium.values.scalars import (
    Render,
    binary,
    bits,
    boolean,
    decimal,
    double,
    embedded,
    geometry,
    integer,
    postgres_point,
    single,
    text,
    uuid,
    variable_decimal,
)
from changelog.envelope.connect.schema import DECIMAL, PRECISION, SCALE, ConnectSchema
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

Warn = Callable[[str], None]
"""Takes the name of an unknown semantic type. The type's values are published as those of its base type."""

GEOMETRY_TYPE: Final = Struct(fields=(("srid", Primitive.LONG), ("wkb", Primitive.BYTES)))

_INTEGERS = frozenset({Primitive.INT, Primitive.LONG})
_Usual = Callable[[Render, Callable[[bytes], Any]], Callable[[bytes], bytes]]

_values: Final = msgspec.json.Decoder(float_hook=Number)

_MILLI, _MICRO, _NANO = 1_000_000, 1_000, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """How the values of a column are published.

    `render` takes a value that is not null, as a decoder of JSON or Avro returns it, and returns its JSON. It raises
    ValueError, TypeError, KeyError or OverflowError for a value that the semantic type does not have. `passes` says
    that a JSON token without escapes is published as it is. `of_token`, if there is one, converts a JSON token; it is
    used in place of a parser and `render`.
    """

    column_type: ColumnType
    render: Render
    passes: bool = False
    of_token: Callable[[bytes], bytes] | None = None


def semantics(schema: ConnectSchema, connector: str, warn: Warn) -> Semantics:
    """Returns how values of `schema` are published.

    `connector` is the name of Debezium's connector, such as `postgresql`. Some types are published as our own source
    for that database publishes them.
    """
    if schema.type in _NESTED:
        return _NESTED[schema.type](schema, connector, warn)
    name = schema.name
    if name is None:
        return _base(schema)
    if name == DECIMAL:
        return _decimal(schema)
    if name == "io.debezium.data.Bits":
        return Semantics(column_type=Primitive.STRING, render=bits(int(schema.parameters.get("length", 0))))
    scalar = _SCALARS.get(name)
    if scalar is None:
        warn(name)
        return _base(schema)
    if connector == "postgresql" and name in INFINITE:
        return _or_infinite(scalar, INFINITE[name])
    return scalar


def _or_infinite(column: Semantics, infinite: Mapping[Any, bytes]) -> Semantics:
    """Returns the semantics `column`, changed only for PostgreSQL's infinite values."""

    def render(value: Any) -> bytes:
        text = infinite.get(value)
        return column.render(value) if text is None else b'"%b"' % text

    of_token = None if column.of_token is None else usual_tokens.counted(render, parsed)
    return Semantics(column_type=column.column_type, render=render, of_token=of_token)


def _base(schema: ConnectSchema) -> Semantics:
    if schema.type not in _BASES:
        raise ValueError(f"there is no type {schema.type} in Kafka Connect")
    return _BASES[schema.type]


def _decimal(schema: ConnectSchema) -> Semantics:
    scale = int(schema.parameters[SCALE])
    precision = int(schema.parameters.get(PRECISION, 0))
    column_type: ColumnType = Primitive.STRING
    if 0 <= scale <= precision:
        column_type = Decimal(precision=precision, scale=scale)
    render = decimal(scale)
    return Semantics(column_type=column_type, render=render, of_token=usual_tokens.decimal(render, parsed, scale))


def _array(schema: ConnectSchema, connector: str, warn: Warn) -> Semantics:
    element = semantics(_inner(schema.items), connector, warn)

    def render(value: Any) -> bytes:
        if type(value) is not list:
            raise TypeError("not an array")
        return b"[%b]" % b",".join([b"null" if item is None else element.render(item) for item in value])

    return Semantics(column_type=Array(element=element.column_type), render=render)


def _map(schema: ConnectSchema, connector: str, warn: Warn) -> Semantics:
    value_semantics = semantics(_inner(schema.values), connector, warn)
    key_semantics = semantics(_inner(schema.keys), connector, warn)

    def render(value: Any) -> bytes:
        return _object((_name(key_semantics.render(key)), value_semantics, inner) for key, inner in _pairs(value))

    return Semantics(column_type=Map(value=value_semantics.column_type), render=render)


def _pairs(value: Any) -> Any:
    """Returns the keys and the values of a map. A map whose keys are not strings is a list: in JSON of pairs, in Avro
    of objects that have a key and a value.
    """
    if isinstance(value, dict):
        return value.items()
    return [(item["key"], item["value"]) if isinstance(item, dict) else (item[0], item[1]) for item in value]


def _name(token: bytes) -> bytes:
    return token if token.startswith(b'"') else string(token)


def _struct(schema: ConnectSchema, connector: str, warn: Warn) -> Semantics:
    if schema.name in _STRUCTS:
        return _STRUCTS[schema.name](schema, connector, warn)
    fields = [(name, string(name.encode()), semantics(inner, connector, warn)) for name, inner in schema.fields]

    def render(value: Any) -> bytes:
        return _object((label, inner, value.get(name)) for name, label, inner in fields)

    column_type = Struct(fields=tuple((name, inner.column_type) for name, _, inner in fields))
    return Semantics(column_type=column_type, render=render)


def _point(schema: ConnectSchema, connector: str, warn: Warn) -> Semantics:
    if connector == "postgresql":
        return Semantics(column_type=Primitive.STRING, render=postgres_point)
    return _geometry(schema, connector, warn)


def _geometry(_schema: ConnectSchema, _connector: str, _warn: Warn) -> Semantics:
    return Semantics(column_type=GEOMETRY_TYPE, render=geometry)


def _variable_decimal(_schema: ConnectSchema, _connector: str, _warn: Warn) -> Semantics:
    return Semantics(column_type=Primitive.STRING, render=variable_decimal)


def _inner(schema: ConnectSchema | None) -> ConnectSchema:
    if schema is None:
        raise ValueError("an array or a map without the type of its elements")
    return schema


def _object(members: Any) -> bytes:
    return b"{%b}" % b",".join(
        [label + b":" + (b"null" if value is None else inner.render(value)) for label, inner, value in members]
    )


def _counted(print_: Callable[[int], bytes], unit_ns: int) -> Render:
    """Returns the renderer for numbers that count units of `unit_ns` nanoseconds."""

    def render(value: Any) -> bytes:
        if type(value) is not int:
            raise TypeError("not an integer")
        return b'"%b"' % print_(value * unit_ns)

    return render


def _moment(unit_ns: int) -> Render:
    def render(value: Any) -> bytes:
        if type(value) is not int:
            raise TypeError("not an integer")
        return b'"%b"' % temporal.timestamp(value * unit_ns)

    return render


def _spelled(convert: Callable[[str], bytes]) -> Render:
    """Returns the renderer for times that are strings in the event. PostgreSQL's infinite times stay as they are."""

    def render(value: Any) -> bytes:
        if type(value) is not str:
            raise TypeError("not a string")
        return b'"%b"' % (value.encode() if value in ("infinity", "-infinity") else convert(value))

    return render


def _zoned_time(value: str) -> bytes:
    """Converts a time with a zone to PostgreSQL's form. Debezium converts times to UTC, so `value` ends with `Z`; the
    result ends with `+00`. Any other text stays as it is.
    """
    return temporal.from_iso_clock(value) + b"+00" if value.endswith("Z") else value.encode("ascii")


def parsed(token: bytes) -> Any:
    """Returns a JSON value for `Semantics.render`. Raises ValueError or RecursionError."""
    return _values.decode(token)


def _of(column_type: ColumnType, render: Render, usual: _Usual | None = None) -> Semantics:
    passes = render in (text, boolean) or column_type in _INTEGERS
    of_token = None if usual is None else usual(render, parsed)
    return Semantics(column_type=column_type, render=render, passes=passes, of_token=of_token)


_BASES: Final[Mapping[str, Semantics]] = {
    "boolean": _of(Primitive.BOOLEAN, boolean),
    "int8": _of(Primitive.INT, integer(8)),
    "int16": _of(Primitive.INT, integer(16)),
    "int32": _of(Primitive.INT, integer(32)),
    "int64": _of(Primitive.LONG, integer(64)),
    "float": _of(Primitive.FLOAT, single),
    "double": _of(Primitive.DOUBLE, double, usual_tokens.double),
    "string": _of(Primitive.STRING, text),
    "bytes": _of(Primitive.BYTES, binary),
}

_COUNTED: Final[Mapping[str, Semantics]] = {
    "io.debezium.time.Date": _of(Primitive.DATE, _counted(temporal.day, 1), usual_tokens.counted),
    "io.debezium.time.Time": _of(Primitive.TIME, _counted(temporal.clock, _MILLI), usual_tokens.counted),
    "io.debezium.time.MicroTime": _of(Primitive.TIME, _counted(temporal.clock, _MICRO), usual_tokens.counted),
    "io.debezium.time.NanoTime": _of(Primitive.TIME, _counted(temporal.clock, _NANO), usual_tokens.counted),
    "io.debezium.time.Timestamp": _of(Primitive.TIMESTAMP, _moment(_MILLI), usual_tokens.counted),
    "io.debezium.time.MicroTimestamp": _of(Primitive.TIMESTAMP, _moment(_MICRO), usual_tokens.counted),
    "io.debezium.time.NanoTimestamp": _of(Primitive.TIMESTAMP, _moment(_NANO), usual_tokens.counted),
    "io.debezium.time.MicroDuration": _of(Primitive.STRING, _counted(temporal.duration, _MICRO), usual_tokens.counted),
    "io.debezium.time.NanoDuration": _of(Primitive.STRING, _counted(temporal.duration, _NANO), usual_tokens.counted),
    "io.debezium.time.Year": _of(Primitive.INT, integer(32)),
    "org.apache.kafka.connect.data.Date": _of(Primitive.DATE, _counted(temporal.day, 1), usual_tokens.counted),
    "org.apache.kafka.connect.data.Time": _of(Primitive.TIME, _counted(temporal.clock, _MILLI), usual_tokens.counted),
    "org.apache.kafka.connect.data.Timestamp": _of(Primitive.TIMESTAMP, _moment(_MILLI), usual_tokens.counted),
}

_SCALARS: Final[Mapping[str, Semantics]] = {
    **_COUNTED,
    "io.debezium.time.ZonedTime": _of(Primitive.STRING, _spelled(_zoned_time)),
    "io.debezium.time.ZonedTimestamp": _of(Primitive.TIMESTAMP_TZ, _spelled(temporal.from_zoned), usual_tokens.zoned),
    "io.debezium.time.IsoDate": _of(Primitive.DATE, _spelled(temporal.from_iso_date)),
    "io.debezium.time.IsoTime": _of(Primitive.TIME, _spelled(temporal.from_iso_clock)),
    "io.debezium.time.IsoTimestamp": _of(Primitive.TIMESTAMP, _spelled(temporal.from_iso_timestamp)),
    "io.debezium.time.Interval": _of(Primitive.STRING, _spelled(temporal.from_iso_duration)),
    "io.debezium.data.Enum": _of(Primitive.STRING, text),
    "io.debezium.data.EnumSet": _of(Primitive.STRING, text),
    "io.debezium.data.Json": _of(Primitive.JSON, embedded, usual_tokens.document),
    "io.debezium.data.Xml": _of(Primitive.STRING, text),
    "io.debezium.data.Uuid": _of(Primitive.UUID, uuid),
    "io.debezium.data.Ltree": _of(Primitive.STRING, text),
    "io.debezium.data.Tsvector": _of(Primitive.STRING, text),
}

_STRUCTS: Final[Mapping[str | None, Callable[[ConnectSchema, str, Warn], Semantics]]] = {
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "io.debezium.data.geometry.Point": _point,
    "io.debezium.data.geometry.Geometry": _geometry,
    "io.debezium.data.geometry.Geography": _geometry,
}

SEMANTIC_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(_SCALARS, "string"),
    **dict.fromkeys(filter(None, _STRUCTS), "struct"),
    **dict.fromkeys(_COUNTED, "int64"),
    DECIMAL: "bytes",
    "io.debezium.data.Bits": "bytes",
}
"""The names of the semantic types, and the base type of each; `int64` stands for all integers."""

_NESTED: Final[Mapping[str, Callable[[ConnectSchema, str, Warn], Semantics]]] = {
    "array": _array,
    "map": _map,
    "struct": _struct,
}
