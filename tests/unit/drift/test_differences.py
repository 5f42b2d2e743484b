"""Tests how a row of the table is compared with the row of the same key in the changelog, column by column.

Different values are drift, unless one of them is unknown or a change of the schema explains the difference.
"""

from typing import Any

import msgspec
import pytest

from changelog.envelope.versions import Version
from changelog.schemas.types import ColumnType, Primitive, Struct
from changelog.spark_jobs.drift.row_diff import ColumnHistory, Compared, RowState, Step, compared, steps_of

SHAPE = ColumnHistory(columns=("id", "a", "b"))


def step(position: str | None, **parts: set[str]) -> Step:
    columns = {name: frozenset(parts.get(name, ())) for name in ("added", "restated", "dropped")}
    return Step(position=position, **columns)


@pytest.mark.parametrize(
    ("source", "changelog", "differ"),
    [
        ('{"id":1,"a":1,"b":2}', '{"id":1,"a":1,"b":2}', ()),
        ('{"id":1,"a":1,"b":2}', '{ "b": 2, "a": 1, "id": 1 }', ()),
        ('{"id":1,"a":{"x":1,"y":[2]},"b":2}', '{"id":1,"a":{"y":[2],"x":1},"b":2}', ()),
        ('{"id":1,"a":"\u00e9","b":2}', '{"id":1,"a":"\\u00e9","b":2}', ()),
        ('{"id":1,"a":"\u00e9","b":2}', '{"id":1,"a":"e\u0301","b":2}', ("a",)),
        ('{"id":1,"a":"x","b":2}', '{"id":1,"a":"x ","b":2}', ("a",)),
        ('{"id":1,"a":null,"b":2}', '{"id":1,"a":"","b":2}', ("a",)),
        ('{"id":1,"a":0,"b":2}', '{"id":1,"a":-0,"b":2}', ("a",)),
        ('{"id":1,"a":1.50,"b":2}', '{"id":1,"a":1.5,"b":2}', ("a",)),
        ('{"id":1,"a":1,"b":2}', '{"id":1,"a":"1","b":2}', ("a",)),
        ('{"id":1,"a":[1,2],"b":2}', '{"id":1,"a":[2,1],"b":2}', ("a",)),
        ('{"id":1,"a":1e400,"b":2}', '{"id":1,"a":1e401,"b":2}', ("a",)),
        ('{"id":1,"a":12345678901234567890123,"b":2}', '{"id":1,"a":12345678901234567890124,"b":2}', ("a",)),
        ('{"id":1,"a":1,"b":2}', '{"id":1,"a":1}', ("b",)),
        ('{"id":1,"a":1,"b":null}', '{"id":1,"a":1}', ("b",)),
        ('{"id":1,"a":1,"b":2}', '{"id":1,"a":1,"b":2,"c":3}', ("c",)),
        ('{"id":1,"a":1,"b":2}', "no JSON", ("id", "a", "b")),
        ('{"id":1,"a":1,"b":2}', "[1]", ("id", "a", "b")),
    ],
)  # fmt: skip
def test_different_columns_are_named(source: str, changelog: str, differ: tuple[str, ...]) -> None:
    result = compared(RowState.parse(source), RowState.parse(changelog), SHAPE, "1")
    assert result == Compared(kind="changed" if differ else None, columns=differ)


def test_a_row_on_one_side_only_is_missing_or_extra() -> None:
    row = RowState.parse('{"id":1}')
    assert compared(row, None, SHAPE, None) == Compared(kind="missing")
    assert compared(None, row, SHAPE, "1") == Compared(kind="extra")
    assert compared(None, None, SHAPE, "1") == Compared(kind=None)


def test_null_of_json_is_not_null_of_sql() -> None:
    sql, json = RowState.parse('{"id":1,"a":null,"b":2}'), RowState.parse('{"id":1,"a":null,"b":2}', json_null=["a"])
    assert compared(json, json, SHAPE, "1") == Compared(kind=None)
    assert (
        compared(sql, json, SHAPE, "1") == compared(json, sql, SHAPE, "1") == Compared(kind="changed", columns=("a",))
    )


def test_unavailable_columns_are_unknown_and_hide_no_other_difference() -> None:
    source = RowState.parse('{"id":1,"a":1,"b":2}')
    result = compared(source, RowState.parse('{"id":1,"b":3}', unavailable=["a"]), SHAPE, "1")
    assert result == Compared(kind="changed", columns=("b",), unknown=("a",))
    result = compared(source, RowState.parse('{"id":1,"b":2}', unavailable=["a"]), SHAPE, "1")
    assert result == Compared(kind=None, unknown=("a",))


@pytest.mark.parametrize(
    ("steps", "position", "source", "changelog", "expected"),
    [
        # an added column is null in earlier rows
        ([step("5", added={"b"})], "4", '"b":null', "", Compared(kind=None)),
        ([step("5", added={"b"})], "4", '"b":1', "", Compared(kind="changed", columns=("b",))),
        ([step("5", added={"b"})], "5", '"b":null', "", Compared(kind="changed", columns=("b",))),
        ([step("5", added={"b"})], "6", '"b":null', "", Compared(kind="changed", columns=("b",))),
        # a column was added with a default: older rows of the table have the default, but the log has no change of them
        ([step("5", added={"b"}, restated={"b"})], "4", '"b":1', "", Compared(kind=None, schema_changed=("b",))),
        ([step("5", added={"b"}, restated={"b"})], "5", '"b":1', "", Compared(kind="changed", columns=("b",))),
        # a retyped column's values are written differently
        ([step("5", restated={"b"})], "4", '"b":"1.50"', '"b":1.5', Compared(kind=None, schema_changed=("b",))),
        ([step("5", restated={"b"})], "6", '"b":"1.50"', '"b":1.5', Compared(kind="changed", columns=("b",))),
        # the changelog's row still has a column that was dropped later
        ([step("5", dropped={"c"})], "4", '"b":1', '"b":1,"c":2', Compared(kind=None)),
        ([step("5", dropped={"c"})], "6", '"b":1', '"b":1,"c":2', Compared(kind="changed", columns=("c",))),
        # the schema changed after the changelog's last row
        ([step(None, added={"b"}, restated={"b"})], "9", '"b":1', "", Compared(kind=None, schema_changed=("b",))),
        ([step("3"), step(None, dropped={"c"})], "9", '"b":1', '"b":1,"c":2', Compared(kind=None)),
    ],
)
def test_differences_due_to_a_changed_schema_are_no_drift(
    steps: list[Step], position: str, source: str, changelog: str, expected: Compared
) -> None:
    shape = ColumnHistory(columns=("id", "b"), steps=tuple(steps))
    states = [RowState.parse('{"id":1' + (f",{text}" if text else "") + "}") for text in (source, changelog)]
    assert compared(states[0], states[1], shape, position) == expected


def test_stale_columns_are_no_drift() -> None:
    shape = ColumnHistory(columns=("id", "b"), stale=frozenset({"b"}))
    source, changelog = RowState.parse('{"id":1,"b":1}'), RowState.parse('{"id":1,"b":2}')
    assert compared(source, changelog, shape, "1") == Compared(kind=None, schema_changed=("b",))


def version(
    number: int, columns: dict[str, ColumnType], *changes: dict[str, Any], restated: tuple[str, ...] = ()
) -> Version:
    state = {
        "entity": "thing",
        "version": number,
        "columns": [[name, type_.value] for name, type_ in columns.items() if isinstance(type_, Primitive)],
        "relation": 1,
        "cluster": "",
        "key": ["id"],
        "settings": "",
        "restated": restated,
        "breaks": [],
        "changes": changes,
    }  # fmt: skip
    return Version.parse(msgspec.json.encode(state))


def test_steps_come_from_the_versions_and_from_later_changes_of_the_table() -> None:
    first = version(1, {"id": Primitive.INT, "a": Primitive.STRING})
    second = version(
        2,
        {"id": Primitive.INT, "b": Primitive.STRING},
        {"kind": "dropped", "column": "a"},
        {"kind": "added", "column": "b"},
        restated=("b",),
    )
    now = Struct(fields=(("id", Primitive.INT), ("b", Primitive.LONG), ("c", Primitive.STRING)))
    assert steps_of([("1", first), ("5", second)], now) == (
        step("5", added={"b"}, restated={"b"}, dropped={"a"}),
        step(None, added={"c"}, restated={"b", "c"}),
    )
    assert steps_of([("1", first)], first.columns) == ()
    assert steps_of([], now) == ()
