"""Parses schema files, and makes the text of new files. A new file keeps what people added to the old file."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changelog.schemas import avro
from changelog.schemas.validity import faults

SUFFIX = ".avsc"

WIDTH = 120

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
"""Matches the brackets of JSON, and its strings, so that a bracket in a string does not count as nesting."""

OURS = frozenset(
    {"type", "name", "namespace", "key", "partitionBy", "fields", "default", avro.TRUE_NAME, "items", "values"}
)
"""The properties of records and fields that this program generates. People may add others, for example `doc`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A schema file: its text, and the schema in that text.

    If the file is invalid, `schema` is None, and `rule` names the rule that the file breaks. `path` is a JSON pointer
    to the fault in the schema. `trouble` is the end of a sentence about the file, such as "is not UTF-8 at byte 7".
    """

    file: str
    text: str
    schema: avro.Schema = None
    rule: str = ""
    path: str = "/"
    trouble: str = ""

    @property
    def name(self) -> str | None:
        """The schema's full name; None if it has no name, or if the file is invalid."""
        if not isinstance(self.schema, dict) or not isinstance(self.schema.get("name"), str):
            return None
        namespace = self.schema.get("namespace")
        return (
            f"{namespace}.{self.schema['name']}"
            if namespace and "." not in self.schema["name"]
            else self.schema["name"]
        )

    @property
    def subject(self) -> str:
        """What people call the schema: `prefix.entity` for the schema of an entity, the full name of any other schema.

        If the schema has no name, this is the name of the file without its suffix.
        """
        entity_path = avro.entity_of(self.schema)
        return ".".join(entity_path) if entity_path else self.name or Path(self.file).stem

    def line(self, path: str) -> int:
        """Returns the line of the field to which the pointer `path` leads, counted from 1; 1 if there is no field."""
        offset, steps = 0, iter(path.split("/"))
        for step in steps:
            if step == "fields":
                offset = _field_at(self.text, offset, next(steps, ""))
        return self.text.count("\n", 0, offset) + 1


def parse(file: str, content: bytes) -> Contract:
    """Parses the content of a file. If the content is invalid, the result says what is wrong with it."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return Contract(file=file, text="", rule="INVALID_JSON", trouble=f"is not UTF-8 at byte {error.start}")
    try:
        schema = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return Contract(file=file, text=text, rule="INVALID_JSON", trouble=f"is not JSON: {error}")
    schema_faults = faults(avro.closed(schema))
    if schema_faults:
        trouble = f"is not an Avro schema: {schema_faults[0].text}"
        return Contract(file=file, text=text, path=schema_faults[0].path, rule="INVALID_AVRO", trouble=trouble)
    return Contract(file=file, text=text, schema=avro.closed(schema))


def text_of(schema: avro.Schema) -> str:
    """Returns the text of a schema's file. The text depends only on the schema. Each field of a record begins a new
    line. Any other JSON value is on one line if it fits there and contains no record.
    """
    return f"{_text(schema, 0, 0)}\n"


def merged(schema: Mapping[str, Any], file_schema: avro.Schema) -> dict[str, Any]:
    """Returns `schema` with what people added to the file's schema: `doc`, `aliases` and properties of their own."""
    records = {record["name"]: record for record in _records(file_schema)}
    return _merged_record(schema, records)


def _merged_record(schema: Mapping[str, Any], records: Mapping[str, Any]) -> dict[str, Any]:
    old_record = records.get(schema["name"], {})
    old_fields = {field.get("name"): field for field in old_record.get("fields", ()) if isinstance(field, dict)}
    names = {field["name"] for field in schema["fields"]}
    merged_fields = [
        _with_additions(
            {**field, "type": _merged_type(field["type"], records)}, old_fields.get(field["name"], {}), names
        )
        for field in schema["fields"]
    ]
    return _with_additions({**schema, "fields": merged_fields}, old_record, ())


def _merged_type(schema: avro.Schema, records: Mapping[str, Any]) -> avro.Schema:
    match schema:
        case list():
            return [_merged_type(branch, records) for branch in schema]
        case {"type": "record"}:
            return _merged_record(schema, records)
        case {"items": items}:
            return {**schema, "items": _merged_type(items, records)}
        case {"values": values}:
            return {**schema, "values": _merged_type(values, records)}
    return schema


def _with_additions(generated: dict[str, Any], old: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns `generated` with the properties that people added to `old`, but without aliases that are in `names`.

    `names` are the names of the fields. An alias that is also the name of a field would be ambiguous.
    """
    additions = {name: value for name, value in old.items() if name not in OURS}
    if isinstance(additions.get("aliases"), list):
        additions["aliases"] = [alias for alias in additions["aliases"] if alias not in names]
    fields = {"fields": generated.pop("fields")} if "fields" in generated else {}
    return {**generated, **additions, **fields}  # the fields come last, below the properties that describe the record


def _records(schema: avro.Schema) -> Iterator[dict[str, Any]]:
    """Yields every named record in the schema; a record comes before the records inside it."""
    match schema:
        case list():
            for branch in schema:
                yield from _records(branch)
        case dict():
            if schema.get("type") == "record" and isinstance(schema.get("name"), str):
                yield schema
            for name in ("type", "items", "values", "fields"):
                yield from _records(schema.get(name))


def _field_at(text: str, start: int, name: str) -> int:
    """Returns the offset of the field with this name that follows `start` in the same record.

    If several fields have the name, the least nested one is meant. Returns `start` if no field has it.
    """
    field_offset, depth, least_depth = start, 0, len(text)
    pattern = re.compile(rf'"name"\s*:\s*"{re.escape(name)}"')
    for match in _TOKENS.finditer(text, start):
        token = match[0]
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
            if start and depth < 0:
                break
        elif depth < least_depth and pattern.match(text, match.start()):
            field_offset, least_depth = match.start(), depth
    return field_offset


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated_name = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"an object has the member {json.dumps(repeated_name)} twice")
    return members


def _text(value: object, depth: int, column_chars: int, *, broken: bool = False) -> str:
    """Returns the text of `value` as JSON.

    `depth` is the number of levels in which `value` is nested. `column_chars` is the number of characters before
    `value` on its first line, not counting the indentation. If `broken`, each item has a line of its own, even if
    `value` fits on one line.
    """
    line = json.dumps(value, ensure_ascii=False)
    fits = 2 * depth + column_chars + len(line) < WIDTH and not broken and '"fields": [' not in line
    if fits or not isinstance(value, dict | list) or not value:
        return line
    indent = "  " * (depth + 1)
    if isinstance(value, list):
        parts = [_text(item, depth + 1, 0) for item in value]
    else:
        heads = {name: f"{json.dumps(name, ensure_ascii=False)}: " for name in value}
        parts = [
            head + _text(value[name], depth + 1, len(head), broken=name == "fields") for name, head in heads.items()
        ]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    inner = ",\n".join(indent + part for part in parts)
    return f"{opening}\n{inner}\n{'  ' * depth}{closing}"
