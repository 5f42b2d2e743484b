"""Generates a Python function for an Avro schema. The function reads messages with this schema faster than fastavro.

fastavro defines the correct result. But it is slow: it reads every single byte from a stream, and makes a dict of each
record, which the caller has to read again. The functions that are generated here read the bytes in place. They support
the schemas that Connect's converters register. If they meet anything unusual, such as a length below zero or missing
bytes, they raise one of `UNUSUAL`, and the caller uses fastavro. Tests compare the generated functions with fastavro,
also for damaged messages.

- A function from `values_reader` returns what fastavro returns.
- A function from `event_reader` returns the members of a change event. Rows are tuples with one value for each column,
  and members of the event that the translation does not need are only checked.

A generated function has the message in `d` and the place of the next byte in `p`. Because `p` never decreases, it is
enough to compare it with the length of the message at the end. https://avro.apache.org/docs/1.12.0/specification/
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from changelog.connectors.sources.debezium.decode.facts import SourceBlock, TransactionBlock
from changelog.connectors.sources.debezium.decode.payloads import NULL, Payload

UNUSUAL: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error)
"""The errors that generated functions raise for messages that fastavro must read."""

DEPTH_MAX: Final = 6
LINES_MAX: Final = 20_000
"""Types may be nested at most `DEPTH_MAX` deep, and a function may have at most `LINES_MAX` lines. Deeper nesting would
exceed the 20 levels of nested blocks that Python allows.
"""

TOGETHER: Final = 4
"""How many columns of the old and the new row are compared at once. Most updates change few columns, so most of these
comparisons save reading the values.
"""

_NAMED: Final = frozenset({"record", "enum", "fixed"})
_INTEGERS: Final = frozenset({"int", "long"})
_TIMES: Final = ("ts_ns", "ts_us", "ts_ms")
"""The members of the block `source` for the time of the change. The first of these that the schema has is published."""

_UNREAD: Final = frozenset({"name", "cluster"})
_EVENT: Final = ["before", "after", "source", "op"]
_OTHER_MESSAGES: Final = frozenset({"message", "ddl", "tableChanges", "status", "id", "event_count"})
"""`_UNREAD` has the members of `SourceBlock` that `facts_of` does not need, and `_EVENT` the members of an event in
their order. A message with one of `_OTHER_MESSAGES` is not an event.
"""

_SMALL: Final = [(byte >> 1) ^ -(byte & 1) if byte < 128 else None for byte in range(256)]
"""For each first byte of a number: the number, if it has only this byte; else None."""

_LENGTHS: Final = [byte >> 1 if byte < 128 and not byte & 1 else -1 for byte in range(256)]
"""For each first byte of a length: the length, if it has only this byte and is not negative; else -1."""

_BOOLEANS: Final = {0: False, 1: True}
_LONG: Final = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")


class UnsupportedError(Exception):
    """Raised for a schema for which this module can generate no function."""


def _long(d: bytes, p: int) -> tuple[int, int]:
    """Reads a number of at least two bytes, which begins at `p`. Returns the number, and the place after it."""
    low = d[p] & 127
    byte = d[p + 1]
    low |= (byte & 127) << 7
    if byte < 128:
        return (low >> 1) ^ -(low & 1), p + 2
    byte = d[p + 2]
    low |= (byte & 127) << 14
    if byte < 128:
        return (low >> 1) ^ -(low & 1), p + 3
    byte = d[p + 3]
    low |= (byte & 127) << 21
    p += 4
    shift, high = 0, 0
    while byte > 127:
        byte = d[p]
        high |= (byte & 127) << shift
        shift += 7
        p += 1
    number = low | high << 28
    if number >> 64 or shift > 42:
        raise ValueError("a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), p


def _length(d: bytes, p: int) -> tuple[int, int]:
    """Returns the length at `p`, and the place after it."""
    length, end = _long(d, p) if d[p] > 127 else (_SMALL[d[p]], p + 1)
    if length is None or length < 0:
        raise ValueError("a length below zero")
    return length, end


_SCOPE: Final[Mapping[str, Any]] = {
    "small": _SMALL,
    "lengths": _LENGTHS,
    "booleans": _BOOLEANS,
    "long": _long,
    "length": _length,
    "skip": _LONG.match,
    "single": struct.Struct("<f").unpack_from,
    "double": struct.Struct("<d").unpack_from,
    "Payload": Payload,
    "SourceBlock": SourceBlock,
    "TransactionBlock": TransactionBlock,
    "NULL": NULL,
}


def values_reader(schema: Any) -> Callable[[bytes, int], Any] | None:
    """Returns a function that reads the value in a message, from a given place to the end of the message.

    Returns None if no such function can be compiled for `schema`. `schema` must not have logical types.
    """
    try:
        code = _Code(schema)
        code.value(schema, "value")
        return code.compiled("value")
    except UnsupportedError:
        return None


def event_reader(schema: Any) -> Callable[[bytes, int], Payload] | None:
    """Returns a function that reads an event, with its rows as tuples; None if `schema` does not describe events."""
    try:
        code = _Code(schema)
        code.event(schema)
        return code.compiled("Payload(op=op, before=before, after=after, source=source, transaction=transaction)")
    except UnsupportedError:
        return None


@dataclass(slots=True)
class _Code:
    """The function that is being generated. `_named` has the named types of the schema by their names."""

    schema: Any
    _lines: list[str] = field(default_factory=list)
    _scope: dict[str, Any] = field(default_factory=lambda: dict(_SCOPE))
    _names: Iterator[int] = field(default_factory=lambda: count(1))
    _named: dict[str, Any] = field(default_factory=dict)
    _indent: int = 1

    def __post_init__(self) -> None:
        self._define(self.schema, "")

    def compiled(self, result: str) -> Callable[[bytes, int], Any]:
        """Compiles the function, which will return the value of the expression `result`."""
        lines = [
            "def read(d, p):",
            *self._lines,
            "    if p != len(d):",
            "        raise ValueError('the message has another length')",
            f"    return {result}",
        ]
        exec(compile("\n".join(lines), "<Avro reader>", "exec"), self._scope)
        read: Callable[[bytes, int], Any] = self._scope["read"]
        return read

    # Schemas

    def _define(self, schema: Any, namespace: str) -> None:
        """Registers the named types inside a schema, by the names under which the schema refers to them."""
        if isinstance(schema, list):
            for branch in schema:
                self._define(branch, namespace)
        elif isinstance(schema, dict):
            if schema.get("type") in _NAMED:
                name, inner = schema["name"], schema.get("namespace", namespace)
                full = name if "." in name or not inner else f"{inner}.{name}"
                for reference in {full, full.removeprefix(f"{inner}.")}:
                    if self._named.setdefault(reference, schema) is not schema:
                        raise UnsupportedError  # two types have the same name in different namespaces
                for member in schema.get("fields", ()):
                    self._define(member["type"], full.rpartition(".")[0])
            else:
                for member_name in ("type", "items", "values"):
                    self._define(schema.get(member_name), namespace)

    def _resolved(self, schema: Any) -> tuple[str, Any]:
        """Returns the name of a type that is not a union, and its schema."""
        while isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
        name = schema if isinstance(schema, str) else schema["type"] if isinstance(schema, dict) else ""
        if name in self._named:
            schema = self._named[name]
            name = schema["type"]
        return name, schema

    @staticmethod
    def _optional(schema: Any) -> tuple[int | None, Any]:
        """Returns the byte that marks a null (None if no value can be null), and the type of the other values."""
        if isinstance(schema, dict) and isinstance(schema.get("type"), list):
            schema = schema["type"]
        if not isinstance(schema, list):
            return None, schema
        if len(schema) != 2 or "null" not in schema:
            raise UnsupportedError
        null = schema.index("null")
        return 2 * null, schema[1 - null]

    def _fields(self, schema: Any) -> list[tuple[str, Any]]:
        name, record = self._resolved(schema)
        if name != "record" or not record["fields"]:
            raise UnsupportedError
        return [(member["name"], member["type"]) for member in record["fields"]]

    # Code

    def _add(self, *lines: str) -> None:
        self._lines += ["    " * self._indent + line for line in lines]
        if len(self._lines) > LINES_MAX:
            raise UnsupportedError

    def _name(self) -> str:
        return f"v{next(self._names)}"

    def value(self, schema: Any, target: str, *, is_needed: bool = True, depth: int = 0) -> None:
        """Generates code that reads a value into the variable `target`. A value that is not needed is only checked."""
        if depth > DEPTH_MAX:
            raise UnsupportedError
        null, type_ = self._optional(schema)
        if null is None:
            self._present(type_, target, is_needed, depth)
            return
        self._add(f"if d[p] == {2 - null}:")
        self._indent += 1
        self._add("p += 1")
        self._present(type_, target, is_needed, depth)
        self._indent -= 1
        self._add(f"elif d[p] == {null}:", f"    {target} = None", "    p += 1", "else:", "    raise ValueError")

    def _present(self, schema: Any, target: str, is_needed: bool, depth: int) -> None:
        name, resolved = self._resolved(schema)
        match name:
            case "int" | "long" if is_needed:
                self._add(f"{target} = small[d[p]]", f"if {target} is None:", f"    {target}, p = long(d, p)")
                self._add("else:", "    p += 1")
            case "int" | "long":
                self._add("p = skip(d, p).end()")
            case "string" | "bytes":
                self._add(
                    "n = lengths[d[p]]", "if n < 0:", "    n, p = length(d, p)", "else:", "    p += 1", "e = p + n"
                )
                self._add(f"{target} = d[p:e]{'.decode()' if name == 'string' else ''}", "p = e")
            case "boolean":
                self._add(f"{target} = booleans[d[p]]", "p += 1")
            case "float" | "double":
                self._add(f"{target} = {'single' if name == 'float' else 'double'}(d, p)[0]")
                self._add(f"p += {4 if name == 'float' else 8}")
            case "fixed" if resolved["size"]:
                self._add(f"e = p + {int(resolved['size'])}", "if e > len(d):", "    raise IndexError")
                self._add(f"{target} = d[p:e]", "p = e")
            case "record":
                self._record(resolved, target, is_needed, depth)
            case "array":
                self._blocks(target, "[]", lambda item: self._item(resolved, target, item, is_needed, depth))
            case "map":
                self._blocks(target, "{}", lambda item: self._entry(resolved, target, item, is_needed, depth))
            case _:
                raise UnsupportedError

    def _record(self, schema: Any, target: str, is_needed: bool, depth: int) -> None:
        members = []
        for name, type_ in self._fields(schema):
            variable = self._name()
            self.value(type_, variable, is_needed=is_needed, depth=depth + 1)
            members.append(f"{name!r}: {variable}")
        self._add(f"{target} = {'{' + ', '.join(members) + '}' if is_needed else 'True'}")

    def _blocks(self, target: str, empty: str, read: Callable[[str], None]) -> None:
        """Generates code that reads an array or a map. Both are stored in blocks. `read` generates code that reads an
        element.

        Each element has at least one byte, so if a count is too large, the code raises an IndexError.
        """
        self._add(f"{target} = {empty}", "while True:")
        self._indent += 1
        number, item = self._name(), self._name()
        self._add(f"{number}, p = length(d, p)", f"if not {number}:", "    break", f"for {number} in range({number}):")
        self._indent += 1
        read(item)
        self._indent -= 2

    def _item(self, schema: Any, target: str, item: str, is_needed: bool, depth: int) -> None:
        self.value(schema["items"], item, is_needed=is_needed, depth=depth + 1)
        if is_needed:
            self._add(f"{target}.append({item})")

    def _entry(self, schema: Any, target: str, item: str, is_needed: bool, depth: int) -> None:
        key = self._name()
        self._present("string", key, True, depth)
        self.value(schema["values"], item, is_needed=is_needed, depth=depth + 1)
        self._add(f"{target}[{key}] = {item}")

    # Events

    def event(self, schema: Any) -> None:
        """Generates code that reads an event into the variables `op`, `before`, `after`, `source` and `transaction`."""
        fields = self._fields(schema)
        names = [name for name, _ in fields]
        is_event = [name for name in names if name in _EVENT] == _EVENT
        if not is_event or not _OTHER_MESSAGES.isdisjoint(names):
            raise UnsupportedError
        self._add("transaction = None")
        rows: dict[str, list[tuple[str, Any]]] = {}
        for name, type_ in fields:
            match name:
                case "before" | "after":
                    rows[name] = self._row(name, type_, rows.get("before"))
                case "source":
                    self._source(type_)
                case "transaction":
                    self._transaction(type_)
                case "op":
                    if self._optional(type_)[0] is not None or self._resolved(type_)[0] != "string":
                        raise UnsupportedError
                    self.value(type_, "op")
                case _:
                    self.value(type_, "_", is_needed=False)

    def _row(self, side: str, schema: Any, before: list[tuple[str, Any]] | None) -> list[tuple[str, Any]]:
        """Generates code that reads a row into a tuple, or `NULL`. The old row and the new row have the same columns.

        In this code, `s0` is the place of the first value of the old row, `s1` that of the second, and so on.
        """
        null, type_ = self._optional(schema)
        columns = self._fields(type_)
        if null is None or (before is not None and before != columns):
            raise UnsupportedError
        self._add(f"if d[p] == {2 - null}:", "    p += 1")
        self._indent += 1
        values = [f"{side}{number}" for number in range(len(columns))]
        if before is None:
            self._old_row(columns, values)
        else:
            self._new_row(columns, values)
        self._add(f"{side} = ({', '.join(values)},)")
        self._indent -= 1
        self._add(f"elif d[p] == {null}:", f"    {side} = NULL", "    p += 1", "else:", "    raise ValueError")
        return columns

    def _old_row(self, columns: Sequence[tuple[str, Any]], values: Sequence[str]) -> None:
        for number, (_, type_) in enumerate(columns):
            self._add(f"s{number} = p")
            self.value(type_, values[number], depth=1)
        self._add(f"s{len(columns)} = p")

    def _new_row(self, columns: Sequence[tuple[str, Any]], values: Sequence[str]) -> None:
        """Generates code that reads a new row. Values whose bytes are the same as in the old row are not read again."""
        self._add("if before is NULL:")
        self._indent += 1
        for number, (_, type_) in enumerate(columns):
            self.value(type_, values[number], depth=1)
        self._indent -= 1
        self._add("else:")
        self._indent += 1
        for first in range(0, len(columns), TOGETHER):
            numbers = range(first, min(first + TOGETHER, len(columns)))
            same = [f"    {values[number]} = before{number}" for number in numbers]
            self._add(f"e = p + s{numbers.stop} - s{first}", f"if d[p:e] == d[s{first}:s{numbers.stop}]:")
            self._add(*same, "    p = e", "else:")
            self._indent += 1
            for number in numbers:
                self._new_value(columns[number][1], number, values[number])
            self._indent -= 1
        self._indent -= 1

    def _new_value(self, type_: Any, number: int, target: str) -> None:
        """Generates code that reads a new value. For a `long`, the code first compares the bytes with the old ones:
        they are often equal, and comparing is faster than reading.
        """
        if self._resolved(self._optional(type_)[1])[0] != "long":
            self.value(type_, target, depth=1)
            return
        self._add(f"e = p + s{number + 1} - s{number}", f"if d[p:e] == d[s{number}:s{number + 1}]:")
        self._add(f"    {target} = before{number}", "    p = e", "else:")
        self._indent += 1
        self.value(type_, target, depth=1)
        self._indent -= 1

    def _source(self, schema: Any) -> None:
        """Generates code that reads the block `source`. Of the block's times, it keeps only the published one."""
        fields = self._fields(schema)
        time = next((member for member in _TIMES if member in dict(fields)), None)
        members = []
        for name, type_ in fields:
            is_needed = (
                name in SourceBlock.__struct_fields__ and name not in _UNREAD and (name not in _TIMES or name == time)
            )
            variable = f"source_{name}" if is_needed else "_"
            if name in SourceBlock.__struct_fields__:
                self._check(name, type_)
            self.value(type_, variable, is_needed=is_needed)
            if is_needed:
                members.append(f"{name}={variable}")
        if time is not None:
            self._add(f"if source_{time} is None:", "    raise ValueError('the published time is null')")
        self._add(f"source = SourceBlock({', '.join(members)})")

    def _check(self, member: str, schema: Any) -> None:
        """Checks that a member of `SourceBlock` may have the values of this type."""
        null, type_ = self._optional(schema)
        name = self._resolved(type_)[0]
        annotation = str(SourceBlock.__annotations__[member])
        fits = (
            (name == "string" and "str" in annotation)
            or (name in _INTEGERS and "int" in annotation)
            or (name == "boolean" and "bool" in annotation)
        )
        if not fits or (null is not None and "None" not in annotation):
            raise UnsupportedError

    def _transaction(self, schema: Any) -> None:
        """Generates code that reads the block `transaction`, which may be null."""
        null, type_ = self._optional(schema)
        members = dict(self._fields(type_))
        order = members.get("total_order", "long")
        if null is None or members.get("id") != "string" or self._resolved(order)[0] not in _INTEGERS:
            raise UnsupportedError
        self._add(f"if d[p] == {2 - null}:", "    p += 1")
        self._indent += 1
        variables = {"id": "id_", "total_order": "order"}
        self._add("order = None")
        for name, member in self._fields(type_):
            self.value(member, variables.get(name, "_"), is_needed=name in variables)
        self._add("transaction = TransactionBlock(id=id_, total_order=order)")
        self._indent -= 1
        self._add(f"elif d[p] == {null}:", "    p += 1", "else:", "    raise ValueError")
