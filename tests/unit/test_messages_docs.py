"""Tests that docs/reference/messages.md names exactly the members of the messages' JSON Schema.

The schema must refuse invalid messages.
"""

import json
import re
from typing import Any

import pytest
from jsonschema import ValidationError

from tests.message_schema import DOCS, MESSAGE, SCHEMA

PAGE = (DOCS / "reference" / "messages.md").read_text("utf-8")
[EXAMPLE] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def members(section: str) -> set[str]:
    """Returns the names in the first column of the table in a section of the page."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("name", ["provenance", "source"])
def test_the_page_names_every_member(name: str) -> None:
    section = {"provenance": "`provenance`", "source": "`provenance.source`"}[name]
    assert members(section) == SCHEMA["$defs"][name]["properties"].keys()


def test_the_page_names_every_op() -> None:
    assert members("The two states") == {"op", *SCHEMA["$defs"]["source"]["properties"]["op"]["enum"]}


def test_the_example_on_the_page_is_a_valid_message() -> None:
    MESSAGE.validate(EXAMPLE)


def example_with(path: str, value: Any) -> dict[str, Any]:
    """Returns the example with `value` at `path`, or without the member at `path` if `value` is None."""
    message = json.loads(json.dumps(EXAMPLE))
    *parents, last = path.split(".")
    place = message
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return dict(message)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("provenance", None),
        ("provenance.source.op", "upsert"),
        ("provenance.source.op", "create"),
        ("provenance.source.op", "delete"),
        ("provenance.source.op", "truncate"),
        ("provenance.source.position", "1/1781838/6"),
        ("provenance.source.committedAt", "2026-11-21 03:10:02"),
        ("provenance.source.unavailable", []),
        ("provenance.source.colour", "blue"),
        ("current", []),
    ],
)
def test_an_invalid_message_is_refused(path: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        MESSAGE.validate(example_with(path, value))
