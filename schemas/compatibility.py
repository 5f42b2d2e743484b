"""Decides whether a new version of a schema is compatible with the versions before it.

The rules are those of Avro's schema resolution, and stricter ones for changelogs. `changelog.schemas.resolution` has
the rules for types. This module has the rules for an entity, such as the rules for its key. `changelog.schemas.rules`
lists all rules.

The properties `key` and `partitionBy` of a record name the columns of its key and of its partition key. If the older
version lacks one of these properties, that property is not compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from changelog.schemas.avro import TRUE_NAME, Schema, true_name
from changelog.schemas.document import Document, RecordField, Type, branch_path, is_valid
from changelog.schemas.resolution import Resolution, pairs
from changelog.schemas.rules import Incompatibility, Rule, SideNames

__all__ = ["KEY", "PARTITION", "Mode", "Problem", "Rule", "problems"]

KEY, PARTITION = "key", "partitionBy"
"""Properties of an entity's record: the columns of its key, and the columns that determine the partition of a row."""

NEW_READERS, OLD_READERS = "new readers", "old readers"


class Mode(StrEnum):
    """The compatibility modes of Confluent's registry. In a transitive mode, a new version is compared with all earlier
    versions. In any other mode, it is compared only with the last one, except that NONE compares nothing.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether a new version is compared with every earlier version, not only with the last one."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether readers with the new schema must be able to read earlier data."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether readers with an earlier schema must be able to read later data."""
        return self.value.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a schema may not follow another."""

    rule: Rule
    path: str  # a pointer into the new schema, with names of fields and without unions: /fields/current/fields/amount
    breaks: str  # "new readers" if they cannot read old data, "old readers" if they cannot read new data
    against: str  # the label of the older version; empty if the new schema is wrong by itself
    text: str  # what is wrong
    hint: str  # what to do
    strict: bool  # whether only this program's stricter rules forbid the change; Avro's own rules allow it


def problems(new: Schema, old: Sequence[tuple[str, Schema]], mode: Mode) -> list[Problem]:
    """Returns the reasons why `new` may not follow the earlier versions in `old`; an empty list if it may.

    `old` has a label and a schema for each version, oldest first. Raises ValueError if a schema that has to be compared
    is not valid Avro.
    """
    if mode is Mode.NONE:
        return []
    document = Document(new)
    result = [_problem(finding, NEW_READERS, "") for finding in _alone(document)]
    for remaining, (label, schema) in zip(range(len(old), 0, -1), old, strict=True):
        if (remaining == 1 or mode.transitive) and schema != new:
            result += _against(document, Document(schema), label, mode, is_last=remaining == 1)
    return result


def _against(new: Document, old: Document, label: str, mode: Mode, *, is_last: bool) -> Iterator[Problem]:
    if mode.backward:
        findings = Resolution(SideNames(reader="the new schema", writer=label)).compare(new.root, old.root, "")
        yield from (_problem(finding, NEW_READERS, label) for finding in findings)
    if mode.forward:
        findings = Resolution(SideNames(reader=label, writer="the new schema")).compare(old.root, new.root, "")
        yield from (_problem(finding, OLD_READERS, label) for finding in findings)
    first = NEW_READERS if mode.backward else OLD_READERS
    for path, record, before in _records(new.root, old.root, "", set()):
        findings = _entity(path, record, before, label, is_last=is_last)
        yield from (_problem(finding, first, label) for finding in findings)


def _problem(finding: Incompatibility, breaks: str, against: str) -> Problem:
    return Problem(
        rule=finding.rule,
        path=finding.path or "/",
        breaks=breaks,
        against=against,
        text=finding.text,
        hint=finding.for_reader if breaks == NEW_READERS else finding.for_writer,
        strict=finding.strict,
    )


def _finding(rule: Rule, path: str, text: str, hint: str) -> Incompatibility:
    return Incompatibility(rule=rule, path=path, text=text, for_reader=hint, for_writer=hint, strict=True)


def _alone(document: Document) -> Iterator[Incompatibility]:
    """Yields what is wrong with the new schema by itself, without comparing it with earlier versions."""
    names = set[str]()
    for path, type_, field in document.walk():
        if field is not None and field.has_default and not is_valid(field.about["default"], type_):
            yield _finding(
                Rule.DEFAULT_INVALID,
                path,
                f'the default of "{field.name}" is not a value of {type_}',
                f"give it a default of that type{', such as null' if _may_be_null(type_) else ''}",
            )
        if type_.name not in names:
            names.add(type_.name)
            yield from _definition(path, type_)


def _definition(path: str, type_: Type) -> Iterator[Incompatibility]:
    if type_.kind == "enum" and type_.about.get("default") is not None and type_.enum_default is None:
        yield _finding(
            Rule.DEFAULT_INVALID, path, f"the default of {type_} is not one of its symbols", "use one of its symbols"
        )
    if type_.kind == "record":
        yield from _key(path, type_)


def _key(path: str, record: Type) -> Iterator[Incompatibility]:
    columns = {_column(field): field for field in record.fields()}
    for column in _names(record, KEY) or ():
        if column not in columns:
            yield _finding(
                Rule.KEY_CHANGED,
                path,
                f'the key names "{column}", which is not a field',
                "name only fields of the record",
            )
        elif _may_be_null(columns[column].type):
            yield _finding(
                Rule.KEY_NULLABLE,
                f"{path}/fields/{columns[column].name}",
                f'"{column}" belongs to the key, but may be null',
                "remove null from its type, because a column of a key is never null",
            )


def _records(new: Type, old: Type, path: str, pairs_of_names: set[tuple[str, str]]) -> Iterator[tuple[str, Type, Type]]:
    """Yields (path, new, old) for each record of the new schema that matches a record of the old one."""
    if (new.name, old.name) in pairs_of_names:
        return
    if new.name and old.name:
        pairs_of_names.add((new.name, old.name))
    match new.kind, old.kind:
        case "union", _:
            for branch in new.of_union():
                yield from _records(branch, old, branch_path(path, branch, new), pairs_of_names)
        case _, "union":
            for branch in old.of_union():
                yield from _records(new, branch, path, pairs_of_names)
        case "array", "array":
            yield from _records(new.items(), old.items(), f"{path}/items", pairs_of_names)
        case "map", "map":
            yield from _records(new.values(), old.values(), f"{path}/values", pairs_of_names)
        case "record", "record" if new.short == old.short or old.name in new.aliases:
            yield path, new, old
            for field, before in pairs(new, old):
                for old_field in before[:1]:
                    yield from _records(field.type, old_field.type, f"{path}/fields/{field.name}", pairs_of_names)


def _entity(path: str, new: Type, old: Type, label: str, *, is_last: bool) -> Iterator[Incompatibility]:
    for rule, name, title in ((Rule.KEY_CHANGED, KEY, "key"), (Rule.PARTITION_CHANGED, PARTITION, "partition key")):
        now, before = _names(new, name), _names(old, name)
        if before is not None and now != before:
            yield _finding(
                rule,
                path,
                f"the {title} was {', '.join(before)} in {label}, and is now {', '.join(now or ['missing'])}",
                f"keep the {title}, or publish under another entity",
            )
    for field, old_fields in pairs(new, old):
        for old_field in old_fields[:1]:
            if old_field.name == field.name and _column(old_field) != _column(field):
                yield _finding(
                    Rule.COLUMN_CHANGED,
                    f"{path}/fields/{field.name}",
                    f'the column was "{_column(old_field)}" in {label}, and is now "{_column(field)}"',
                    "keep the column, or add a field with another name",
                )
    if is_last:
        yield from _renamed(path, new, old, label)


def _renamed(path: str, new: Type, old: Type, label: str) -> Iterator[Incompatibility]:
    """Yields a finding for each new field that has the index and the type of a dropped field.

    Such a field is probably the dropped field with a new name, because a database would add a new column after all
    others.
    """
    names = {name for field in new.fields() for name in (field.name, *field.aliases)}
    dropped = {field.index: field for field in old.fields() if field.name not in names}
    for field, before in pairs(new, old):
        old_field = dropped.get(field.index)
        if not before and old_field is not None and old_field.about["type"] == field.about["type"]:
            yield _finding(
                Rule.FIELD_RENAMED,
                f"{path}/fields/{field.name}",
                f'it takes the place of "{old_field.name}", a field of the same type in {label}, whose values readers'
                " would lose",
                f'if the field was renamed, give it the alias "{old_field.name}"; otherwise, drop "{old_field.name}" in'
                " an earlier version",
            )


def _column(field: RecordField) -> str:
    return str(field.about.get(TRUE_NAME, true_name(field.name)))


def _names(record: Type, property_: str) -> list[str] | None:
    names: Any = record.about.get(property_)
    return [str(name) for name in names] if isinstance(names, list) else None


def _may_be_null(type_: Type) -> bool:
    return type_.kind == "null" or any(branch.kind == "null" for branch in type_.of_union())
