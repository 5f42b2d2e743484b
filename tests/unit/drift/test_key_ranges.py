"""Tests the SQL conditions that are made from ranges of keys. Only the tests in tests/spark run such conditions."""

import pytest

from changelog.connectors.sources.postgres.scan import in_range
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Array, ColumnType, Decimal, Primitive
from changelog.spark_jobs.drift.key_ranges import KeyRange, bounds

LOW, HIGH = "0197f0a0-0000-7000-8000-000000000000", "0197F0A0-FFFF-7000-8000-000000000000"


@pytest.mark.parametrize(
    ("type_", "first", "end", "condition"),
    [
        (Primitive.INT, "-7", None, '"id" >= -7'),
        (Primitive.LONG, None, str(2**63 - 1), '"id" < 9223372036854775807'),
        (Primitive.STRING, "a'b", "ä", """"id" COLLATE "C" >= 'a''b' AND "id" COLLATE "C" < 'ä'"""),
        (Primitive.UUID, LOW, HIGH, f"\"id\" >= '{LOW}' AND \"id\" < '{HIGH.lower()}'"),
    ],
)
def test_the_condition_compares_the_column_itself(
    type_: Primitive, first: str | None, end: str | None, condition: str
) -> None:
    key_bounds = bounds(KeyRange(first=first, end=end), "thing", [("id", type_), ("unit", Primitive.INT)])
    assert (key_bounds.column, key_bounds.columns) == ("id", 2)
    assert in_range(key_bounds.of_source()).as_string().replace("  ", " ") == condition


@pytest.mark.parametrize(
    ("type_", "text", "what"),
    [
        (Primitive.UUID, "0197f0a0", "a UUID"),
        (Primitive.INT, "7.0", "an integer of 64 bits"),
        (Primitive.LONG, str(2**63), "an integer of 64 bits"),
    ],
)
def test_a_bound_that_does_not_fit_the_column_is_refused(type_: Primitive, text: str, what: str) -> None:
    with pytest.raises(ChangelogError, match=rf"{text!r} is not a value of column id: give {what}") as caught:
        bounds(KeyRange(end=text), "thing", [("id", type_)])
    assert caught.value.kind is Kind.USAGE


@pytest.mark.parametrize(
    ("type_", "type_name"),
    [
        (Primitive.TIMESTAMP_TZ, "timestamp_tz"),
        (Decimal(precision=9, scale=2), "Decimal"),
        (Array(element=Primitive.INT), "Array"),
    ],
)
def test_keys_of_other_types_have_no_ranges(type_: ColumnType, type_name: str) -> None:
    with pytest.raises(ChangelogError) as caught:
        bounds(KeyRange(first="1"), "thing", [("id", type_)])
    assert caught.value.message == f"the key of the entity thing begins with column id, whose type is {type_name}"
    assert caught.value.hint == "ranges work with integers, strings and UUIDs; --sample SHARE works with all keys"
