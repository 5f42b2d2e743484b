"""Converts column types to Avro schemas and back. No other module does this.

`docs/reference/types.md` lists the types. `docs/reference/avro.md` describes how names, nulls and values out of range
are written. Schemas are JSON values, as the Avro 1.12 specification defines them. The same columns always give the same
schema.
"""

import importlib.resources
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

Schema = Any
"""A schema as JSON: a name, a list (a union) or an object."""

STATE = "State"
"""The name of the record with an entity's columns. `envelope.avsc` uses this name but does not define the record."""

TRUE_NAME = "column"
"""The property of a field that stores the column's name, if Avro does not allow this name as the name of a field."""

_PRIMITIVES: dict[Primitive, Schema] = {
    Primitive.BOOLEAN: "boolean",
    Primitive.INT: "int",
    Primitive.LONG: "long",
    Primitive.FLOAT: "float",
    Primitive.DOUBLE: "double",
    Primitive.STRING: "string",
    Primitive.BYTES: "bytes",
    Primitive.UUID: {"type": "string", "logicalType": "uuid"},
    Primitive.DATE: {"type": "int", "logicalType": "date"},
    Primitive.TIME: {"type": "long", "logicalType": "time-micros"},
    Primitive.TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
    Primitive.TIMESTAMP_TZ: {"type": "long", "logicalType": "timestamp-micros"},
    Primitive.JSON: {"type": "string", "format": "json"},
}

_WITH_OUTSIDE = frozenset({Primitive.DATE, Primitive.TIME, Primitive.TIMESTAMP, Primitive.TIMESTAMP_TZ})
"""Primitive types that have values which their Avro types cannot represent, such as an infinite date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of an entity, which is one field of the entity's record."""

    name: str
    type: ColumnType
    nullable: bool


def value_schema(entity: str, shape: Struct, key: Sequence[str], prefix: str) -> dict[str, Any]:
    """Returns the schema of the values in the topic `<prefix>.<entity>`.

    This schema is `envelope.avsc` with the entity's record filled in. The names that it defines are in the namespace
    `<prefix>.<entity>`. Every column may be null, except the columns of `key`.
    """
    return in_envelope(state_schema(entity, shape, key, prefix))


def state_schema(
    entity: str, shape: Struct, key: Sequence[str], prefix: str, *, partition_by: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the record that has an entity's columns. A user's file `schemas/<entity>.avsc` contains this record.

    The property `key` names the columns of the key. The property `partitionBy` names the columns that determine the
    partition of a row's messages; by default these are the columns of the key.
    """
    columns = [Column(name=name, type=type_, nullable=name not in key) for name, type_ in shape.fields]
    return {
        "type": "record",
        "name": STATE,
        "namespace": namespace(prefix, entity),
        "doc": f"The columns of entity {entity}.",
        "key": list(key),
        "partitionBy": list(partition_by or key),
        "fields": _state_fields(columns),
    }


def in_envelope(state: Schema) -> dict[str, Any]:
    """Returns the schema of an entity's values: `envelope.avsc` with the columns of the record `state` filled in.

    The result has the namespace of `state`, but not its properties `key` and `partitionBy`.
    """
    return {"namespace": state["namespace"], **_filled(_envelope(), state["fields"])}


def registered(state: Schema) -> dict[str, Any]:
    """Returns the schema that the service registers for the columns of `state`.

    If people added properties to `state`, these are left out. Raises ValueError if `state` is not a record that
    `state_schema` makes.
    """
    return in_envelope({**state, "fields": _state_fields(state_columns(state))})


def columns(schema: Schema) -> tuple[Column, ...]:
    """Returns the columns of an entity. `schema` is the schema that `value_schema` made for the entity's values.

    Raises ValueError if it is not such a schema.
    """
    try:
        _, state = next(field["type"] for field in schema["fields"] if field["name"] == "current")
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise ValueError("the schema is not that of an envelope") from error
    return state_columns(state)


def state_columns(state: Schema) -> tuple[Column, ...]:
    """Returns the columns of a record that `state_schema` made. Raises ValueError for any other record."""
    try:
        return tuple(_column(field) for field in state["fields"])
    except (KeyError, TypeError) as error:
        raise ValueError("the schema is not that of an entity's columns") from error


def state_shape(state: Schema) -> Struct:
    """Returns the `shape` from which `state_schema` made the record. Raises ValueError for any other record."""
    return Struct(fields=tuple((column.name, column.type) for column in state_columns(state)))


def namespace(prefix: str, entity: str) -> str:
    """Returns the namespace of an entity's records: `<prefix>.<entity>`, with each part escaped by `safe`."""
    return ".".join(safe(part) for part in (*prefix.split("."), entity))


def entity_of(state: Schema) -> tuple[str, str] | None:
    """Returns the prefix and the entity for which `state_schema` made a record; None for any other schema."""
    match state:
        case {"type": "record", "name": "State", "namespace": str(dotted)} if "." in dotted:
            *prefix, entity = map(true_name, dotted.split("."))
            return ".".join(prefix), entity
    return None


def closed(schema: Schema) -> Schema:
    """Completes the schema in `envelope.avsc`, which uses the name `State` but does not define it: adds a record
    `State` that has no columns. Returns any other schema unchanged.
    """
    match schema:
        case {"fields": [*_, {"name": "current", "type": ["null", "State"]}, _]}:
            return _filled(schema, [])
    return schema


def has_outside(type_: ColumnType) -> bool:
    """Returns whether some values of this type do not fit the Avro type and are written as strings.

    `docs/reference/types.md` marks these types with †.
    """
    return type_ in _WITH_OUTSIDE or isinstance(type_, Decimal | Array | Struct)


def to_avro(type_: ColumnType, *, nullable: bool, path: Sequence[str] = ()) -> Schema:
    """Converts a column type to Avro. `path` has the names that lead from the entity's record to this type. The names
    of records inside the type are made from it.
    """
    branches = ["null"] * nullable + [_inside(type_, path)] + ["string"] * has_outside(type_)
    return branches if len(branches) > 1 else branches[0]


def of_avro(schema: Schema) -> tuple[ColumnType, bool]:
    """Returns the type from which `to_avro` made the schema, and whether its values may be null.

    Raises ValueError for any other schema.
    """
    branches = schema if isinstance(schema, list) else [schema]
    nullable = branches[0] == "null"
    type_ = _of_inside(branches[int(nullable)])
    if len(branches) - nullable != 1 + has_outside(type_):
        raise ValueError("a union is not one that this project writes")
    return type_, nullable


def safe(name: str) -> str:
    """Escapes `name` to a name that Avro allows, `[A-Za-z_][A-Za-z0-9_]*`; `true_name` is the inverse.

    Each character that Avro does not allow becomes `_xHHHH_`, or `_xHHHHHH_` above U+FFFF; the H are its code in hex. A
    `_` before an `x` is escaped, too. ISO/IEC 9075-14, section 9.1, makes XML names from SQL names in the same way.
    """
    return re.sub(r"_(?=x)|[^A-Za-z0-9_]|^[0-9]", lambda match: f"_x{_hex(ord(match[0]))}_", name)


def true_name(name: str) -> str:
    """Returns the name from which `safe` made this one."""
    return re.sub(r"_x([0-9A-F]{6}|[0-9A-F]{4})_", lambda match: chr(int(match[1], 16)), name)


def delta_schema() -> dict[str, Any]:
    """Returns the schema of deltas, which is the same for all entities."""
    schema: dict[str, Any] = json.loads(_text("delta.avsc"))
    return schema


def _filled(envelope: Schema, columns: list[dict[str, Any]]) -> dict[str, Any]:
    state = ["null", {"type": "record", "name": STATE, "fields": columns}]
    fields = [{**field, "type": state} if field["name"] == "current" else field for field in envelope["fields"]]
    return {**envelope, "fields": fields}


def _envelope() -> dict[str, Any]:
    # For a registry, a schema with other `doc` texts is another schema. So if these texts changed in envelope.avsc or
    # delta.avsc, users without `auto_register` would have to register all schemas again before they upgrade.
    envelope: dict[str, Any] = json.loads(_text("envelope.avsc"))
    return envelope


@cache
def _text(name: str) -> str:
    return importlib.resources.files("changelog.schemas").joinpath(name).read_text("utf-8")


def _hex(code: int) -> str:
    return f"{code:04X}" if code <= 0xFFFF else f"{code:06X}"


def _record_name(path: Iterable[str]) -> str:
    """Returns a unique name for the record at a path: the path as a JSON pointer (RFC 6901), escaped by `safe`."""
    return safe("/".join(part.replace("~", "~0").replace("/", "~1") for part in path))


def _field(name: str, type_: ColumnType, path: Sequence[str], *, nullable: bool, default: bool) -> dict[str, Any]:
    field: dict[str, Any] = {"name": safe(name), "type": to_avro(type_, nullable=nullable, path=path)}
    if default:
        field["default"] = None
    if field["name"] != name:
        field[TRUE_NAME] = name
    return field


def _state_fields(columns: Iterable[Column]) -> list[dict[str, Any]]:
    return [
        _field(column.name, column.type, [STATE, column.name], nullable=column.nullable, default=column.nullable)
        for column in columns
    ]


def _inside(type_: ColumnType, path: Sequence[str]) -> Schema:
    match type_:
        case Primitive():
            schema = _PRIMITIVES[type_]
            return dict(schema) if isinstance(schema, dict) else schema
        case Decimal(precision=precision, scale=scale):
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        case Array(element=element):
            return {"type": "array", "items": to_avro(element, nullable=True, path=path)}
        case Map(value=value):
            return {"type": "map", "values": to_avro(value, nullable=True, path=path)}
        case Struct(fields=members):
            fields = [_field(name, member, [*path, name], nullable=True, default=True) for name, member in members]
            return {"type": "record", "name": _record_name(path), "fields": fields}


def _column(field: dict[str, Any]) -> Column:
    type_, nullable = of_avro(field["type"])
    return Column(name=true_name(field["name"]), type=type_, nullable=nullable)


def _of_inside(schema: Schema) -> ColumnType:
    match schema:
        case {"type": "bytes", "logicalType": "decimal", "precision": int(precision)}:
            return Decimal(precision=precision, scale=schema.get("scale", 0))  # a registry may omit a scale of 0
        case {"type": "array", "items": items}:
            return Array(element=of_avro(items)[0])
        case {"type": "map", "values": values}:
            return Map(value=of_avro(values)[0])
        case {"type": "record", "fields": fields}:
            return Struct(fields=tuple((column.name, column.type) for column in map(_column, fields)))
    for primitive, avro in _PRIMITIVES.items():
        if schema == avro or schema == {"type": avro}:
            return primitive
    raise ValueError("a type is not one that this project writes")
