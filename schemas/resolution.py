"""Finds out whether a reader with one schema can read data written with another, and if not, where and why.

The rules are Avro's own: https://avro.apache.org/docs/1.12.0/specification/#schema-resolution. Where the specification
leaves a choice, this module decides like Java's `SchemaCompatibility`, which registries use:

- Two named types match if their unqualified names are equal, or if an alias of the reader's type is the full name of
  the writer's type.
- If several branches of a reader's union match, it is enough that one of them can read the data.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from changelog.schemas.avro import Schema
from changelog.schemas.document import NAMED, Document, RecordField, Type, branch_path
from changelog.schemas.rules import Incompatibility, Rule, SideNames

PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""For each primitive type of a writer, the other types that a reader may use to read the writer's values."""

LOGICAL: Final = {
    "decimal": {"bytes", "fixed"},
    "big-decimal": {"bytes"},
    "uuid": {"string", "fixed"},
    "date": {"int"},
    "time-millis": {"int"},
    "time-micros": {"long"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "timestamp-nanos": {"long"},
    "local-timestamp-millis": {"long"},
    "local-timestamp-micros": {"long"},
    "local-timestamp-nanos": {"long"},
    "duration": {"fixed"},
}
"""For each logical type of Avro, the types that may have it. On any other type, readers ignore the logical type."""

_LOSSY: Final = {
    ("int", "float"): "a float is exact only to 24 bits, and an int has 32",
    ("long", "float"): "a float is exact only to 24 bits, and a long has 64",
    ("long", "double"): "a double is exact only to 53 bits, and a long has 64",
    ("bytes", "string"): "not all bytes are text",
}

_ANOTHER: Final = "keep the type, and add a separate field for the new type"


def unreadable(reader: Schema, writer: Schema, sides: SideNames | None = None) -> list[Incompatibility]:
    """Returns the reasons why a reader with the schema `reader` cannot read data that was written with `writer`. The
    list is empty if it can read all such data.

    Raises ValueError if one of the two is not an Avro schema.
    """
    resolution = Resolution(sides or SideNames())
    return list(resolution.compare(Document(reader).root, Document(writer).root, ""))


def pairs(record: Type, writer: Type) -> list[tuple[RecordField, list[RecordField]]]:
    """Returns each field of a reader's record, with the writer's fields that have its name or one of its aliases."""
    written_fields = {field.name: field for field in writer.fields()}
    return [
        (
            field,
            [written_fields[name] for name in dict.fromkeys([field.name, *field.aliases]) if name in written_fields],
        )
        for field in record.fields()
    ]


def meaning(type_: Type) -> str:
    """Returns what the values of a type mean: its logical type, if Avro allows this logical type for it.

    Otherwise, returns the property `format` of a string type. This property is not a part of Avro; this project
    defined it. Returns an empty text if the type has neither.
    """
    logical = type_.about.get("logicalType")
    if isinstance(logical, str) and type_.kind in LOGICAL.get(logical, ()):
        return logical if logical != "decimal" or all(isinstance(digits, int) for digits in _digits(type_)) else ""
    return str(type_.about.get("format", "")) if type_.kind == "string" else ""


class Resolution:
    """Compares two schemas. Each pair of named types is compared only once, so the comparison ends even if types
    contain themselves.
    """

    def __init__(self, sides: SideNames, compared_pairs: set[tuple[str, str]] | None = None) -> None:
        self._sides = sides
        self._compared_pairs = compared_pairs or set()

    def compare(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        """Yields the reasons why the type `reader` cannot read values of the type `writer`. Both types are at `path`.

        Also compares the types inside these two.
        """
        if writer.kind == "union":
            for branch in writer.of_union():
                yield from self._branch(reader, branch, path)
        elif reader.kind == "union":
            yield from self._union(reader, writer, path)
        elif reader.kind != writer.kind:
            yield from self._promoted(reader, writer, path)
        elif reader.kind in NAMED:
            if (reader.name, writer.name) not in self._compared_pairs:
                self._compared_pairs.add((reader.name, writer.name))
                yield from self._named(reader, writer, path)
        elif reader.kind == "array":
            yield from self.compare(reader.items(), writer.items(), f"{path}/items")
        elif reader.kind == "map":
            yield from self.compare(reader.values(), writer.values(), f"{path}/values")
        else:
            yield from self._logical(reader, writer, path)

    def _branch(self, reader: Type, branch: Type, path: str) -> Iterator[Incompatibility]:
        """Compares one branch of the writer's union with the reader's type, which may also be a union."""
        if reader.kind == "union" or _matches(reader, branch):
            yield from self.compare(reader, branch, path)
            return
        wider = f'["null", {reader}]' if branch.kind == "null" else f"[{reader}, {branch}]"
        yield Incompatibility(
            rule=Rule.BRANCH_MISSING,
            path=path,
            text=f"{self._sides.writer} may hold {branch}, but {self._sides.reader} reads only {reader}",
            for_reader=f"make the type {wider}",
            for_writer=f"keep the type {reader}, and add a separate field for values that may be {branch}",
        )

    def _union(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        matching = [branch for branch in reader.of_union() if _matches(branch, writer)]
        if not matching:
            branches = ", ".join(map(str, reader.of_union())) or "nothing"
            yield Incompatibility(
                rule=Rule.BRANCH_MISSING,
                path=path,
                text=f"{self._sides.writer} may hold {writer}, but {self._sides.reader} reads only {branches}",
                for_reader=_with_branch(reader, writer),
                for_writer=f"allow only [{branches}]; add a separate field for values that may be {writer}",
            )
            return
        branch_to_read = min(matching, key=lambda branch: _rank(branch, writer))
        if writer.kind in NAMED and len(matching) > 1:
            readable = [branch for branch in matching if self._is_readable(branch, writer, path)]
            if readable and len(readable) < len(matching):
                yield self._several_branches(writer, path)
            branch_to_read = next(iter(readable), branch_to_read) if branch_to_read not in readable else branch_to_read
        yield from self.compare(branch_to_read, writer, branch_path(path, branch_to_read, reader))

    def _several_branches(self, writer: Type, path: str) -> Incompatibility:
        return Incompatibility(
            rule=Rule.AMBIGUOUS,
            path=path,
            text=f"several branches of {self._sides.reader} match {writer}, and not all of them can read it",
            for_reader="give the branches different names: names that differ only in their namespace count as equal",
            for_writer="keep the type as it was",
            strict=True,
        )

    def _is_readable(self, reader: Type, writer: Type, path: str) -> bool:
        trial = Resolution(self._sides, set(self._compared_pairs))
        return all(finding.strict for finding in trial.compare(reader, writer, path))

    def _promoted(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        if reader.kind in PROMOTIONS.get(writer.kind, ()):
            yield from self._lossy(reader, writer, path)
            yield from self._logical(reader, writer, path)
            return
        yield Incompatibility(
            rule=Rule.TYPE_CHANGED,
            path=path,
            text=f"{self._sides.writer} holds {writer}, but {self._sides.reader} reads {reader}",
            for_reader=_ANOTHER,
            for_writer=_ANOTHER,
        )

    def _lossy(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        reason = _LOSSY.get((writer.kind, reader.kind))
        if reason is not None:
            yield Incompatibility(
                rule=Rule.PROMOTION_LOSSY,
                path=path,
                text=f"{self._sides.writer} holds {writer}, but {self._sides.reader} reads {reader}: {reason}",
                for_reader=_ANOTHER,
                for_writer=_ANOTHER,
                strict=True,
            )

    def _named(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        if not _same_name(reader, writer):
            yield Incompatibility(
                rule=Rule.NAME_MISMATCH,
                path=path,
                text=f"{self._sides.writer} calls the {writer.kind} {writer.name}, but {self._sides.reader} calls it"
                f" {reader.name}",
                for_reader=f'give {reader.name} the alias "{writer.name}"',
                for_writer=f'keep the name {reader.name}: the schemas in use have no alias "{writer.name}"',
            )
        match reader.kind:
            case "record":
                yield from self._record(reader, writer, path)
            case "enum":
                yield from self._enum(reader, writer, path)
            case _:
                yield from self._fixed(reader, writer, path)

    def _record(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        paired = pairs(reader, writer)
        matched_names = [field.name for _, fields in paired for field in fields]
        for field, fields in paired:
            here = f"{path}/fields/{field.name}"
            if len(fields) > 1:
                yield self._several_fields(field, fields, here)
                continue
            if not fields:
                if not field.has_default:
                    yield self._no_default(field, here, _renamed(field, paired, writer))
                continue
            if matched_names.count(fields[0].name) > 1 and fields[0].name != field.name:
                yield self._taken_twice(fields[0], here)
            yield from self.compare(field.type, fields[0].type, here)

    def _no_default(self, field: RecordField, path: str, renamed: Sequence[str]) -> Incompatibility:
        alias = f', or the alias "{renamed[0]}" if "{renamed[0]}" was renamed to "{field.name}"' if renamed else ""
        return Incompatibility(
            rule=Rule.FIELD_NO_DEFAULT,
            path=path,
            text=f'{self._sides.writer} has no field "{field.name}", and {self._sides.reader} has no default for it',
            for_reader=f'give "{field.name}" a default{alias}',
            for_writer=f'keep "{field.name}": a field without a default cannot be dropped or renamed',
        )

    def _several_fields(self, field: RecordField, fields: Sequence[RecordField], path: str) -> Incompatibility:
        names = " and ".join(f'"{writer_field.name}"' for writer_field in fields)
        return Incompatibility(
            rule=Rule.AMBIGUOUS,
            path=path,
            text=f'"{field.name}" in {self._sides.reader} matches several fields of {self._sides.writer}: {names}',
            for_reader=f'remove the alias from "{field.name}"',
            for_writer=f"keep only one of {names}",
        )

    def _taken_twice(self, writer_field: RecordField, path: str) -> Incompatibility:
        return Incompatibility(
            rule=Rule.AMBIGUOUS,
            path=path,
            text=f'several fields of {self._sides.reader} match "{writer_field.name}" in {self._sides.writer}',
            for_reader=f'let only one field have the name or the alias "{writer_field.name}"',
            for_writer=f'do not name a field "{writer_field.name}"; another field had this name before',
            strict=True,
        )

    def _enum(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if not missing:
            return
        names, default = ", ".join(missing), reader.enum_default
        text = f"{self._sides.writer} has symbols that {self._sides.reader} does not have: {names}"
        yield Incompatibility(
            rule=Rule.SYMBOL_MISSING,
            path=path,
            text=text if default is None else f"{text}; they would be read as {default}, which nobody wrote",
            for_reader=f"keep {names}",
            for_writer=f"do not write {names} in this field; add a separate field for new values, or use a string",
            strict=default is not None,
        )

    def _fixed(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        sizes = writer.about["size"], reader.about["size"]
        if sizes[0] != sizes[1]:
            yield Incompatibility(
                rule=Rule.FIXED_SIZE,
                path=path,
                text=f"{self._sides.writer} has {sizes[0]} bytes, but {self._sides.reader} has {sizes[1]}",
                for_reader=f"keep the size {sizes[0]}, or add a fixed type with another name",
                for_writer=f"keep the size {sizes[1]}, or add a field whose fixed type has another name",
            )
        yield from self._logical(reader, writer, path)

    def _logical(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        reader_meaning, writer_meaning = meaning(reader), meaning(writer)
        if reader_meaning != writer_meaning:
            yield Incompatibility(
                rule=Rule.LOGICAL_TYPE,
                path=path,
                text=f"{self._sides.writer} means {writer_meaning or f'a plain {writer.kind}'},"
                f" but {self._sides.reader} means {reader_meaning or f'a plain {reader.kind}'}",
                for_reader=_ANOTHER,
                for_writer=_ANOTHER,
                strict=True,
            )
        elif reader_meaning == "decimal":
            yield from self._decimal(reader, writer, path)

    def _decimal(self, reader: Type, writer: Type, path: str) -> Iterator[Incompatibility]:
        reader_digits, writer_digits = _digits(reader), _digits(writer)
        if reader_digits[1] == writer_digits[1] and reader_digits[0] >= writer_digits[0]:
            return
        yield Incompatibility(
            rule=Rule.DECIMAL,
            path=path,
            text=f"{self._sides.writer} has decimals of precision {writer_digits[0]} and scale {writer_digits[1]},"
            f" but {self._sides.reader} has precision {reader_digits[0]} and scale {reader_digits[1]}",
            for_reader=f"keep the scale {writer_digits[1]} and a precision of at least {writer_digits[0]}",
            for_writer=f"keep the scale {reader_digits[1]} and a precision of at most {reader_digits[0]},"
            " or add a field with another name",
            strict=True,
        )


def _matches(reader: Type, writer: Type) -> bool:
    """Returns whether a reader's branch matches a writer's type. As the specification says, only their kinds and names
    count.
    """
    if reader.kind != writer.kind:
        return reader.kind in PROMOTIONS.get(writer.kind, ())
    return reader.kind not in NAMED or _same_name(reader, writer)


def _rank(branch: Type, writer: Type) -> tuple[bool, bool]:
    """Returns the key by which matching branches are sorted. Branches of the writer's kind come before those to which a
    value must be converted, and branches with the writer's full name come before those with another name.
    """
    return branch.kind != writer.kind, branch.name != writer.name


def _same_name(reader: Type, writer: Type) -> bool:
    return reader.short == writer.short or writer.name in reader.aliases


def _with_branch(union: Type, writer: Type) -> str:
    alike = [branch for branch in union.of_union() if branch.kind == writer.kind]
    if writer.kind in NAMED and len(alike) == 1:
        return f'give {alike[0].name} the alias "{writer.name}", or add {writer} to the union'
    return f"add {writer} to the union"


def _renamed(
    field: RecordField, paired: Sequence[tuple[RecordField, Sequence[RecordField]]], writer: Type
) -> list[str]:
    """Returns the names of the writer's fields that match no field of the reader, and have the same type as `field`."""
    matched = {writer_field.name for _, fields in paired for writer_field in fields}
    return [
        writer_field.name
        for writer_field in writer.fields()
        if writer_field.name not in matched and writer_field.about["type"] == field.about["type"]
    ]


def _digits(type_: Type) -> tuple[Any, Any]:
    return type_.about.get("precision"), type_.about.get("scale", 0)
