"""Short functions that make Avro schemas for tests of compatibility."""

from typing import Any

from changelog.schemas.avro import Schema

INT, LONG, FLOAT, DOUBLE, STRING, BYTES = "int", "long", "float", "double", "string", "bytes"


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def map_(values: Schema) -> Schema:
    return {"type": "map", "values": values}


def enum(name: str, symbols: str, default: str | None = None, **more: Any) -> Schema:
    return {"type": "enum", "name": name, "symbols": list(symbols), **({"default": default} if default else {}), **more}


def fixed(name: str, size: int, **more: Any) -> Schema:
    return {"type": "fixed", "name": name, "size": size, **more}


def field(name: str, type_: Schema, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def optional(name: str, **more: Any) -> dict[str, Any]:
    return field(name, ["null", "string"], default=None, **more)


def record(*fields: dict[str, Any], name: str = "Record1", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def logical(type_: str, name: str, **more: Any) -> Schema:
    return {"type": type_, "logicalType": name, **more}


def listed(head: Schema) -> Schema:
    return record(field("head", head), field("tail", ["null", "List"]), name="List")


A_INT, A_LONG, A_DINT = field("a", INT), field("a", LONG), field("a", INT, default=0)
B_INT, B_DINT = field("b", INT), field("b", INT, default=0)
FIXED_4, FIXED_8 = fixed("Fixed", 4), fixed("Fixed", 8)
AB, ABC, BC, OTHER = enum("Enum1", "AB"), enum("Enum1", "ABC"), enum("Enum1", "BC"), enum("Enum2", "AB")
