"""Draws random schemas and random changes of schemas, and makes values of each kind that a schema allows."""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from changelog.schemas.avro import Schema
from changelog.schemas.document import NAMED, PRIMITIVES, Document, Type

ROUNDS = int(os.environ.get("CHANGELOG_TEST_ROUNDS", "0"))
"""The number of examples for each property test. If it is 0, each test uses a small number of its own."""

NESTED_MAX = 3
"""How deep values of one named type may be nested in each other."""

_SIMPLE = sorted(PRIMITIVES)
_NAMESPACES = ["a", "b"]
_NAMES = ["x", "y", "z", "u", "v", "w"]
_SYMBOLS = ["A", "B", "C", "D"]
_LOGICAL = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "string", "format": "json"},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
]


class Names:
    """Makes new names of types. The first letter of a name says which kind of type it is."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._numbers = count()

    def new(self, draw: DrawFn, kind: str) -> dict[str, Any]:
        """Returns the attributes that name a new type: `name` and `namespace`, or only a `name` that contains the
        namespace. A type in another namespace may have the same name.
        """
        name = f"{kind[0].upper()}{draw(st.sampled_from(['', next(self._numbers)]))}"
        namespace = draw(st.sampled_from(_NAMESPACES))
        full = f"{namespace}.{name}"
        if full in self.known:
            name = f"{name}{next(self._numbers)}_"
            full = f"{namespace}.{name}"
        self.known.append(full)
        return {"name": full} if draw(st.booleans()) else {"name": name, "namespace": namespace}


@st.composite
def evolutions(draw: DrawFn, *, changes_max: int = 3) -> tuple[Schema, Schema]:
    """Draws a schema, and the same schema after at most `changes_max` changes."""
    names = Names()
    old = valid(_record(draw, names, 2))
    new = old
    for _ in range(draw(st.integers(1, changes_max))):
        new = _changed(draw, names, new)
    return old, new


@st.composite
def histories(draw: DrawFn) -> list[Schema]:
    """Draws a schema and three later versions. From each version to the next, there is at most one change."""
    names = Names()
    versions = [valid(_record(draw, names, 1))]
    for _ in range(3):
        versions.append(_changed(draw, names, versions[-1]))
    return versions


def plain(schema: Schema) -> Schema:
    """Returns the schema without logical types. Avro's schema resolution ignores logical types."""
    if isinstance(schema, list):
        return [plain(branch) for branch in schema]
    if isinstance(schema, dict):
        left_out = ("logicalType", "precision", "scale", "format")
        return {key: plain(value) for key, value in schema.items() if key not in left_out}
    return schema


def values(schema: Schema) -> list[Any]:
    """Returns values of a schema. Together, they use every branch, symbol and item of the schema.

    A value of a union is a pair: the name of a type, and a value of this type.
    """
    return _values(Document(schema).root, ())


def valid(schema: Schema) -> Schema:
    """Repairs a schema after a change.

    After the repair, each type is defined once, at its first use. Unions are flat, and defaults are valid.
    """
    schema = _ordered(copy.deepcopy(schema), dict(_definitions(schema)), set())
    document = Document(schema)
    for _, type_, _ in document.walk():
        if type_.kind == "record":
            for field in type_.fields():
                default = _default(field.type, 4) if field.has_default else _ENDLESS
                if default is not _ENDLESS:
                    field.about["default"] = default  # type: ignore[index]  # a schema of our own
                elif field.has_default:
                    del field.about["default"]  # type: ignore[attr-defined]
    return schema


def is_finite(schema: Schema) -> bool:
    """Returns whether each type in the schema has at least one value."""
    return all(_values(type_, ()) for _, type_, _ in Document(schema).walk())


def _record(draw: DrawFn, names: Names, depth: int) -> dict[str, Any]:
    head = names.new(draw, "record")
    field_names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True))
    return {"type": "record", **head, "fields": [_field(draw, names, depth, name) for name in field_names]}


def _field(draw: DrawFn, names: Names, depth: int, name: str) -> dict[str, Any]:
    field = {"name": name, "type": _any(draw, names, depth)}
    return field | {"default": None} if draw(st.booleans()) else field


def _any(draw: DrawFn, names: Names, depth: int, *, union: bool = True) -> Schema:
    kinds = ["simple", "simple", "logical", "enum", "fixed"]
    if names.known:
        kinds.append("reference")
    if depth:
        kinds += ["record", "array", "map"] + ["union"] * (2 * union)
    match draw(st.sampled_from(kinds)):
        case "simple":
            return draw(st.sampled_from(_SIMPLE))
        case "logical":
            return dict(draw(st.sampled_from(_LOGICAL)))
        case "enum":
            symbols = draw(st.lists(st.sampled_from(_SYMBOLS), min_size=1, max_size=3, unique=True))
            enum = {"type": "enum", **names.new(draw, "enum"), "symbols": symbols}
            return enum | {"default": symbols[0]} if draw(st.booleans()) else enum
        case "fixed":
            return {"type": "fixed", **names.new(draw, "fixed"), "size": draw(st.integers(1, 3))}
        case "reference":
            reference = draw(st.sampled_from(names.known))
            return draw(st.sampled_from([["null", reference], {"type": "array", "items": reference}]))
        case "record":
            return _record(draw, names, depth - 1)
        case "array":
            return {"type": "array", "items": _any(draw, names, depth - 1)}
        case "map":
            return {"type": "map", "values": _any(draw, names, depth - 1)}
        case _:
            several = range(draw(st.integers(1, 3)))
            return ["null", *(_any(draw, names, depth - 1, union=False) for _ in several)]


def _changed(draw: DrawFn, names: Names, schema: Schema) -> Schema:
    """Makes one change somewhere in the schema. Makes none if a type would then have no values."""
    holder = [copy.deepcopy(schema)]
    slots = list(_slots(holder, 0))
    definitions = [(container, key) for container, key in slots if _is_definition(container[key])]
    container, key = draw(st.sampled_from(definitions if draw(st.booleans()) else slots))
    old = container[key]
    new = container[key] = _replaced(draw, names, old)
    if _is_definition(old) and _is_definition(new) and _full(old) != _full(new):
        _refer(holder, _full(old), _full(new))
    changed = valid(holder[0])
    return changed if is_finite(changed) else schema


def _is_definition(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema["type"] in NAMED


def _refer(holder: list[Schema], old: str, new: str) -> None:
    for container, key in list(_slots(holder, 0)):
        if container[key] == old:
            container[key] = new


def _replaced(draw: DrawFn, names: Names, schema: Schema) -> Schema:
    changes: list[Callable[[DrawFn, Names, Any], Schema]] = [_another]
    match schema:
        case [*_]:
            changes += [_less_branches, _more_branches, _other_order, _one_branch]
        case {"type": "record"}:
            changes = [_more_fields, _less_fields, _renamed_field, _other_fields, _switched_default, _renamed]
        case {"type": "enum"}:
            changes = [_more_symbols, _less_symbols, _switched_enum_default, _renamed]
        case {"type": "fixed"}:
            changes = [_resized, _renamed]
        case _:
            changes += [_nullable, _promoted, _promoted]
    return draw(st.sampled_from(changes))(draw, names, schema)


def _another(draw: DrawFn, names: Names, _: Schema) -> Schema:
    return _any(draw, names, 1)


def _nullable(draw: DrawFn, names: Names, schema: Schema) -> Schema:
    return ["null", schema]


def _promoted(draw: DrawFn, names: Names, schema: Schema) -> Schema:
    return draw(st.sampled_from(["long", "float", "double", "bytes", "string", *_LOGICAL]))


def _less_branches(draw: DrawFn, names: Names, union: list[Schema]) -> Schema:
    return union[1:] if draw(st.booleans()) and len(union) > 1 else union[:-1] or ["int"]


def _more_branches(draw: DrawFn, names: Names, union: list[Schema]) -> Schema:
    return [*union, _any(draw, names, 1, union=False)]


def _other_order(draw: DrawFn, names: Names, union: list[Schema]) -> Schema:
    return draw(st.permutations(union))


def _one_branch(draw: DrawFn, names: Names, union: list[Schema]) -> Schema:
    return draw(st.sampled_from(union))


def _more_fields(draw: DrawFn, names: Names, record: dict[str, Any]) -> Schema:
    free = sorted(set(_NAMES) - {field["name"] for field in record["fields"]})
    place = draw(st.integers(0, len(record["fields"])))
    if free:
        record["fields"].insert(place, _field(draw, names, 1, draw(st.sampled_from(free))))
    return record


def _less_fields(draw: DrawFn, names: Names, record: dict[str, Any]) -> Schema:
    if record["fields"]:
        record["fields"].pop(draw(st.integers(0, len(record["fields"]) - 1)))
    return record


def _renamed_field(draw: DrawFn, names: Names, record: dict[str, Any]) -> Schema:
    free = sorted(set(_NAMES) - {field["name"] for field in record["fields"]})
    if record["fields"] and free:
        field = draw(st.sampled_from(record["fields"]))
        if draw(st.booleans()):
            field["aliases"] = [field["name"]]
        field["name"] = draw(st.sampled_from(free))
    return record


def _other_fields(draw: DrawFn, names: Names, record: dict[str, Any]) -> Schema:
    return {**record, "fields": draw(st.permutations(record["fields"]))}


def _switched_default(draw: DrawFn, names: Names, record: dict[str, Any]) -> Schema:
    if record["fields"]:
        field = draw(st.sampled_from(record["fields"]))
        if "default" in field:
            del field["default"]
        else:
            field["default"] = None
    return record


def _renamed(draw: DrawFn, names: Names, about: dict[str, Any]) -> Schema:
    alias = {"aliases": [_full(about)]} if draw(st.booleans()) else {}
    rest = {key: value for key, value in about.items() if key not in ("name", "namespace", "aliases")}
    return rest | names.new(draw, about["type"]) | alias


def _more_symbols(draw: DrawFn, names: Names, enum: dict[str, Any]) -> Schema:
    symbol = draw(st.sampled_from(_SYMBOLS))
    return {**enum, "symbols": list(dict.fromkeys([*enum["symbols"], symbol]))}


def _less_symbols(draw: DrawFn, names: Names, enum: dict[str, Any]) -> Schema:
    symbols = enum["symbols"][1:] or ["D"]
    return {**enum, "symbols": symbols} | ({"default": symbols[-1]} if "default" in enum else {})


def _switched_enum_default(draw: DrawFn, names: Names, enum: dict[str, Any]) -> Schema:
    rest = {key: value for key, value in enum.items() if key != "default"}
    return rest if "default" in enum else {**rest, "default": enum["symbols"][0]}


def _resized(draw: DrawFn, names: Names, fixed: dict[str, Any]) -> Schema:
    return {**fixed, "size": draw(st.integers(1, 3))}


def _slots(container: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the place of each schema in `container[key]`, as a container and the schema's key in it."""
    yield container, key
    match container[key]:
        case [*branches] as union:
            for index in range(len(branches)):
                yield from _slots(union, index)
        case {"type": "record", "fields": fields}:
            for field in fields:
                yield from _slots(field, "type")
        case {"type": "array"} as array:
            yield from _slots(array, "items")
        case {"type": "map"} as map_:
            yield from _slots(map_, "values")


def _full(about: dict[str, Any]) -> str:
    name: str = about["name"]
    return name if "." in name else f"{about['namespace']}.{name}"


def _definitions(schema: Schema) -> Iterator[tuple[str, dict[str, Any]]]:
    for container, key in _slots([schema], 0):
        if _is_definition(container[key]):
            yield _full(container[key]), container[key]


def _ordered(schema: Schema, definitions: dict[str, dict[str, Any]], defined: set[str]) -> Schema:
    match schema:
        case [*branches]:
            return [_ordered(branch, definitions, defined) for branch in _flat(branches, definitions)]
        case {"type": "array", "items": items}:
            return {**schema, "items": _ordered(items, definitions, defined)}
        case {"type": "map", "values": members}:
            return {**schema, "values": _ordered(members, definitions, defined)}
        case {"type": "record" | "enum" | "fixed"}:
            return _once(_full(schema), definitions, defined)
        case str() if schema not in PRIMITIVES:
            return _once(schema, definitions, defined) if schema in definitions else "int"
    return schema


def _once(name: str, definitions: dict[str, dict[str, Any]], defined: set[str]) -> Schema:
    if name in defined:
        return name
    defined.add(name)
    about = copy.deepcopy(definitions[name])
    for field in about.get("fields", ()):
        field["type"] = _ordered(field["type"], definitions, defined)
    return about


def _flat(branches: Iterable[Schema], definitions: dict[str, dict[str, Any]]) -> list[Schema]:
    """Replaces each nested union by its branches. Keeps only the first type of each kind; named types count as equal
    only if they have the same name.
    """
    flat: dict[str, Schema] = {}
    for branch in branches:
        for type_ in _flat(branch, definitions) if isinstance(branch, list) else [branch]:
            kind = type_ if isinstance(type_, str) else type_["type"]
            is_defined = kind in PRIMITIVES or kind in definitions
            flat.setdefault(
                _full(type_) if kind in NAMED else kind if is_defined or isinstance(type_, dict) else "int", type_
            )
    return list(flat.values())


_ENDLESS = object()
"""Returned in place of a default that would have no end, because the record contains itself."""


def _default(type_: Type, depth: int) -> Any:
    """Returns a default in JSON. A union gets a default of its first branch, which every version of Avro allows."""
    match type_.kind:
        case "union":
            return _default(type_.of_union()[0], depth)
        case "record":
            inside = {field.name: _default(field.type, depth - 1) if depth else _ENDLESS for field in type_.fields()}
            return inside if _ENDLESS not in inside.values() else _ENDLESS
        case "bytes":
            return "\u00ff"
        case "fixed":
            return "\u00ff" * type_.about["size"]
        case "enum":
            return type_.symbols[0]
        case "array":
            return []
        case "map":
            return {}
    return {"boolean": False, "int": 1, "long": 1, "float": 0.5, "double": 0.5, "string": "text"}.get(type_.kind)


def _values(type_: Type, within: Sequence[str]) -> list[Any]:
    if within.count(type_.name) >= NESTED_MAX and type_.name:
        return []
    match type_.kind:
        case "union":
            return [
                (branch.name or branch.kind, value) for branch in type_.of_union() for value in _values(branch, within)
            ]
        case "record":
            fields = {field.name: _values(field.type, [*within, type_.name]) for field in type_.fields()}
            several = max(map(len, fields.values()), default=1) if all(fields.values()) else 0
            return [
                {name: field_values[n % len(field_values)] for name, field_values in fields.items()}
                for n in range(several)
            ]
        case "array":
            return [_values(type_.items(), within)]
        case "map":
            return [{str(n): value for n, value in enumerate(_values(type_.values(), within))}]
        case "enum":
            return list(type_.symbols)
        case "fixed":
            return [b"\xff" * type_.about["size"]]
    return _PLAIN[type_.kind]


_PLAIN: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True],
    "int": [(1 << 31) - 1],
    "long": [(1 << 63) - 1],
    "float": [0.5],
    "double": [0.1],
    "bytes": [b"\xff"],
    "string": ["text"],
}
