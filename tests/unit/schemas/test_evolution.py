"""Tests how two versions of an entity's columns are compared, and which columns' published values are out of date."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.schemas.evolution import ChangeKind, changes, restated
from changelog.schemas.types import ColumnType, Primitive, Struct

_TYPES = {"": Primitive.INT, "+": Primitive.LONG, "'": Primitive.STRING}


def _columns(text: str) -> Struct:
    """Reads columns in a short notation. For example, `a b+ c'` means an int `a`, a long `b` and a string `c`."""
    fields = [(column.rstrip("+'"), _TYPES[column[len(column.rstrip("+'")) :]]) for column in text.split()]
    return Struct(fields=tuple(fields))


def _changes_of(old: str, new: str) -> list[str]:
    return [
        " ".join(filter(None, (change.kind, change.before, change.column)))
        for change in changes(_columns(old), _columns(new))
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a b", "a b", []),
        ("a", "a b c", ["added b", "added c"]),
        ("a b c", "b", ["dropped a", "dropped c"]),
        ("a b c", "a x c", ["replaced b x"]),
        ("a b", "a x", ["replaced b x"]),  # b may also have been dropped and x added: the log does not say which
        ("a b c", "a c x", ["added x", "dropped b"]),  # if b had been renamed to x, x would be before c
        ("a b c d", "a x y d", ["replaced b x", "replaced c y"]),
        ("a b c d", "a x d", ["replaced b x", "dropped c"]),
        ("a b", "x y z", ["replaced a x", "replaced b y", "added z"]),
        ("a b", "a x'", ["replaced b x"]),
        ("a b", "a+ b'", ["retyped a", "retyped b"]),
        ("a b c", "a' x c y", ["retyped a", "replaced b x", "added y"]),
        ("a b c", "b a c", ["moved b", "moved a"]),  # the columns exchanged their names
        ("a b c", "a c b", ["moved c", "moved b"]),  # or b was dropped and added again: the log does not say which
        ("a b c", "a c b+", ["moved c", "retyped b", "moved b"]),
        ("a b c", "b a c d", ["moved b", "moved a", "added d"]),
        ("a b c", "c", ["dropped a", "dropped b"]),  # c has not moved: the columns before it were dropped
    ],
)
def test_changes_follow_from_names_and_order(old: str, new: str, expected: Sequence[str]) -> None:
    assert _changes_of(old, new) == expected


def test_a_change_has_the_old_and_the_new_type() -> None:
    added, replaced, retyped, dropped = (
        next(iter(changes(_columns(old), _columns(new))))
        for old, new in (("a", "a b"), ("a b", "a x'"), ("a", "a+"), ("a b", "a"))
    )
    assert (added.old, added.new) == (None, Primitive.INT)
    assert (replaced.old, replaced.new) == (Primitive.INT, Primitive.STRING)
    assert (retyped.old, retyped.new) == (Primitive.INT, Primitive.LONG)
    assert (dropped.old, dropped.new) == (Primitive.INT, None)


_names = st.lists(st.sampled_from("abcdef"), max_size=5, unique=True)
_few_columns = _names.flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(name), st.sampled_from([*_TYPES.values()])) for name in names))
).map(lambda fields: Struct(fields=fields))


@given(_few_columns, _few_columns)
def test_the_changes_turn_the_old_columns_into_the_new_ones(old: Struct, new: Struct) -> None:
    columns: dict[str, ColumnType | None] = dict(old.fields)
    for change in changes(old, new):
        match change.kind:
            case ChangeKind.ADDED:
                assert change.column not in columns
                columns[change.column] = change.new
            case ChangeKind.DROPPED:
                assert columns.pop(change.column) == change.old
            case ChangeKind.REPLACED:
                assert change.before is not None
                assert columns.pop(change.before) == change.old
                assert change.column not in columns
                columns[change.column] = change.new
            case ChangeKind.RETYPED:
                assert columns[change.column] == change.old != change.new
                columns[change.column] = change.new
            case ChangeKind.MOVED:
                assert columns[change.column] == change.new
    assert columns == dict(new.fields)


@given(_few_columns, _few_columns)
def test_only_equal_columns_have_no_changes(old: Struct, new: Struct) -> None:
    assert (not changes(old, new)) == (old == new)


@given(_few_columns, st.data())
def test_a_renamed_column_is_restated_whatever_else_changed(old: Struct, data: st.DataObject) -> None:
    """The test changes columns as databases do: the remaining columns keep their order, and new columns come last."""
    remaining = [field for field in old.fields if data.draw(st.booleans())]
    names = [data.draw(st.sampled_from([name, name.upper()])) for name, _ in remaining]
    fields = [(name, type_) for name, (_, type_) in zip(names, remaining, strict=True)]
    added = data.draw(st.lists(st.sampled_from("xyz"), unique=True))
    new = Struct(fields=(*fields, *((name, Primitive.INT) for name in added)))
    assert {name for name in names if name.isupper()} <= set(restated(changes(old, new), ()))


@given(_few_columns.flatmap(lambda old: st.tuples(st.just(old), st.permutations(old.fields))))
def test_columns_that_exchange_names_are_restated(columns: tuple[Struct, Sequence[tuple[str, ColumnType]]]) -> None:
    old, fields = columns
    exchanged = tuple(name for (name, _), (old_name, _) in zip(fields, old.fields, strict=True) if name != old_name)
    assert restated(changes(old, Struct(fields=tuple(fields))), ()) == exchanged


@pytest.mark.parametrize(
    ("old", "new", "filled", "columns"),
    [
        ("a", "a b c", [], ()),
        ("a", "a b c", ["c"], ("c",)),
        ("a b", "a", [], ()),
        ("a b", "a x", [], ("x",)),
        ("a", "a+", [], ()),
        ("a+", "a", [], ()),
        ("a", "a'", [], ("a",)),
        ("a b", "b a", [], ("b", "a")),
        (
            "a b c",
            "a c b+",
            [],
            ("c", "b"),
        ),  # b was dropped and added again, wider: the table has nulls, stored rows have old values
        ("a b c", "a' x c y", ["y"], ("a", "x", "y")),
    ],
)
def test_restated_columns_are_those_that_stored_rows_no_longer_have(
    old: str, new: str, filled: Sequence[str], columns: Sequence[str]
) -> None:
    assert restated(changes(_columns(old), _columns(new)), filled) == columns
