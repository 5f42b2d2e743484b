"""Reads the schemas that Kafka Connect's JsonConverter writes into messages."""

from collections.abc import Mapping
from typing import Any, Final

from changelog.envelope.connect.schema import ConnectSchema

DEPTH_MAX: Final = 64
"""How deep schemas may be nested. Debezium's own schemas have five levels."""


def from_json(schema: Any, depth: int = 0) -> ConnectSchema:
    """Returns the schema that the JsonConverter wrote. Raises ValueError, TypeError or KeyError for anything else."""
    if depth > DEPTH_MAX or not isinstance(schema, Mapping):
        raise ValueError("not a schema")
    return ConnectSchema(
        type=_text(schema["type"]),
        optional=bool(schema.get("optional", False)),
        name=schema.get("name"),
        version=schema.get("version"),
        parameters={str(name): str(value) for name, value in (schema.get("parameters") or {}).items()},
        fields=tuple((_text(field["field"]), from_json(field, depth + 1)) for field in schema.get("fields") or ()),
        items=_inner(schema, "items", depth),
        keys=_inner(schema, "keys", depth),
        values=_inner(schema, "values", depth),
    )


def _inner(schema: Mapping[str, Any], member: str, depth: int) -> ConnectSchema | None:
    return from_json(schema[member], depth + 1) if member in schema else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a name")
    return value


def field(schema: ConnectSchema, name: str) -> ConnectSchema | None:
    """Returns the schema of a struct's field; None if the struct has no such field."""
    return next((inner for field_name, inner in schema.fields if field_name == name), None)
