"""Tests that a condition of a served view has the same result as in Spark's SQL, or is refused."""

from collections.abc import Mapping

import pytest

from changelog.connectors.views.condition.judge import judge
from changelog.connectors.views.condition.parse import DEPTH_MAX, HINT, parse
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, Decimal, Primitive, Struct

COLUMNS = Struct(
    fields=(
        ("id", Primitive.LONG),
        ("status", Primitive.STRING),
        ("amount", Decimal(precision=12, scale=2)),
        ("wide", Decimal(precision=60, scale=2)),
        ("ratio", Primitive.DOUBLE),
        ("paid", Primitive.BOOLEAN),
        ("day", Primitive.DATE),
        ("at", Primitive.TIMESTAMP_TZ),
        ("doc", Primitive.JSON),
        ("tags", Array(element=Primitive.STRING)),
        ("odd name", Primitive.INT),
        ("Case", Primitive.INT),
        ("case", Primitive.INT),
    )
)
ROW: Mapping[str, bytes] = {
    "id": b"9007199254740993",
    "status": b'"PAID"',
    "amount": b'"10.10"',
    "ratio": b'"NaN"',
    "paid": b"true",
    "day": b'"2026-11-21"',
    "doc": b"null",
    "odd name": b"-7",
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("id = 9007199254740993", True),
        ("id = 9007199254740992", False),
        ("ID >= 9007199254740992.5", True),
        ("status = 'PAID'", True),
        ('status <> "PAID"', False),
        ("status != 'paid' AND status > 'P'", True),
        ("amount = 10.1", True),
        ("amount < 10.10", False),
        ("amount <= 10.10 and amount > 10", True),
        ("ratio > 1000000", True),
        ("ratio = 0 OR ratio < 0", False),
        ("paid = true", True),
        ("paid <> TRUE", False),
        ("day >= '2026-11-21'", True),
        ("day < '2026-11-21'", False),
        ("`odd name` = -7", True),
        ("status IN ('NEW', 'PAID')", True),
        ("status NOT IN ('NEW')", True),
        ("not (status in ('NEW'))", True),
        ("doc IS NULL", True),
        ("wide IS NOT NULL", False),
        ("tags IS NULL", True),
        # The row has no value of the column `at`, so the column is null.
        ("at IS NULL AND status = 'PAID'", True),
        ("paid = true OR doc IS NOT NULL", True),
    ],
)
def test_a_condition_holds_or_not(text: str, result: bool) -> None:
    assert judge(parse(text), COLUMNS)(ROW) is result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("status = 'x'", None),
        ("NOT status = 'x'", None),
        ("status = 'x' AND id = 1", None),
        ("status = 'x' AND id = 2", False),
        ("status = 'x' OR id = 1", True),
        ("status = 'x' OR id = 2", None),
        ("status IN ('x', 'y')", None),
        ("ratio <> 1", None),
    ],
)
def test_null_is_neither_true_nor_false(text: str, result: bool | None) -> None:
    assert judge(parse(text), COLUMNS)({"id": b"1", "status": b"null"}) is result


def test_a_value_that_its_type_cannot_hold_is_null() -> None:
    row = {"day": b'"infinity"', "id": b"1.5"}
    assert judge(parse("day IS NULL AND id IS NULL"), COLUMNS)(row) is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has nothing where a column should be"),
        ("status", "has nothing after the column status"),
        ("status =", "has nothing where a value should be"),
        ("status = NULL", "has NULL where a value should be"),
        ("status = other", "has other where a value should be"),
        ("lower(status) = 'paid'", "has ( after the column lower"),
        ("'PAID' = status", "has 'PAID' where a column should be"),
        ("status LIKE 'P%'", "has LIKE after the column status"),
        ("status = 'it''s'", "cannot be read from its character"),
        ("status = 'a\\n'", "cannot be read from its character"),
        ("amount = 1e3", "cannot be read from its character"),
        ("id = 1 id = 2", "has id where it should end"),
        ("(id = 1", "lacks )"),
        ("status IS 1", "lacks NULL"),
        ("status NOT LIKE 'x'", "lacks IN"),
        ("NOT " * (DEPTH_MAX + 2) + "paid = true", "is nested too deeply"),
        ("none = 1", "names the column none, and there are 0 columns"),
        ("CASE = 1", "names the column CASE, and there are 2 columns"),
        ("id = '1'", "compares the column id, which has the type long, with a text"),
        ("status = 1", "compares the column status, which has the type string, with a number"),
        ("id = true", "with a boolean"),
        ("wide = 1", "has the type decimal, with a number"),
        ("at > '2026-11-21'", "has the type timestamp_tz, with a text"),
        ("doc = '{}'", "has the type json, with a text"),
        ("tags = 'a'", "has the type array, with a text"),
        ("day = '2026-1-1'", "compares the date day with a text that is no day"),
        ("day IN ('20261121')", "compares the date day with a text that is no day"),
    ],
)
def test_other_conditions_of_sql_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ChangelogError) as caught:
        judge(parse(text), COLUMNS)
    assert reason in caught.value.message
    assert (caught.value.kind, caught.value.hint) == (Kind.USAGE, HINT)
