"""Whether a schema may follow earlier ones: Avro's schema resolution, and stricter rules of a changelog's own.

`schemas.resolution` has those on types; here are those on an entity. `schemas.rules` lists them.

A record names its key and its partition key in its properties `key` and `partitionBy`. A version before the first that
does is not held to them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from schemas.avro import TRUE_NAME, Schema, true_name
from schemas.document import Document, Field, Type, branch_path, is_valid
from schemas.resolution import Resolution, pairs
from schemas.rules import Finding, Rule, Sides

__all__ = ["KEY", "PARTITION", "Mode", "Problem", "Rule", "problems"]

KEY, PARTITION = "key", "partitionBy"
"""Properties of an entity's record: the columns of its key, and those that choose the partition."""

NEW_READERS, OLD_READERS = "new readers", "old readers"


class Mode(StrEnum):
    """Who must be able to read what, as Confluent's registry defines it; the transitive ones look at every version."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether every earlier version counts, and not the last one alone."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether readers with the new schema must read what was written before."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether readers with an earlier schema must read what will be written."""
        return self.value.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a schema may not follow another."""

    rule: Rule
    path: str  # a pointer into the new schema, fields by name and unions left out: /fields/current/fields/amount
    breaks: str  # "new readers", which cannot read what was written with the old schema, or "old readers"
    against: str  # the older version's label; empty for what is wrong in the new schema alone
    text: str  # what is wrong
    hint: str  # the way out
    strict: bool  # Avro's own resolution would let it pass


def problems(new: Schema, old: Sequence[tuple[str, Schema]], mode: Mode) -> list[Problem]:
    """What keeps `new` from following `old`: the earlier versions, oldest first, each with its label.

    Raises ValueError when one of them is no schema of Avro's.
    """
    if mode is Mode.NONE:
        return []
    document = Document(new)
    found = [_problem(finding, NEW_READERS, "") for finding in _alone(document)]
    for left, (label, schema) in zip(range(len(old), 0, -1), old, strict=True):
        if (left == 1 or mode.transitive) and schema != new:
            found += _against(document, Document(schema), label, mode, is_last=left == 1)
    return found


def _against(new: Document, old: Document, label: str, mode: Mode, *, is_last: bool) -> Iterator[Problem]:
    if mode.backward:
        findings = Resolution(Sides(reader="the new schema", writer=label)).compare(new.root, old.root, "")
        yield from (_problem(finding, NEW_READERS, label) for finding in findings)
    if mode.forward:
        findings = Resolution(Sides(reader=label, writer="the new schema")).compare(old.root, new.root, "")
        yield from (_problem(finding, OLD_READERS, label) for finding in findings)
    first = NEW_READERS if mode.backward else OLD_READERS
    for path, record, before in _records(new.root, old.root, "", set()):
        findings = _entity(path, record, before, label, is_last=is_last)
        yield from (_problem(finding, first, label) for finding in findings)


def _problem(finding: Finding, breaks: str, against: str) -> Problem:
    return Problem(
        rule=finding.rule,
        path=finding.path or "/",
        breaks=breaks,
        against=against,
        text=finding.text,
        hint=finding.for_reader if breaks == NEW_READERS else finding.for_writer,
        strict=finding.strict,
    )


def _finding(rule: Rule, path: str, text: str, hint: str) -> Finding:
    return Finding(rule=rule, path=path, text=text, for_reader=hint, for_writer=hint, strict=True)


def _alone(document: Document) -> Iterator[Finding]:
    """What is wrong in the new schema, whatever came before."""
    seen = set[str]()
    for path, type_, field in document.walk():
        if field is not None and field.has_default and not is_valid(field.about["default"], type_):
            yield _finding(
                Rule.DEFAULT_INVALID,
                path,
                f'the default of "{field.name}" is no value of {type_}',
                f"give it a default that is one{', such as null' if _may_be_null(type_) else ''}",
            )
        if type_.name not in seen:
            seen.add(type_.name)
            yield from _definition(path, type_)


def _definition(path: str, type_: Type) -> Iterator[Finding]:
    if type_.kind == "enum" and type_.about.get("default") is not None and type_.enum_default is None:
        yield _finding(
            Rule.DEFAULT_INVALID, path, f"the default of {type_} is none of its symbols", "give it one of its symbols"
        )
    if type_.kind == "record":
        yield from _key(path, type_)


def _key(path: str, record: Type) -> Iterator[Finding]:
    columns = {_column(field): field for field in record.fields()}
    for column in _names(record, KEY) or ():
        if column not in columns:
            yield _finding(
                Rule.KEY_CHANGED, path, f'the key names "{column}", which is no field', "name only fields of the record"
            )
        elif _may_be_null(columns[column].type):
            yield _finding(
                Rule.KEY_NULLABLE,
                f"{path}/fields/{columns[column].name}",
                f'"{column}" is of the key, and may be null',
                "take null out of its type: a column of a key is NOT NULL",
            )


def _records(new: Type, old: Type, path: str, seen: set[tuple[str, str]]) -> Iterator[tuple[str, Type, Type]]:
    """Records of the new schema with what they were, found by their place."""
    if (new.name, old.name) in seen:
        return
    if new.name and old.name:
        seen.add((new.name, old.name))
    match new.kind, old.kind:
        case "union", _:
            for branch in new.of_union():
                yield from _records(branch, old, branch_path(path, branch, new), seen)
        case _, "union":
            for branch in old.of_union():
                yield from _records(new, branch, path, seen)
        case "array", "array":
            yield from _records(new.items(), old.items(), f"{path}/items", seen)
        case "map", "map":
            yield from _records(new.values(), old.values(), f"{path}/values", seen)
        case "record", "record" if new.short == old.short or old.name in new.aliases:
            yield path, new, old
            for field, before in pairs(new, old):
                for each in before[:1]:
                    yield from _records(field.type, each.type, f"{path}/fields/{field.name}", seen)


def _entity(path: str, new: Type, old: Type, label: str, *, is_last: bool) -> Iterator[Finding]:
    for rule, name, what in ((Rule.KEY_CHANGED, KEY, "key"), (Rule.PARTITION_CHANGED, PARTITION, "partition key")):
        now, before = _names(new, name), _names(old, name)
        if before is not None and now != before:
            yield _finding(
                rule,
                path,
                f"the {what} was {', '.join(before)} in {label}, and is {', '.join(now or ['nothing'])}",
                f"keep the {what}, or publish under another entity",
            )
    for field, before_fields in pairs(new, old):
        for before_field in before_fields[:1]:
            if before_field.name == field.name and _column(before_field) != _column(field):
                yield _finding(
                    Rule.COLUMN_CHANGED,
                    f"{path}/fields/{field.name}",
                    f'the column was "{_column(before_field)}" in {label}, and is "{_column(field)}"',
                    "keep the column, or add a field of another name",
                )
    if is_last:
        yield from _renamed(path, new, old, label)


def _renamed(path: str, new: Type, old: Type, label: str) -> Iterator[Finding]:
    """A field for another in the same place, of the same type: who drops a column and adds one adds it at the end."""
    names = {name for field in new.fields() for name in (field.name, *field.aliases)}
    dropped = {field.index: field for field in old.fields() if field.name not in names}
    for field, before in pairs(new, old):
        gone = dropped.get(field.index)
        if not before and gone is not None and gone.about["type"] == field.about["type"]:
            yield _finding(
                Rule.FIELD_RENAMED,
                f"{path}/fields/{field.name}",
                f'it stands where {label} has "{gone.name}" of the same type: it would lose what was written there',
                f'if it is renamed, give it the alias "{gone.name}"; if not, drop "{gone.name}" a version earlier',
            )


def _column(field: Field) -> str:
    return str(field.about.get(TRUE_NAME, true_name(field.name)))


def _names(record: Type, property_: str) -> list[str] | None:
    names: Any = record.about.get(property_)
    return [str(name) for name in names] if isinstance(names, list) else None


def _may_be_null(type_: Type) -> bool:
    return type_.kind == "null" or any(branch.kind == "null" for branch in type_.of_union())
