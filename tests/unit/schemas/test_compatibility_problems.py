"""Tests changes that are not allowed for an entity's schema, the texts that describe problems, and invalid schemas."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.schemas import avro
from changelog.schemas.avro import Schema
from changelog.schemas.compatibility import Mode, Problem, Rule, problems
from changelog.schemas.resolution import unreadable
from changelog.schemas.types import Decimal, Primitive, Struct
from tests.unit.schemas.avro_schemas import (
    A_DINT,
    A_INT,
    AB,
    B_DINT,
    B_INT,
    FIXED_4,
    FIXED_8,
    INT,
    LONG,
    STRING,
    array,
    enum,
    field,
    fixed,
    map_,
    optional,
    record,
)

KEYED = record(A_INT, B_INT, optional("c"), key=["a", "b"], partitionBy=["a"])

ENTITY: list[tuple[Schema, Schema, list[tuple[Rule, str]]]] = [
    (KEYED, KEYED, []),
    (record(*KEYED["fields"]), KEYED, []),
    (KEYED, record(*KEYED["fields"]), [(Rule.KEY_CHANGED, "/"), (Rule.PARTITION_CHANGED, "/")]),
    (KEYED, {**KEYED, "key": ["b", "a"]}, [(Rule.KEY_CHANGED, "/")]),
    (KEYED, {**KEYED, "partitionBy": ["b"]}, [(Rule.PARTITION_CHANGED, "/")]),
    (
        KEYED,
        {**KEYED, "key": ["a", "b", "c"]},
        [(Rule.KEY_NULLABLE, "/fields/c"), (Rule.KEY_CHANGED, "/")],
    ),
    (record(A_INT), record(A_INT, key=["z"]), [(Rule.KEY_CHANGED, "/")]),
    (record(field("x", INT)), record(field("x", INT, column="x")), []),
    (
        record(field("x", INT, column="x y")),
        record(field("x", INT, column="x z")),
        [(Rule.COLUMN_CHANGED, "/fields/x")],
    ),
    (record(field("x_x0020_y", INT)), record(field("x_x0020_y", INT, column="x y")), []),
    (record(optional("x")), record(optional("y")), [(Rule.FIELD_RENAMED, "/fields/y")]),
    (record(optional("x")), record(optional("y", aliases=["x"])), []),
    (record(optional("x"), A_DINT), record(A_DINT, optional("y")), []),
    (record(optional("x")), record(field("y", ["null", INT], default=None)), []),
    (record(), record(field("a", INT, default="x")), [(Rule.DEFAULT_INVALID, "/fields/a")]),
    (record(), record(field("a", INT, default=1 << 31)), [(Rule.DEFAULT_INVALID, "/fields/a")]),
    (record(), record(field("a", FIXED_4, default="abc")), [(Rule.DEFAULT_INVALID, "/fields/a")]),
    (record(), record(field("a", ["null", INT], default="x")), [(Rule.DEFAULT_INVALID, "/fields/a")]),
    (record(), record(field("a", ["null", INT], default=1)), []),
    (record(), record(field("a", record(A_INT, B_DINT, name="S"), default={"a": 1})), []),
    (record(), record(field("a", record(A_INT, name="S"), default={})), [(Rule.DEFAULT_INVALID, "/fields/a")]),
    (record(), record(field("a", array(map_(AB)), default=[{"k": "A"}])), []),
    (record(), record(field("a", array(map_(AB)), default=[{"k": "C"}])), [(Rule.DEFAULT_INVALID, "/fields/a")]),
    (record(), record(field("a", enum("E", "AB", "Z"), default="A")), [(Rule.DEFAULT_INVALID, "/fields/a")]),
]


@pytest.mark.parametrize(("old", "new", "expected"), ENTITY)
@pytest.mark.parametrize("mode", [Mode.FORWARD, Mode.FULL_TRANSITIVE])
def test_strict_rules_forbid_these_changes_of_an_entity(
    old: Schema, new: Schema, expected: list[tuple[Rule, str]], mode: Mode
) -> None:
    changes = problems(new, [("v1", old)], mode)
    assert [(problem.rule, problem.path) for problem in changes] == expected
    assert all(problem.strict for problem in changes)
    assert problems(new, [("v1", old)], Mode.NONE) == []


def test_a_drop_and_an_add_in_two_versions_is_no_rename() -> None:
    first, third = record(optional("x")), record(optional("y"))
    assert problems(third, [("v1", first), ("v2", record())], Mode.FULL_TRANSITIVE) == []


OLD = Struct(fields=(("id", Primitive.LONG), ("amount", Decimal(precision=10, scale=2)), ("größe", Primitive.INT)))


def envelope(*fields: tuple[str, Any]) -> Schema:
    return avro.value_schema("order", Struct(fields=fields), ["id"], "booking")


def test_an_entity_may_gain_and_lose_columns() -> None:
    old = envelope(*OLD.fields)
    grown = envelope(*OLD.fields, ("note", Primitive.STRING))
    shrunk = envelope(*OLD.fields[:2])
    assert problems(grown, [("v1", old)], Mode.FULL_TRANSITIVE) == []
    assert problems(shrunk, [("v1", old), ("v2", grown)], Mode.FULL_TRANSITIVE) == []


def test_a_problem_names_the_field_the_readers_and_the_remedy() -> None:
    old = envelope(*OLD.fields)
    new = envelope(("id", Primitive.STRING), ("amount", Decimal(precision=10, scale=3)), ("größe", Primitive.LONG))
    assert descriptions(problems(new, [("v1", old)], Mode.FULL)) == [
        (
            "TYPE_CHANGED /fields/current/fields/id breaks new readers of v1",
            "v1 holds long, but the new schema reads string",
            "keep the type, and add a separate field for the new type",
        ),
        (
            "DECIMAL /fields/current/fields/amount breaks new readers of v1",
            "v1 has decimals of precision 10 and scale 2, but the new schema has precision 10 and scale 3",
            "keep the scale 2 and a precision of at least 10",
        ),
        (
            "TYPE_CHANGED /fields/current/fields/id breaks old readers of v1",
            "the new schema holds string, but v1 reads long",
            "keep the type, and add a separate field for the new type",
        ),
        (
            "DECIMAL /fields/current/fields/amount breaks old readers of v1",
            "the new schema has decimals of precision 10 and scale 3, but v1 has precision 10 and scale 2",
            "keep the scale 2 and a precision of at most 10, or add a field with another name",
        ),
        (
            "BRANCH_MISSING /fields/current/fields/gr_x00F6__x00DF_e breaks old readers of v1",
            "the new schema may hold long, but v1 reads only null, int",
            "allow only [null, int]; add a separate field for values that may be long",
        ),
    ]


def test_a_problem_of_a_field_without_a_default_names_a_remedy() -> None:
    first = record(field("x", STRING), A_INT)
    second = record(A_INT, field("y", STRING))
    assert descriptions(problems(second, [("v1", first)], Mode.FULL)) == [
        (
            "FIELD_NO_DEFAULT /fields/y breaks new readers of v1",
            'v1 has no field "y", and the new schema has no default for it',
            'give "y" a default, or the alias "x" if "x" was renamed to "y"',
        ),
        (
            "FIELD_NO_DEFAULT /fields/x breaks old readers of v1",
            'the new schema has no field "x", and v1 has no default for it',
            'keep "x": a field without a default cannot be dropped or renamed',
        ),
    ]


def test_the_path_of_a_problem_names_the_record_of_a_union() -> None:
    def union(of: Schema) -> Schema:
        return record(field("x", array(["null", record(A_INT, name="One"), record(field("b", map_(of)), name="Two")])))

    findings = unreadable(union(INT), union(LONG))
    assert [finding.path for finding in findings] == ["/fields/x/items/Two/fields/b/values"]


@pytest.mark.parametrize(
    "schema",
    [
        "Nowhere",
        7,
        None,
        {"type": "record", "name": "R"},
        {"type": "record", "name": "R", "fields": [{"name": "a"}]},
        {"type": "record", "fields": []},
        {"type": "enum", "name": "E"},
        {"type": "array"},
        {"items": "int"},
        {"type": "nothing"},
        [FIXED_4, FIXED_8],
        {"type": "enum", "name": "E", "symbols": 7},
        {"type": "fixed", "name": "F", "size": "7"},
        enum("E", "A", aliases=7),
        {"type": "enum", "name": "E", "symbols": [None]},
        record(field("a", INT, aliases=[{}])),
        record({"name": 7, "type": INT}),
        record(field("a", "Missing")),
    ],
)
def test_an_invalid_schema_is_refused(schema: Schema) -> None:
    with pytest.raises(ValueError, match="the schema is not a valid Avro schema"):
        problems(schema, [("v1", "int")], Mode.BACKWARD)
    with pytest.raises(ValueError, match="the schema is not a valid Avro schema"):
        unreadable("int", schema)


WHOLE = record(
    field("a", ["null", INT], default=None, aliases=["b"], column="a b"),
    field("c", enum("E", "AB", "A", aliases=["F"])),
    field("d", fixed("G", 2, logicalType="decimal", precision=3, scale=1)),
    field("e", array(map_("n.E"))),
    field("f", ["null", "R"]),
    name="n.R",
    aliases=["S"],
    key=["a b"],
    partitionBy=["c"],
)


@given(st.data())
def test_a_randomly_damaged_schema_is_judged_or_refused(data: st.DataObject) -> None:
    holder = [copy.deepcopy(WHOLE)]
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(list(places(holder))))
        container[key] = data.draw(st.sampled_from([7, None, True, "x", [], {}, [7], {"type": 5}, ["x", None]]))
    for new, old in ((holder[0], WHOLE), (WHOLE, holder[0])):
        assert verdict(new, old).startswith(("judged", "the schema is not a valid Avro schema"))


def verdict(new: Schema, old: Schema) -> str:
    try:
        return f"judged: {problems(new, [('v1', old)], Mode.FULL)}"
    except ValueError as error:
        return str(error)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def test_an_unchanged_schema_is_compatible() -> None:
    twice = [fixed("a.F", 4), fixed("b.F", 8)]
    assert problems(twice, [("v1", twice)], Mode.FULL_TRANSITIVE) == []
    assert problems([*twice, INT], [("v1", twice)], Mode.BACKWARD) != []


def test_a_problem_of_a_record_is_reported_once() -> None:
    state = record(optional("id"), name="State", key=["id"])
    schema = record(field("current", ["null", state]), field("original", ["null", "State"]), name="Envelope")
    (problem,) = problems(schema, [], Mode.FULL_TRANSITIVE)
    assert (problem.rule, problem.path, problem.against) == (Rule.KEY_NULLABLE, "/fields/current/fields/id", "")


def descriptions(all_problems: Sequence[Problem]) -> list[tuple[str, str, str]]:
    return [
        (f"{problem.rule} {problem.path} breaks {problem.breaks} of {problem.against}", problem.text, problem.hint)
        for problem in all_problems
    ]
