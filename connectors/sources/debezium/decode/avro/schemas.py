"""Translates Avro schemas back into the schemas of Kafka Connect from which an Avro converter made them.

In the properties `connect.*`, the converter stores what Avro has no place for.
"""

from collections.abc import Mapping
from typing import Any, Final

from changelog.connectors.sources.debezium.decode.schemas import DEPTH_MAX
from changelog.envelope.connect.schema import DECIMAL, PRECISION, SCALE, ConnectSchema

_TYPES: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "fixed": "bytes",
    "enum": "string",
}


def from_avro(schema: Any) -> ConnectSchema:
    """Returns the schema of Kafka Connect. Raises ValueError, TypeError or KeyError if no converter made `schema`."""
    return _Reader().read(schema, "", 0)


class _Reader:
    """Reads one schema. `_records` has the records that were defined so far, by their full names."""

    def __init__(self) -> None:
        self._records: dict[str, ConnectSchema] = {}

    def read(self, schema: Any, namespace: str, depth: int) -> ConnectSchema:
        if depth > DEPTH_MAX:
            raise ValueError("schemas inside each other")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return self._named(schema, namespace)
        type_ = schema["type"]
        if type_ == "record":
            return self._record(schema, namespace, depth)
        if type_ == "array":
            return self._array(schema, namespace, depth)
        if type_ == "map":
            values = self.read(schema["values"], namespace, depth + 1)
            return ConnectSchema(type="map", keys=ConnectSchema(type="string"), values=values)
        if type_ in _TYPES:
            return self._scalar(schema)
        return self.read(type_, namespace, depth + 1)

    def _union(self, branches: list[Any], namespace: str, depth: int) -> ConnectSchema:
        """Reads a union of null and one other type; a converter writes no other unions for the values of tables."""
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise ValueError("a union of several types")
        schema = self.read(others[0], namespace, depth + 1)
        return _optional(schema) if len(others) < len(branches) else schema

    def _named(self, name: str, namespace: str) -> ConnectSchema:
        if name in _TYPES:
            return ConnectSchema(type=_TYPES[name])
        record = self._records.get(name) or self._records.get(f"{namespace}.{name}")
        if record is None:
            raise ValueError("a type that was not defined")
        return record

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> ConnectSchema:
        inner = schema.get("namespace", namespace)
        fields = tuple((field["name"], self.read(field["type"], inner, depth + 1)) for field in schema["fields"])
        name = schema["name"]
        full = name if "." in name or not inner else f"{inner}.{name}"
        record = ConnectSchema(
            type="struct",
            name=schema.get("connect.name", full),
            parameters=_parameters(schema),
            fields=fields,
        )
        self._records[full] = record
        return record

    def _array(self, schema: Mapping[str, Any], namespace: str, depth: int) -> ConnectSchema:
        """Reads an array. It stands for an array of Kafka Connect, or for a map whose keys are not strings: converters
        write such a map as an array of entries.
        """
        items = self.read(schema["items"], namespace, depth + 1)
        members = dict(items.fields)
        if schema.get("connect.type") == "map" or (items.name or "").endswith("MapEntry"):
            return ConnectSchema(type="map", keys=members["key"], values=members["value"], name=_name(schema))
        return ConnectSchema(type="array", items=items, name=_name(schema), parameters=_parameters(schema))

    def _scalar(self, schema: Mapping[str, Any]) -> ConnectSchema:
        name, parameters = _name(schema), _parameters(schema)
        if schema.get("logicalType") == "decimal":
            name = DECIMAL
            parameters = {SCALE: str(schema.get("scale", 0)), PRECISION: str(schema.get("precision", 0)), **parameters}
        type_ = schema.get("connect.type", _TYPES[schema["type"]])
        return ConnectSchema(type=type_, name=name, parameters=parameters)


def _optional(schema: ConnectSchema) -> ConnectSchema:
    return ConnectSchema(
        type=schema.type,
        optional=True,
        name=schema.name,
        parameters=schema.parameters,
        fields=schema.fields,
        items=schema.items,
        keys=schema.keys,
        values=schema.values,
    )


def _name(schema: Mapping[str, Any]) -> str | None:
    name = schema.get("connect.name")
    if name is not None and not isinstance(name, str):
        raise TypeError("not a name")
    return name


def _parameters(schema: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in (schema.get("connect.parameters") or {}).items()}
