"""Checks whether a JSON value is a valid Avro 1.12 schema, and reports each fault with its path.

See https://avro.apache.org/docs/1.12.0/specification/. This module does not check whether the default of a field fits
the field's type. A default usually becomes wrong when a new version changes the type. So
`changelog.schemas.compatibility` checks defaults when it compares a schema with its earlier versions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

NESTING_MAX = 100
"""The most levels to which types may be nested; deeper nesting is a fault."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_COMPLEX = {
    "record": "fields",
    "error": "fields",
    "enum": "symbols",
    "fixed": "size",
    "array": "items",
    "map": "values",
}
"""The kinds of types that must be written as JSON objects, each with the member that the object must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a schema.

    `path` says where the fault is, for example `/fields/id`: it leads through fields, items and values to the faulty
    type. A branch of a union has the path of the union.
    """

    path: str
    text: str


def faults(schema: Any) -> list[Fault]:
    """Returns every fault of a schema; an empty list if it is valid."""
    return list(_Walk().type(schema, _Location(path="", namespace="", depth=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Location:
    """Where a type is in the schema: its path, how many types enclose it (`depth`), and which namespace applies."""

    path: str
    namespace: str
    depth: int

    def below(self, *steps: str, namespace: str | None = None) -> "_Location":
        path = "/".join([self.path, *steps])
        return _Location(path=path, namespace=self.namespace if namespace is None else namespace, depth=self.depth + 1)

    def fault(self, text: str) -> Fault:
        return Fault(path=self.path or "/", text=text)


@dataclass(slots=True)
class _Walk:
    """Walks a schema from its start to its end, and remembers the types that were defined so far: a schema may use a
    name only after its definition.
    """

    defined: set[str] = field(default_factory=set)

    def type(self, schema: Any, location: _Location) -> Iterator[Fault]:
        if location.depth > NESTING_MAX:
            yield location.fault(f"types are nested more than {NESTING_MAX} levels deep")
            return
        match schema:
            case str():
                yield from self._named(schema, location)
            case list():
                yield from self._union(schema, location)
            case {"type": str(kind)} if kind in _COMPLEX:
                yield from self._complex(kind, schema, location)
            case {"type": str(kind)}:
                yield from self._named(kind, location)
                yield from _decimal(kind, schema, location)
            case {"type": _}:
                yield location.fault("the member `type` of an object is not the name of a type")
            case dict():
                yield location.fault("an object has no type")
            case _:
                yield location.fault("a type is neither a name, a list nor an object")

    def _named(self, name: str, location: _Location) -> Iterator[Fault]:
        if name not in PRIMITIVES and not {name, _full(name, location.namespace)} & self.defined:
            yield location.fault(f"there is no type {_shown(name)}, or it is defined only further down")

    def _union(self, branches: Sequence[Any], location: _Location) -> Iterator[Fault]:
        kinds = set()
        for branch in branches:
            if isinstance(branch, list):
                yield location.fault("a union is nested directly in a union")
                continue
            yield from self.type(branch, location)
            kind = _branch(branch, location.namespace)
            if kind in kinds:
                yield location.fault(f"a union has {_shown(kind)} twice")
            kinds.add(kind)

    def _complex(self, kind: str, schema: Mapping[str, Any], location: _Location) -> Iterator[Fault]:
        if _COMPLEX[kind] not in schema:
            yield location.fault(f"{_article(kind)} has no {_COMPLEX[kind]}")
            return
        match kind:
            case "array" | "map":
                yield from self.type(schema[_COMPLEX[kind]], location.below(_COMPLEX[kind]))
                return
        namespace = location.namespace
        for problem in self._define(kind, schema, namespace):
            yield location.fault(problem)
        if isinstance(schema.get("name"), str):
            namespace = _space(schema, namespace)
        match kind:
            case "enum":
                yield from _symbols(schema["symbols"], location)
            case "fixed":
                if type(schema["size"]) is not int or schema["size"] < 0:
                    yield location.fault("the size of a fixed is not a number of bytes")
                yield from _decimal(kind, schema, location)
            case _:
                yield from self._fields(schema["fields"], location, namespace)

    def _define(self, kind: str, schema: Mapping[str, Any], namespace: str) -> Iterator[str]:
        name, own = schema.get("name"), schema.get("namespace", "")
        if not isinstance(name, str) or not isinstance(own, str):
            yield f"{_article(kind)} has no name" if name is None else f"the name of {_article(kind)} is not a string"
            return
        full = _full(name, _space(schema, namespace))
        if not all(map(_NAME.fullmatch, full.split("."))):
            yield f"{_shown(full)} is not a valid name: use A-Z, a-z, 0-9 and _, and do not begin with a digit"
        if full in self.defined or full in PRIMITIVES:
            yield f"{_shown(full)} is defined twice"
        yield from _aliases(schema)
        self.defined.add(full)

    def _fields(self, fields: object, location: _Location, namespace: str) -> Iterator[Fault]:
        if not isinstance(fields, list):
            yield location.fault("the fields of a record are not a list")
            return
        names = set()
        for number, field_ in enumerate(fields):
            if not isinstance(field_, dict) or not isinstance(field_.get("name"), str):
                yield location.fault(f"field {number + 1} has no name")
                continue
            name = field_["name"]
            below = location.below("fields", name, namespace=namespace)
            if not _NAME.fullmatch(name):
                yield below.fault("is not a valid name: use A-Z, a-z, 0-9 and _, and do not begin with a digit")
            if name in names:
                yield below.fault("appears twice")
            names.add(name)
            for problem in _aliases(field_):
                yield below.fault(problem)
            if "type" in field_:
                yield from self.type(field_["type"], below)
            else:
                yield below.fault("has no type")


def _symbols(symbols: object, location: _Location) -> Iterator[Fault]:
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        yield location.fault("the symbols of an enum are not a list of strings")
        return
    for symbol in symbols:
        if not _NAME.fullmatch(symbol):
            yield location.fault(f"{_shown(symbol)} is not a valid symbol: use A-Z, a-z, 0-9 and _")
    if len(set(symbols)) < len(symbols):
        yield location.fault("an enum has a symbol twice")


def _decimal(kind: str, schema: Mapping[str, Any], location: _Location) -> Iterator[Fault]:
    if schema.get("logicalType") != "decimal" or kind not in ("bytes", "fixed"):
        return
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
        yield location.fault("a decimal needs a precision above 0, and a scale from 0 to that precision")


def _aliases(schema: Mapping[str, Any]) -> Iterator[str]:
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        yield "aliases are not a list of names"


def _branch(schema: Any, namespace: str) -> str:
    """Returns the full name of a union's branch, or the kind of a branch that has no name.

    In a valid union, no two branches have the same result.
    """
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full(schema, namespace)
    if not isinstance(schema, dict):
        return ""
    name, kind = schema.get("name"), schema.get("type")
    if isinstance(name, str) and kind in ("record", "error", "enum", "fixed"):
        return _full(name, _space(schema, namespace))
    return str(kind)


def _space(schema: Mapping[str, Any], namespace: str) -> str:
    """Returns the namespace of a named type. `namespace` is the namespace that encloses the type's definition."""
    if "." in schema["name"]:
        return str(schema["name"].rpartition(".")[0])
    own = schema.get("namespace")
    return own if isinstance(own, str) else namespace


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'ae' else 'a'} {kind}"


def _shown(name: str) -> str:
    return f'"{name[:80]}"'
