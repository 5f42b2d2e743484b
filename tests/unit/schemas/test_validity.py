"""Tests `faults`, which finds what is wrong with an Avro schema.

`faults` must find nothing in valid schemas. It must find every fault for which fastavro refuses a schema, and some
others.
"""

import json
from typing import Any

import fastavro
import pytest

from changelog.schemas.validity import NESTING_MAX, faults


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def of(type_: Any, **more: Any) -> dict[str, Any]:
    return record({"name": "a", "type": type_, **more})


E = {"type": "enum", "name": "E", "symbols": ["x", "y"]}
SPACED = {"type": "fixed", "name": "F", "namespace": "other", "size": 2}


@pytest.mark.parametrize(
    "schema",
    [
        "int",
        [],
        ["null", "string"],
        {"type": "string", "logicalType": "uuid"},
        {"type": "error", "name": "Bad", "fields": []},
        of(["null", "R"], default=None),
        of(["null", {"type": "array", "items": "int"}, {"type": "map", "values": ["null", E]}]),
        record({"name": "a", "type": E}, {"name": "b", "type": "E"}),
        record({"name": "a", "type": SPACED}, {"name": "b", "type": ["null", "other.F"]}, namespace="here.now"),
        record({"name": "a", "type": SPACED}, {"name": "b", "type": {**E, "name": "other.E"}}, name="n.R"),
        of({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 4}),
        of({"type": "record", "name": "x.R", "fields": []}, aliases=["b"], doc="…", custom={"a": 1}),
    ],
)
def test_valid_schemas_have_no_faults(schema: Any) -> None:
    fastavro.parse_schema(json.loads(json.dumps(schema)))
    assert faults(schema) == []


@pytest.mark.parametrize(
    ("schema", "path", "text"),
    [
        (5, "/", "a type is neither a name, a list nor an object"),
        ("strin", "/", 'there is no type "strin"'),
        ({}, "/", "an object has no type"),
        (of({"type": {"type": "long"}}), "/fields/a", "the member `type` of an object is not the name of a type"),
        ({"type": "recrod", "name": "R", "fields": []}, "/", 'there is no type "recrod"'),
        ({"type": "record", "fields": []}, "/", "a record has no name"),
        (record(name=5), "/", "the name of a record is not a string"),
        (record(5), "/", "field 1 has no name"),
        (record({"type": "int"}), "/", "field 1 has no name"),
        (record({"name": "a"}), "/fields/a", "has no type"),
        (of("int", aliases="b"), "/fields/a", "aliases are not a list of names"),
        (of("State"), "/fields/a", 'there is no type "State", or it is defined only further down'),
        (of({"type": "array"}), "/fields/a", "an array has no items"),
        (of({"type": "map", "values": "lnog"}), "/fields/a/values", 'there is no type "lnog"'),
        (of({"type": "fixed", "name": "F"}), "/fields/a", "a fixed has no size"),
        (of({**E, "symbols": ["x", "x"]}), "/fields/a", "an enum has a symbol twice"),
        (of({**E, "symbols": ["x y"]}), "/fields/a", '"x y" is not a valid symbol'),
        (of({"type": "record", "name": "R", "fields": []}), "/fields/a", '"R" is defined twice'),
        (
            of({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}),
            "/fields/a",
            "a decimal needs a precision above 0, and a scale from 0 to that precision",
        ),
    ],
)
def test_schemas_that_fastavro_refuses_are_refused_with_their_path(schema: Any, path: str, text: str) -> None:
    with pytest.raises(Exception, match=r"."):
        fastavro.parse_schema(json.loads(json.dumps(schema)))
    first = faults(schema)[0]
    assert first.path == path
    assert first.text.startswith(text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "record", "name": "R"}, "a record has no fields"),
        (record(fields=5), "the fields of a record are not a list"),
        (record(namespace=5), "the name of a record is not a string"),
        (record(name="a-b"), '"a-b" is not a valid name'),
        (record(namespace="a..b"), '"a..b.R" is not a valid name'),
        (record({"name": "a b", "type": "int"}), "is not a valid name"),
        (record({"name": "a", "type": "int"}, {"name": "a", "type": "int"}), "appears twice"),
        (of(["null", "null"]), 'a union has "null" twice'),
        (of(["null", E, "E"]), 'a union has "E" twice'),
        (of(["null", ["int"]]), "a union is nested directly in a union"),
        (of({**E, "symbols": "x"}), "the symbols of an enum are not a list of strings"),
        (of({"type": "fixed", "name": "F", "size": "2"}), "the size of a fixed is not a number of bytes"),
        (record({"name": "b", "type": "E"}, {"name": "a", "type": E}), 'there is no type "E"'),
    ],
)
def test_other_schemas_that_the_specification_forbids_are_refused(schema: Any, text: str) -> None:
    assert faults(schema)[0].text.startswith(text)


def test_types_that_are_nested_too_deeply_are_refused() -> None:
    schema: Any = "int"
    for _ in range(NESTING_MAX):
        schema = {"type": "array", "items": schema}
    assert faults(schema) == []
    assert "levels deep" in faults({"type": "array", "items": schema})[0].text
