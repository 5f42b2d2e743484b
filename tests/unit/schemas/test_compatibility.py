"""Verdicts as Avro's own tests and Confluent's documentation have them, and the rules beyond those."""

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

INT, LONG, FLOAT, DOUBLE, STRING, BYTES = "int", "long", "float", "double", "string", "bytes"


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def map_(values: Schema) -> Schema:
    return {"type": "map", "values": values}


def enum(name: str, symbols: str, default: str | None = None, **more: Any) -> Schema:
    return {"type": "enum", "name": name, "symbols": list(symbols), **({"default": default} if default else {}), **more}


def fixed(name: str, size: int, **more: Any) -> Schema:
    return {"type": "fixed", "name": name, "size": size, **more}


def field(name: str, type_: Schema, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def optional(name: str, **more: Any) -> dict[str, Any]:
    return field(name, ["null", "string"], default=None, **more)


def record(*fields: dict[str, Any], name: str = "Record1", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def logical(type_: str, name: str, **more: Any) -> Schema:
    return {"type": type_, "logicalType": name, **more}


def listed(head: Schema) -> Schema:
    return record(field("head", head), field("tail", ["null", "List"]), name="List")


A_INT, A_LONG, A_DINT = field("a", INT), field("a", LONG), field("a", INT, default=0)
B_INT, B_DINT = field("b", INT), field("b", INT, default=0)
FIXED_4, FIXED_8 = fixed("Fixed", 4), fixed("Fixed", 8)
AB, ABC, BC, OTHER = enum("Enum1", "AB"), enum("Enum1", "ABC"), enum("Enum1", "BC"), enum("Enum2", "AB")

# Reader and writer, as in Avro's TestSchemaCompatibility.
READABLE: list[tuple[Schema, Schema]] = [
    *((each, each) for each in ("null", "boolean", INT, LONG, FLOAT, DOUBLE, STRING, BYTES)),
    (LONG, INT),
    (FLOAT, INT),
    (FLOAT, LONG),
    (DOUBLE, INT),
    (DOUBLE, LONG),
    (DOUBLE, FLOAT),
    (STRING, BYTES),
    (BYTES, STRING),
    (array(INT), array(INT)),
    (array(LONG), array(INT)),
    (map_(INT), map_(INT)),
    (map_(LONG), map_(INT)),
    (AB, AB),
    (ABC, AB),
    ([], []),
    ([FLOAT], []),
    ([INT], [INT]),
    ([INT, STRING], [STRING, INT]),
    ([INT], []),
    ([LONG], []),
    ([LONG], [INT]),
    ([FLOAT], [INT]),
    ([FLOAT], [LONG]),
    ([DOUBLE], [INT]),
    ([DOUBLE], [LONG]),
    ([DOUBLE], [FLOAT]),
    ([DOUBLE], [INT, FLOAT]),
    ([STRING], []),
    ([STRING], [BYTES]),
    ([BYTES], []),
    ([BYTES], [STRING]),
    (FLOAT, [INT, FLOAT]),
    (LONG, [INT, LONG]),
    (DOUBLE, [INT, FLOAT]),
    (DOUBLE, [INT, LONG, FLOAT, DOUBLE]),
    (FLOAT, [FLOAT]),
    ([INT], INT),
    (INT, [INT]),
    (["null", array(INT)], ["null", array(INT)]),
    (FIXED_4, FIXED_4),
    (record(), record()),
    (record(), record(A_INT)),
    (record(A_INT), record(A_INT)),
    (record(A_DINT), record(A_INT)),
    (record(A_DINT), record(A_DINT)),
    (record(A_INT), record(A_DINT)),
    (record(A_LONG), record(A_INT)),
    (record(A_INT), record(A_INT, B_INT)),
    (record(A_DINT), record(A_INT, B_INT)),
    (record(A_INT, B_DINT), record(A_INT)),
    (record(A_DINT, B_DINT), record()),
    (record(A_DINT, B_DINT), record(A_INT)),
    (record(A_INT, B_INT), record(A_DINT, B_DINT)),
    (listed(INT), listed(INT)),
    (listed(LONG), listed(INT)),
    # names without their namespaces, and aliases
    (enum("namespace1.Enum1", "AB"), enum("namespace2.Enum1", "AB")),
    (record(A_INT, name="ns.Record"), record(A_INT, name="Record")),
    (record(A_INT, name="New", aliases=["Old"]), record(A_INT, name="Old")),
    (record(A_INT, name="New", namespace="n", aliases=["Old"]), record(A_INT, name="n.Old")),
    (record(A_INT, name="n.New", aliases=["m.Old"]), record(A_INT, name="m.Old")),
    (record(field("new", INT, aliases=["old"])), record(field("old", INT))),
    (["null", fixed("n.F", 4, aliases=["n.G"])], fixed("n.G", 4)),
    # an enum with a default for what it does not know
    (enum("Enum1", "AB", "A"), ABC),
    # a name within the namespace of what it stands in; a type given as an object
    (
        record(field("x", AB), field("y", "n.Enum1"), name="n.R"),
        record(field("x", AB), field("y", "Enum1"), name="n.R"),
    ),
    ({"type": "int"}, INT),
    (record(field("a", {"type": {"type": "int"}})), record(A_INT)),
]

# As in its tests of each kind of incompatibility.
UNREADABLE: list[tuple[Schema, Schema, list[Rule]]] = [
    *((INT, each, [Rule.TYPE_CHANGED]) for each in ("null", "boolean", LONG, FLOAT, DOUBLE, STRING, BYTES)),
    *((LONG, each, [Rule.TYPE_CHANGED]) for each in (FLOAT, DOUBLE, "boolean")),
    *((FLOAT, each, [Rule.TYPE_CHANGED]) for each in (DOUBLE, STRING, BYTES)),
    *(
        (each, INT, [Rule.TYPE_CHANGED])
        for each in ("null", "boolean", STRING, BYTES, AB, FIXED_4, array(INT), record())
    ),
    (STRING, DOUBLE, [Rule.TYPE_CHANGED]),
    (STRING, FIXED_4, [Rule.TYPE_CHANGED]),
    (BYTES, FIXED_4, [Rule.TYPE_CHANGED]),
    (FIXED_4, BYTES, [Rule.TYPE_CHANGED]),
    (array(INT), array(LONG), [Rule.TYPE_CHANGED]),
    (map_(INT), map_(LONG), [Rule.TYPE_CHANGED]),
    (map_(STRING), array(STRING), [Rule.TYPE_CHANGED]),
    (AB, ABC, [Rule.SYMBOL_MISSING]),
    (BC, ABC, [Rule.SYMBOL_MISSING]),
    (enum("Enum1", "AB", "Z"), ABC, [Rule.SYMBOL_MISSING]),
    (AB, OTHER, [Rule.NAME_MISMATCH]),
    (record(A_INT), record(A_INT, name="Record2"), [Rule.NAME_MISMATCH]),
    (fixed("F", 4), fixed("G", 4), [Rule.NAME_MISMATCH]),
    (record(A_INT, name="New", namespace="n", aliases=["Old"]), record(A_INT, name="Old"), [Rule.NAME_MISMATCH]),
    (FIXED_4, FIXED_8, [Rule.FIXED_SIZE]),
    (["null", FIXED_4], FIXED_8, [Rule.FIXED_SIZE]),
    ([INT, STRING], [INT, STRING, LONG], [Rule.BRANCH_MISSING]),
    ([INT], [INT, STRING], [Rule.BRANCH_MISSING]),
    ([AB], OTHER, [Rule.BRANCH_MISSING]),
    ([INT], LONG, [Rule.BRANCH_MISSING]),
    (INT, ["null", INT], [Rule.BRANCH_MISSING]),
    (FLOAT, [INT, LONG, FLOAT, DOUBLE], [Rule.BRANCH_MISSING]),
    (["null", array(INT)], ["null", array(LONG)], [Rule.TYPE_CHANGED]),
    (record(A_INT, B_INT), record(A_INT), [Rule.FIELD_NO_DEFAULT]),
    (record(A_DINT, B_INT), record(), [Rule.FIELD_NO_DEFAULT]),
    (record(field("new", INT)), record(field("old", INT)), [Rule.FIELD_NO_DEFAULT]),
    (record(field("e", enum("E", "AB", "A"))), record(), [Rule.FIELD_NO_DEFAULT]),
    (listed(INT), listed(LONG), [Rule.TYPE_CHANGED]),
    (record(field("a", INT, aliases=["b"])), record(A_INT, B_INT), [Rule.AMBIGUOUS]),
    (
        record(field("a", INT), field("b", STRING), field("c", AB), field("d", FIXED_4)),
        record(field("a", LONG), field("c", ABC), field("d", FIXED_8)),
        [Rule.TYPE_CHANGED, Rule.FIELD_NO_DEFAULT, Rule.SYMBOL_MISSING, Rule.FIXED_SIZE],
    ),
]


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_what_avro_calls_compatible(reader: Schema, writer: Schema) -> None:
    assert [finding for finding in unreadable(reader, writer) if not finding.strict] == []


@pytest.mark.parametrize(("reader", "writer", "rules"), UNREADABLE)
def test_what_avro_calls_incompatible(reader: Schema, writer: Schema, rules: list[Rule]) -> None:
    assert [finding.rule for finding in unreadable(reader, writer) if not finding.strict] == rules


PLAIN, OPTIONAL = field("f", STRING), field("f", STRING, default="")
WITHOUT = record(A_INT)
BACKWARD, FORWARD = "BACKWARD", "FORWARD"

# "What is allowed": https://docs.confluent.io/platform/current/schema-registry/fundamentals/schema-evolution.html
CONFLUENT: list[tuple[str, Schema, Schema, set[str]]] = [
    ("delete a field", record(A_INT, PLAIN), WITHOUT, {BACKWARD}),
    ("add an optional field", WITHOUT, record(A_INT, OPTIONAL), {BACKWARD, FORWARD}),
    ("add a field", WITHOUT, record(A_INT, PLAIN), {FORWARD}),
    ("delete an optional field", record(A_INT, OPTIONAL), WITHOUT, {BACKWARD, FORWARD}),
    ("make a field nullable", record(field("f", STRING)), record(field("f", ["null", STRING])), {BACKWARD}),
    ("make a nullable field required", record(field("f", ["null", STRING])), record(field("f", STRING)), {FORWARD}),
    ("widen a number", record(A_INT), record(A_LONG), {BACKWARD}),
    ("rename a field", record(PLAIN), record(field("g", STRING)), set()),
    ("rename an optional field", record(OPTIONAL), record(field("g", STRING, default="")), {BACKWARD, FORWARD}),
    ("rename a field with an alias", record(PLAIN), record(field("g", STRING, aliases=["f"])), {BACKWARD}),
    ("add a symbol", AB, ABC, {BACKWARD}),
    ("add a symbol where there is a default", enum("E", "AB", "A"), enum("E", "ABC", "A"), {BACKWARD, FORWARD}),
]


@pytest.mark.parametrize(
    ("old", "new", "allowed"), [case[1:] for case in CONFLUENT], ids=[case[0] for case in CONFLUENT]
)
@pytest.mark.parametrize("mode", Mode)
def test_what_confluent_allows(old: Schema, new: Schema, allowed: set[str], mode: Mode) -> None:
    kind = mode.value.removesuffix("_TRANSITIVE")
    needed = {"NONE": set(), "FULL": {BACKWARD, FORWARD}}.get(kind, {kind})
    assert (lax(problems(new, [("v1", old)], mode)) == []) is (needed <= allowed)


def test_only_transitive_modes_look_further_back_than_the_last() -> None:
    first, second, third = record(A_INT), record(A_INT, OPTIONAL), record(A_INT, PLAIN)
    for mode in (Mode.BACKWARD, Mode.FORWARD, Mode.FULL):
        assert problems(third, [("v1", first), ("v2", second)], mode) == []
    for mode, found in (
        (Mode.BACKWARD_TRANSITIVE, ["v1"]),
        (Mode.FORWARD_TRANSITIVE, []),
        (Mode.FULL_TRANSITIVE, ["v1"]),
    ):
        assert [each.against for each in problems(third, [("v1", first), ("v2", second)], mode)] == found
    assert problems(third, [], Mode.FULL_TRANSITIVE) == []


DECIMAL = logical(BYTES, "decimal", precision=6, scale=2)

# Reader and writer that Avro calls compatible, and the rule that does not.
STRICT: list[tuple[Schema, Schema, list[Rule]]] = [
    (LONG, logical(LONG, "timestamp-micros"), [Rule.LOGICAL_TYPE]),
    (logical(LONG, "timestamp-micros"), LONG, [Rule.LOGICAL_TYPE]),
    (logical(LONG, "timestamp-micros"), logical(LONG, "timestamp-millis"), [Rule.LOGICAL_TYPE]),
    (logical(LONG, "timestamp-micros"), logical(LONG, "local-timestamp-micros"), [Rule.LOGICAL_TYPE]),
    (INT, logical(INT, "date"), [Rule.LOGICAL_TYPE]),
    (logical(LONG, "timestamp-micros"), logical(INT, "date"), [Rule.LOGICAL_TYPE]),
    (STRING, logical(STRING, "uuid"), [Rule.LOGICAL_TYPE]),
    ({"type": STRING, "format": "json"}, STRING, [Rule.LOGICAL_TYPE]),
    (BYTES, DECIMAL, [Rule.LOGICAL_TYPE]),
    (DECIMAL, DECIMAL, []),
    ({**DECIMAL, "precision": 8}, DECIMAL, []),
    ({**DECIMAL, "precision": 5}, DECIMAL, [Rule.DECIMAL]),
    ({**DECIMAL, "scale": 3}, DECIMAL, [Rule.DECIMAL]),
    (
        fixed("F", 4, logicalType="decimal", precision=5),
        fixed("F", 4, logicalType="decimal", precision=6),
        [Rule.DECIMAL],
    ),
    (["null", INT], ["null", logical(INT, "date")], [Rule.LOGICAL_TYPE]),
    (logical(BYTES, "decimal"), BYTES, []),  # without a precision it is none
    (logical(STRING, "color"), STRING, []),  # not one of Avro's: to be ignored
    (logical(STRING, "date"), STRING, []),  # not one of this type's
    (FLOAT, INT, [Rule.PROMOTION_LOSSY]),
    (DOUBLE, LONG, [Rule.PROMOTION_LOSSY]),
    (STRING, BYTES, [Rule.PROMOTION_LOSSY]),
    (DOUBLE, INT, []),
    (BYTES, STRING, []),
    (enum("Enum1", "AB", "A"), ABC, [Rule.SYMBOL_MISSING]),
    ([fixed("a.F", 4), fixed("b.F", 8)], fixed("c.F", 8), [Rule.AMBIGUOUS]),
    ([record(A_INT, name="a.R"), record(name="b.R")], record(name="b.R"), [Rule.AMBIGUOUS]),
    ([record(A_DINT, name="a.R"), record(name="b.R")], record(name="b.R"), []),
    (record(A_INT, field("b", INT, aliases=["a"])), record(A_INT), [Rule.AMBIGUOUS]),
]


@pytest.mark.parametrize(("reader", "writer", "rules"), STRICT)
def test_what_avro_would_read_wrongly(reader: Schema, writer: Schema, rules: list[Rule]) -> None:
    found = unreadable(reader, writer)
    assert [(finding.rule, finding.strict) for finding in found] == [(rule, True) for rule in rules]


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
def test_what_an_entity_may_not_change(old: Schema, new: Schema, expected: list[tuple[Rule, str]], mode: Mode) -> None:
    found = problems(new, [("v1", old)], mode)
    assert [(each.rule, each.path) for each in found] == expected
    assert all(each.strict for each in found)
    assert problems(new, [("v1", old)], Mode.NONE) == []


def test_a_drop_and_an_add_in_two_versions_is_no_rename() -> None:
    first, third = record(optional("x")), record(optional("y"))
    assert problems(third, [("v1", first), ("v2", record())], Mode.FULL_TRANSITIVE) == []


OLD = Struct(fields=(("id", Primitive.LONG), ("amount", Decimal(precision=10, scale=2)), ("größe", Primitive.INT)))


def envelope(*fields: tuple[str, Any]) -> Schema:
    return avro.value_schema("order", Struct(fields=fields), ["id"], "booking")


def test_an_entity_grows_and_shrinks() -> None:
    old = envelope(*OLD.fields)
    grown = envelope(*OLD.fields, ("note", Primitive.STRING))
    shrunk = envelope(*OLD.fields[:2])
    assert problems(grown, [("v1", old)], Mode.FULL_TRANSITIVE) == []
    assert problems(shrunk, [("v1", old), ("v2", grown)], Mode.FULL_TRANSITIVE) == []


def test_a_problem_says_where_who_and_what_to_do() -> None:
    old = envelope(*OLD.fields)
    new = envelope(("id", Primitive.STRING), ("amount", Decimal(precision=10, scale=3)), ("größe", Primitive.LONG))
    assert told(problems(new, [("v1", old)], Mode.FULL)) == [
        (
            "TYPE_CHANGED /fields/current/fields/id breaks new readers of v1",
            "v1 holds long, the new schema reads string",
            "keep the type, and give the new one a field of its own",
        ),
        (
            "DECIMAL /fields/current/fields/amount breaks new readers of v1",
            "v1 has decimals of precision and scale 10, 2, the new schema 10, 3",
            "keep the scale 2 and a precision of at least 10",
        ),
        (
            "TYPE_CHANGED /fields/current/fields/id breaks old readers of v1",
            "the new schema holds string, v1 reads long",
            "keep the type, and give the new one a field of its own",
        ),
        (
            "DECIMAL /fields/current/fields/amount breaks old readers of v1",
            "the new schema has decimals of precision and scale 10, 3, v1 10, 2",
            "keep the scale 2 and a precision of at most 10, or add a field of another name",
        ),
        (
            "BRANCH_MISSING /fields/current/fields/gr_x00F6__x00DF_e breaks old readers of v1",
            "the new schema may hold long, v1 reads only null, int",
            "keep to null, int, and add a separate field for values that may be long",
        ),
    ]


def test_a_field_without_a_default_and_the_ways_out() -> None:
    first = record(field("x", STRING), A_INT)
    second = record(A_INT, field("y", STRING))
    assert told(problems(second, [("v1", first)], Mode.FULL)) == [
        (
            "FIELD_NO_DEFAULT /fields/y breaks new readers of v1",
            'v1 has no field "y", and the new schema has no default for it',
            'give "y" a default, or the alias "x" if "x" was renamed to it',
        ),
        (
            "FIELD_NO_DEFAULT /fields/x breaks old readers of v1",
            'the new schema has no field "x", and v1 has no default for it',
            'keep "x": a field without a default cannot be dropped or renamed',
        ),
    ]


def test_where_a_problem_is_in_a_union_of_records() -> None:
    def union(of: Schema) -> Schema:
        return record(field("x", array(["null", record(A_INT, name="One"), record(field("b", map_(of)), name="Two")])))

    found = unreadable(union(INT), union(LONG))
    assert [finding.path for finding in found] == ["/fields/x/items/Two/fields/b/values"]


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
def test_what_is_no_schema_is_refused(schema: Schema) -> None:
    with pytest.raises(ValueError, match="the schema is not one of Avro's"):
        problems(schema, [("v1", "int")], Mode.BACKWARD)
    with pytest.raises(ValueError, match="the schema is not one of Avro's"):
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
def test_a_schema_with_anything_in_it_is_judged_or_refused(data: st.DataObject) -> None:
    holder = [copy.deepcopy(WHOLE)]
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(list(places(holder))))
        container[key] = data.draw(st.sampled_from([7, None, True, "x", [], {}, [7], {"type": 5}, ["x", None]]))
    for new, old in ((holder[0], WHOLE), (WHOLE, holder[0])):
        assert verdict(new, old).startswith(("judged", "the schema is not one of Avro's"))


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


def test_an_unchanged_schema_follows_itself() -> None:
    twice = [fixed("a.F", 4), fixed("b.F", 8)]
    assert problems(twice, [("v1", twice)], Mode.FULL_TRANSITIVE) == []
    assert problems([*twice, INT], [("v1", twice)], Mode.BACKWARD) != []


def test_what_is_wrong_with_a_record_is_said_once() -> None:
    state = record(optional("id"), name="State", key=["id"])
    schema = record(field("current", ["null", state]), field("original", ["null", "State"]), name="Envelope")
    (found,) = problems(schema, [], Mode.FULL_TRANSITIVE)
    assert (found.rule, found.path, found.against) == (Rule.KEY_NULLABLE, "/fields/current/fields/id", "")


def lax(found: Sequence[Problem]) -> list[Problem]:
    return [each for each in found if not each.strict]


def told(found: Sequence[Problem]) -> list[tuple[str, str, str]]:
    return [(f"{each.rule} {each.path} breaks {each.breaks} of {each.against}", each.text, each.hint) for each in found]
