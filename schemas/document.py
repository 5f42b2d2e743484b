"""Parses an Avro schema into types, and finds the types to which names in the schema refer.

See https://avro.apache.org/docs/1.12.0/specification/#names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from changelog.schemas.avro import Schema

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "enum", "fixed"})

_KINDS: Final = {"error": "record", "error_union": "union"}
_NEEDED: Final = {"record": "fields", "enum": "symbols", "fixed": "size", "array": "items", "map": "values"}
_OF: Final = {"fields": list, "symbols": list, "size": int}
_INT: Final = range(-(1 << 31), 1 << 31)
_LONG: Final = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """One type. `about` is the JSON object that describes the type; it is empty if the schema has no such object.

    Only records, enums and fixed types have names. `name` is the full name of such a type, and empty for other types.
    `branches` are the branches of a union. Names inside the type that have no namespace belong to `namespace`.
    """

    kind: str
    about: Mapping[str, Any]
    name: str
    branches: Sequence[Schema]
    namespace: str
    document: "Document"

    @property
    def short(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    @property
    def aliases(self) -> frozenset[str]:
        """The aliases of a named type, as full names."""
        return frozenset(_full(alias, self.namespace) for alias in self.about.get("aliases", ()))

    @property
    def symbols(self) -> list[str]:
        """The symbols of an enum."""
        return list(self.about["symbols"])

    @property
    def enum_default(self) -> str | None:
        """The symbol that readers use in place of an unknown symbol; None if the enum has no valid default."""
        default = self.about.get("default")
        return default if default in self.about["symbols"] else None

    def fields(self) -> list["RecordField"]:
        """The fields of a record."""
        return [
            RecordField(name=field["name"], index=index, about=field, type=self._inside(field["type"]))
            for index, field in enumerate(self.about["fields"])
        ]

    def items(self) -> "Type":
        """The type of an array's items."""
        return self._inside(self.about["items"])

    def values(self) -> "Type":
        """The type of a map's values."""
        return self._inside(self.about["values"])

    def of_union(self) -> list["Type"]:
        """The branches of a union."""
        return [self._inside(branch) for branch in self.branches]

    def __str__(self) -> str:
        """The type as error messages name it."""
        if self.kind == "union":
            return f"a union of {', '.join(map(str, self.of_union()))}" if self.branches else "an empty union"
        if self.kind in NAMED:
            return f"{self.kind} {self.short}"
        return self.kind

    def _inside(self, schema: Schema) -> "Type":
        return self.document.type(schema, self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    """A field of a record, with its index among the fields."""

    name: str
    index: int
    about: Mapping[str, Any]
    type: Type

    @property
    def aliases(self) -> Sequence[str]:
        """Other names that the field may have in a writer's schema."""
        aliases: Sequence[str] = self.about.get("aliases", ())
        return aliases

    @property
    def has_default(self) -> bool:
        """Whether the field has a default. Then readers can read data whose schema lacks the field."""
        return "default" in self.about


class Document:
    """A parsed schema. The constructor raises ValueError if types or names in the schema cannot be resolved.

    It does not find every fault of a schema; `changelog.schemas.validity` does.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        try:
            self._define(schema, "")
            for _, type_, field in self.walk():
                _check_names(type_.about, *([] if field is None else [field.about]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("the schema is not a valid Avro schema") from error

    @cached_property
    def root(self) -> Type:
        """The schema's outermost type."""
        return self.type(self._schema, "")

    def type(self, schema: Schema, namespace: str) -> Type:
        """Returns the type that `schema` describes. A name in it that has no namespace belongs to `namespace`."""
        match schema:
            case str() if schema in PRIMITIVES:
                return self._type(schema, {}, namespace)
            case str():
                about, namespace = self._find(schema, namespace)
                return self.type(about, namespace)
            case [*branches]:
                return self._type("union", {}, namespace, branches=branches)
            case {"type": str(kind)} if kind in PRIMITIVES or _KINDS.get(kind, kind) in _NEEDED:
                return self._defined(_KINDS.get(kind, kind), schema, namespace)
            case {"type": inner}:
                return self.type(inner, namespace)
        raise ValueError(f"the schema is not a valid Avro schema: {str(schema)[:80]} is not a type")

    def walk(self) -> Iterator[tuple[str, Type, RecordField | None]]:
        """Yields every use of a type, as (path, type, field).

        If the type is that of a record's field, `field` is this field; otherwise it is None. The parts of a named type
        are yielded only for the first use of the type.
        """
        return self._walk(self.root, "", None, set())

    def _walk(
        self, type_: Type, path: str, field: RecordField | None, names: set[str]
    ) -> Iterator[tuple[str, Type, RecordField | None]]:
        yield path, type_, field
        if type_.name in names:
            return
        if type_.name:
            names.add(type_.name)
        match type_.kind:
            case "record":
                for inner in type_.fields():
                    yield from self._walk(inner.type, f"{path}/fields/{inner.name}", inner, names)
            case "array":
                yield from self._walk(type_.items(), f"{path}/items", None, names)
            case "map":
                yield from self._walk(type_.values(), f"{path}/values", None, names)
            case "union":
                for branch in type_.of_union():
                    yield from self._walk(branch, branch_path(path, branch, type_), None, names)

    def _defined(self, kind: str, about: Mapping[str, Any], namespace: str) -> Type:
        if kind not in NAMED:
            return self._type(kind, about, namespace)
        name, namespace = _name(about, namespace)
        return self._type(kind, about, namespace, name=name)

    def _type(
        self, kind: str, about: Mapping[str, Any], namespace: str, *, name: str = "", branches: Sequence[Schema] = ()
    ) -> Type:
        return Type(kind=kind, about=about, name=name, branches=branches, namespace=namespace, document=self)

    def _find(self, name: str, namespace: str) -> tuple[Mapping[str, Any], str]:
        for full in (_full(name, namespace), name):
            if full in self._named:
                return self._named[full]
        raise ValueError(f"the schema is not a valid Avro schema: there is no type {name[:80]}")

    def _define(self, schema: Schema, namespace: str) -> None:
        """Remembers every named type, with the namespace that encloses its definition."""
        match schema:
            case [*branches]:
                for branch in branches:
                    self._define(branch, namespace)
            case {"type": str(kind)} if _KINDS.get(kind, kind) in NAMED:
                name, inner = _name(schema, namespace)
                if name in self._named:
                    raise ValueError(f"the schema is not a valid Avro schema: {name[:80]} is defined twice")
                member = _NEEDED[_KINDS.get(kind, kind)]
                if not isinstance(schema[member], _OF[member]):
                    raise TypeError(member)
                self._named[name] = (schema, namespace)
                for field in schema.get("fields", ()):
                    self._define(field["type"], inner)
            case {"type": "array" | "map" as kind}:
                self._define(schema[_NEEDED[kind]], namespace)
            case {"type": inner} if not isinstance(inner, str):
                self._define(inner, namespace)


def branch_path(path: str, branch: Type, union: Type) -> str:
    """Returns the path of a union's branch. It is the path of the union. If the branch is one of several records in the
    union, the name of the record is added.
    """
    records = [type_ for type_ in union.of_union() if type_.kind == "record"]
    return f"{path}/{branch.short}" if branch.kind == "record" and len(records) > 1 else path


def is_valid(default: object, type_: Type) -> bool:
    """Returns whether a default is a value of the type, in Avro's JSON encoding. A default of a union may be a value of
    any branch.
    """
    match type_.kind:
        case "null":
            return default is None
        case "boolean":
            return isinstance(default, bool)
        case "int" | "long":
            within = _INT if type_.kind == "int" else _LONG
            return isinstance(default, int) and not isinstance(default, bool) and default in within
        case "float" | "double":
            return isinstance(default, int | float) and not isinstance(default, bool)
        case "string":
            return isinstance(default, str)
        case "bytes" | "fixed":
            size = type_.about.get("size")
            return (
                isinstance(default, str) and all(ord(char) < 256 for char in default) and size in (None, len(default))
            )
        case "enum":
            return default in type_.symbols
        case _:
            return _is_valid_inside(default, type_)


def _is_valid_inside(default: object, type_: Type) -> bool:
    match type_.kind, default:
        case "array", [*items]:
            return all(is_valid(item, type_.items()) for item in items)
        case "map", {**values}:
            return all(is_valid(value, type_.values()) for value in values.values())
        case "record", {**values}:
            return all(
                is_valid(values[field.name], field.type) if field.name in values else field.has_default
                for field in type_.fields()
            )
        case "union", _:
            return any(is_valid(default, branch) for branch in type_.of_union())
    return False


def _check_names(*abouts: Mapping[str, Any]) -> None:
    for about in abouts:
        names = [about.get("name", ""), *about.get("aliases", ()), *about.get("symbols", ())]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name is not a string")


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _name(about: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """Returns the full name of a named type, and the namespace to which names inside its definition belong."""
    full = _full(about["name"], about.get("namespace", namespace))
    return full, full.rpartition(".")[0]
