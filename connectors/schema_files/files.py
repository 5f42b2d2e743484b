"""Schema files: read, written, and what people added to them kept."""

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
"""What tells how deep something stands in JSON."""

OURS = frozenset(
    {"type", "name", "namespace", "key", "partitionBy", "fields", "default", avro.TRUE_NAME, "items", "values"}
)
"""The properties of records and fields that follow from the table; people may add all others, and change `doc`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A file's text and the schema in it; what is wrong is said by `rule` and `trouble` in the schema's place."""

    file: str
    text: str
    schema: avro.Schema = None
    rule: str = ""
    path: str = "/"
    trouble: str = ""

    @property
    def name(self) -> str | None:
        """The schema's full name; None when it has none, or is none."""
        if not isinstance(self.schema, dict) or not isinstance(self.schema.get("name"), str):
            return None
        place = self.schema.get("namespace")
        return f"{place}.{self.schema['name']}" if place and "." not in self.schema["name"] else self.schema["name"]

    @property
    def subject(self) -> str:
        """What it is a contract of, for people: `prefix.entity` of an entity, else its name."""
        found = avro.entity_of(self.schema)
        return ".".join(found) if found else self.name or Path(self.file).stem

    def line(self, path: str) -> int:
        """The line of the file on which the field stands that a pointer leads to; 1 for the whole."""
        at, steps = 0, iter(path.split("/"))
        for step in steps:
            if step == "fields":
                at = _field_at(self.text, at, next(steps, ""))
        return self.text.count("\n", 0, at) + 1


def parse(file: str, content: bytes) -> Contract:
    """The contract that a file of this content is."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return Contract(file=file, text="", rule="INVALID_JSON", trouble=f"is not UTF-8 at byte {error.start}")
    try:
        schema = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return Contract(file=file, text=text, rule="INVALID_JSON", trouble=f"is not JSON: {error}")
    found = faults(avro.closed(schema))
    if found:
        trouble = f"is no schema of Avro: {found[0].text}"
        return Contract(file=file, text=text, path=found[0].path, rule="INVALID_AVRO", trouble=trouble)
    return Contract(file=file, text=text, schema=avro.closed(schema))


def text_of(schema: avro.Schema) -> str:
    """The text of a schema's file, the same for the same schema: what fits stands on a line."""
    return f"{_text(schema, 0, 0)}\n"


def merged(schema: Mapping[str, Any], written: avro.Schema) -> dict[str, Any]:
    """`schema` with what people added to the file as it stands: `doc`, `aliases` and properties of their own."""
    records = {record["name"]: record for record in _records(written)}
    return _merged_record(schema, records)


def _merged_record(schema: Mapping[str, Any], records: Mapping[str, Any]) -> dict[str, Any]:
    before = records.get(schema["name"], {})
    fields = {field.get("name"): field for field in before.get("fields", ()) if isinstance(field, dict)}
    names = {field["name"] for field in schema["fields"]}
    merged_fields = [
        _with_additions({**field, "type": _merged_type(field["type"], records)}, fields.get(field["name"], {}), names)
        for field in schema["fields"]
    ]
    return _with_additions({**schema, "fields": merged_fields}, before, ())


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


def _with_additions(made: dict[str, Any], before: Mapping[str, Any], taken: Iterable[str]) -> dict[str, Any]:
    """`made` with the properties of `before` that it may have; an alias that is `taken` as a name says nothing now."""
    added = {name: value for name, value in before.items() if name not in OURS}
    if isinstance(added.get("aliases"), list):
        added["aliases"] = [alias for alias in added["aliases"] if alias not in taken]
    fields = {"fields": made.pop("fields")} if "fields" in made else {}
    return {**made, **added, **fields}  # the fields last: what is said of a record stands above them


def _records(schema: avro.Schema) -> Iterator[dict[str, Any]]:
    """Every record in it that has a name, the outer before the inner."""
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
    """Where the outermost field of this name begins behind `start`, within what `start` is in; `start` for none."""
    found, depth, least = start, 0, len(text)
    pattern = re.compile(rf'"name"\s*:\s*"{re.escape(name)}"')
    for match in _TOKENS.finditer(text, start):
        token = match[0]
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
            if start and depth < 0:
                break
        elif depth < least and pattern.match(text, match.start()):
            found, least = match.start(), depth
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"an object has the member {json.dumps(twice)} twice")
    return found


def _text(value: object, depth: int, before: int, *, broken: bool = False) -> str:
    """`value` as JSON that stands `depth` levels deep, with `before` characters in front on its line.

    `broken` says that it stands on lines of its own however short it is, as fields do.
    """
    line = json.dumps(value, ensure_ascii=False)
    fits = 2 * depth + before + len(line) < WIDTH and not broken and '"fields": [' not in line
    if fits or not isinstance(value, dict | list) or not value:
        return line
    indent = "  " * (depth + 1)
    if isinstance(value, list):
        parts = [_text(each, depth + 1, 0) for each in value]
    else:
        heads = {name: f"{json.dumps(name, ensure_ascii=False)}: " for name in value}
        parts = [
            head + _text(value[name], depth + 1, len(head), broken=name == "fields") for name, head in heads.items()
        ]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    inner = ",\n".join(indent + part for part in parts)
    return f"{opening}\n{inner}\n{'  ' * depth}{closing}"
