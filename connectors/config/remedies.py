"""Turns each error of validation into a place in the configuration file and a text that says how to correct it."""

import difflib
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from changelog.connectors.config.kafka import KafkaConfig
from changelog.connectors.config.model import Config

Loc = tuple[str | int, ...]
"""A place in the file: the keys that lead to it, and the indexes of list items."""

_KINDS = {"sink": ("files", "kafka"), "source": ("debezium", "mysql", "postgres")}


def place(details: ErrorDetails) -> Loc:
    """Returns the place of an error in the file.

    The place is pydantic's location, without the parts that pydantic adds: `[key]`, and the kind of the source or sink.
    """
    loc = tuple(part for part in details["loc"] if part != "[key]")
    if details["type"] == "union_tag_invalid":
        return (*loc, "kind")
    return loc[:1] + loc[2:] if len(loc) > 1 and loc[1] in _KINDS.get(str(loc[0]), ()) else loc


def remedy(details: ErrorDetails) -> str:
    """Returns a text with the problem and the correction. The text never contains the value, which may be a secret."""
    match details["type"]:
        case "missing":
            return "is missing; add it"
        case "union_tag_invalid":
            return f"should be {details['ctx']['expected_tags'].replace(', ', ' or ')}"
        case "extra_forbidden":
            return _unknown(details["loc"])
        case "string_pattern_mismatch":
            characters = "a-z, 0-9 and _" if "{1,63}" in details["ctx"]["pattern"] else "a-z, 0-9, - and _"
            return f"should be made of {characters}"
        case "string_too_short":
            return f"should have {details['ctx']['min_length']} characters or more"
        case "too_short":
            return "should not be empty"
        case "value_error":
            return str(details["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return "should be a table"
        case "tuple_type":
            return "should be a list"
        case _:
            return details["msg"].removeprefix("Input ").replace(", unable to parse string as an integer", "")


def _unknown(loc: Loc) -> str:
    keys = known_keys(loc[:-1])
    if loc[:-1] == ("sink", "files") and loc[-1] in KafkaConfig.model_fields:
        return 'applies only to kind = "kafka"; set that kind, or leave this key out'
    close = difflib.get_close_matches(str(loc[-1]), keys, n=1)
    return f"is not known; did you mean {close[0]}?" if close else f"is not known; known here: {', '.join(keys)}"


def known_keys(loc: Loc) -> list[str]:
    """Returns the keys that the section at `loc` may have; an empty list if the section may have any key."""
    annotations: list[Any] = [Config]
    for part in loc:
        annotations = [inner for annotation in annotations for inner in _below(annotation, part)]
    return list(dict.fromkeys(str(key) for annotation in annotations for key in _fields(annotation)))


def _below(annotation: Any, part: str | int) -> list[Any]:
    """Returns the types that the value of the key `part` may have in a section or dict of type `annotation`.

    `part` may also be a kind of source or sink, because pydantic adds the kind to its locations. Then the result is
    `annotation` itself if this is the section of that kind, otherwise it is empty.
    """
    fields = _fields(annotation)
    if fields:
        if (part,) == get_args(fields.get("kind")):
            return [annotation]
        return _alternatives(fields[part]) if part in fields else []
    return list(get_args(annotation)[-1:])


def _fields(annotation: Any) -> dict[str | int, Any]:
    """Returns the type of each value in a section, by the value's key; empty if `annotation` is not a section."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return {}
    return {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [inner for part in get_args(annotation) for inner in _alternatives(part)]
    return [annotation]
