"""Tests the verdicts on the compatibility of schemas.

The verdicts must agree with Avro's own tests and with Confluent's documentation. Also tests our own rules, which are
stricter.
"""

from collections.abc import Sequence

import pytest

from changelog.schemas.avro import Schema
from changelog.schemas.compatibility import Mode, Problem, Rule, problems
from changelog.schemas.resolution import unreadable
from tests.unit.schemas.avro_schemas import (
    A_DINT,
    A_INT,
    A_LONG,
    AB,
    ABC,
    B_DINT,
    B_INT,
    BC,
    BYTES,
    DOUBLE,
    FIXED_4,
    FIXED_8,
    FLOAT,
    INT,
    LONG,
    OTHER,
    STRING,
    array,
    enum,
    field,
    fixed,
    listed,
    logical,
    map_,
    record,
)

# Pairs of reader and writer, from Avro's TestSchemaCompatibility.
READABLE: list[tuple[Schema, Schema]] = [
    *((type_, type_) for type_ in ("null", "boolean", INT, LONG, FLOAT, DOUBLE, STRING, BYTES)),
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
    # an enum with a default for unknown symbols
    (enum("Enum1", "AB", "A"), ABC),
    # a name in the namespace of the enclosing type; a type given as an object
    (
        record(field("x", AB), field("y", "n.Enum1"), name="n.R"),
        record(field("x", AB), field("y", "Enum1"), name="n.R"),
    ),
    ({"type": "int"}, INT),
    (record(field("a", {"type": {"type": "int"}})), record(A_INT)),
]

# Reader, writer, and the rules that this pair breaks. From Avro's tests of each kind of incompatibility.
UNREADABLE: list[tuple[Schema, Schema, list[Rule]]] = [
    *((INT, type_, [Rule.TYPE_CHANGED]) for type_ in ("null", "boolean", LONG, FLOAT, DOUBLE, STRING, BYTES)),
    *((LONG, type_, [Rule.TYPE_CHANGED]) for type_ in (FLOAT, DOUBLE, "boolean")),
    *((FLOAT, type_, [Rule.TYPE_CHANGED]) for type_ in (DOUBLE, STRING, BYTES)),
    *(
        (type_, INT, [Rule.TYPE_CHANGED])
        for type_ in ("null", "boolean", STRING, BYTES, AB, FIXED_4, array(INT), record())
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
def test_schemas_that_avro_calls_compatible_have_no_problem(reader: Schema, writer: Schema) -> None:
    assert [finding for finding in unreadable(reader, writer) if not finding.strict] == []


@pytest.mark.parametrize(("reader", "writer", "rules"), UNREADABLE)
def test_schemas_that_avro_calls_incompatible_break_a_rule(reader: Schema, writer: Schema, rules: list[Rule]) -> None:
    assert [finding.rule for finding in unreadable(reader, writer) if not finding.strict] == rules


PLAIN, OPTIONAL = field("f", STRING), field("f", STRING, default="")
WITHOUT = record(A_INT)
BACKWARD, FORWARD = "BACKWARD", "FORWARD"

# A change, the schema before and after it, and the kinds of compatibility that it keeps. From "What is allowed":
# https://docs.confluent.io/platform/current/schema-registry/fundamentals/schema-evolution.html
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
def test_modes_allow_the_changes_that_confluent_allows(old: Schema, new: Schema, allowed: set[str], mode: Mode) -> None:
    kind = mode.value.removesuffix("_TRANSITIVE")
    needed = {"NONE": set(), "FULL": {BACKWARD, FORWARD}}.get(kind, {kind})
    assert (lax(problems(new, [("v1", old)], mode)) == []) is (needed <= allowed)


def test_only_transitive_modes_compare_with_versions_before_the_last() -> None:
    first, second, third = record(A_INT), record(A_INT, OPTIONAL), record(A_INT, PLAIN)
    for mode in (Mode.BACKWARD, Mode.FORWARD, Mode.FULL):
        assert problems(third, [("v1", first), ("v2", second)], mode) == []
    for mode, expected in (
        (Mode.BACKWARD_TRANSITIVE, ["v1"]),
        (Mode.FORWARD_TRANSITIVE, []),
        (Mode.FULL_TRANSITIVE, ["v1"]),
    ):
        assert [problem.against for problem in problems(third, [("v1", first), ("v2", second)], mode)] == expected
    assert problems(third, [], Mode.FULL_TRANSITIVE) == []


DECIMAL = logical(BYTES, "decimal", precision=6, scale=2)

# Pairs of reader and writer that Avro calls compatible, and the strict rules that each pair breaks.
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
    (logical(BYTES, "decimal"), BYTES, []),  # without a precision, the logical type is not a decimal
    (logical(STRING, "color"), STRING, []),  # Avro has no such logical type, so it is ignored
    (logical(STRING, "date"), STRING, []),  # `date` is not a logical type of strings
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
def test_strict_rules_forbid_what_avro_would_read_wrongly(reader: Schema, writer: Schema, rules: list[Rule]) -> None:
    findings = unreadable(reader, writer)
    assert [(finding.rule, finding.strict) for finding in findings] == [(rule, True) for rule in rules]


def lax(all_problems: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in all_problems if not problem.strict]
