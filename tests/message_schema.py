"""Validates messages against docs/message.schema.json, and forbids all members that this schema does not describe."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "message.schema.json").read_text("utf-8"))


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema that forbids additional members. The columns of a row are not restricted."""
    definitions = {
        name: {**definition, "additionalProperties": False} if "properties" in definition else definition
        for name, definition in schema["$defs"].items()
    }
    return {**schema, "$defs": definitions, "additionalProperties": False}


Draft202012Validator.check_schema(SCHEMA)

MESSAGE = Draft202012Validator(_strict(SCHEMA))
