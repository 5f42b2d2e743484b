"""Defines Kafka Connect's schemas, and writes them in two forms: for Connect's JsonConverter and its Avro converters.

In a message of the JsonConverter, the schema comes before the value: `{"schema": …, "payload": …}`. An Avro converter
maps each schema to an Avro schema. Properties named `connect.*` hold what Avro's own schemas cannot say.
https://kafka.apache.org/41/javadoc/org/apache/kafka/connect/data/Schema.html
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from changelog.schemas.avro import TRUE_NAME, safe

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
PRECISION: Final = "connect.decimal.precision"
SCALE: Final = "scale"

_AVRO: Final = {
    "boolean": "boolean",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectSchema:
    """One schema. `type` is Connect's type as the JsonConverter writes it, such as `int64`.

    For a struct, `name` is its name. For any other schema, `name` is the semantic type, or None. A struct has `fields`,
    in order. `items` is the schema of an array's elements. `keys` and `values` are the schemas of a map's keys and
    values.
    """

    type: str
    optional: bool = False
    name: str | None = None
    version: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[tuple[str, "ConnectSchema"], ...] = ()
    items: "ConnectSchema | None" = None
    keys: "ConnectSchema | None" = None
    values: "ConnectSchema | None" = None


def to_json(schema: ConnectSchema) -> dict[str, Any]:
    """Returns the schema as the JsonConverter writes it."""
    text: dict[str, Any] = {"type": schema.type}
    if schema.type == "struct":
        text["fields"] = [{**to_json(inner), "field": name} for name, inner in schema.fields]
    if schema.items is not None:
        text["items"] = to_json(schema.items)
    text["optional"] = schema.optional
    if schema.name is not None:
        text["name"] = schema.name
    if schema.version is not None:
        text["version"] = schema.version
    if schema.parameters:
        text["parameters"] = dict(schema.parameters)
    return text


def to_avro(schema: ConnectSchema) -> Any:
    """Returns the schema as Connect's Avro converters write it. A struct is defined where it is used first; later uses
    only name it.

    `changelog.schemas.avro.safe` escapes the names of fields.
    """
    return _to_avro(schema, set())


def _to_avro(schema: ConnectSchema, defined: set[str]) -> Any:
    inner = _record(schema, defined) if schema.type == "struct" else _plain(schema, defined)
    return ["null", inner] if schema.optional else inner


def _record(schema: ConnectSchema, defined: set[str]) -> Any:
    assert schema.name is not None
    if schema.name in defined:
        return schema.name
    defined.add(schema.name)
    namespace, _, name = schema.name.rpartition(".")
    members = {"connect.version": schema.version} if schema.version is not None else {}
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [_field(name, inner, defined) for name, inner in schema.fields],
        **members,
        "connect.name": schema.name,
    }


def _field(name: str, schema: ConnectSchema, defined: set[str]) -> dict[str, Any]:
    avro: dict[str, Any] = {"name": safe(name), "type": _to_avro(schema, defined)}
    if schema.optional:
        avro["default"] = None
    if avro["name"] != name:
        avro[TRUE_NAME] = name
    return avro


def _plain(schema: ConnectSchema, defined: set[str]) -> Any:
    if schema.items is not None:
        return {"type": "array", "items": _to_avro(schema.items, defined)}
    base = _AVRO[schema.type]
    if schema.name is None:
        return base
    avro: dict[str, Any] = {"type": base}
    if schema.name == DECIMAL:
        precision, scale = int(schema.parameters[PRECISION]), int(schema.parameters[SCALE])
        avro |= {"scale": scale, "precision": precision, "logicalType": "decimal"}
    if schema.version is not None:
        avro["connect.version"] = schema.version
    if schema.parameters:
        avro["connect.parameters"] = dict(schema.parameters)
    return {**avro, "connect.name": schema.name}
