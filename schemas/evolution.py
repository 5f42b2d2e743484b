"""Compares two versions of an entity's columns, and finds the columns whose published values are out of date."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from changelog.schemas.types import ColumnType, Primitive, Struct


class ChangeKind(StrEnum):
    """What happened to a column."""

    ADDED = "added"
    DROPPED = "dropped"
    REPLACED = "replaced"
    RETYPED = "retyped"
    MOVED = "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """One column that changed. If it replaced another column, `before` is the name of that column."""

    kind: ChangeKind
    column: str
    before: str | None = None
    old: ColumnType | None = None
    new: ColumnType | None = None


_SAME_TEXT = frozenset({(Primitive.INT, Primitive.LONG), (Primitive.LONG, Primitive.INT)})
"""Changes of a column's type, as (old, new), after which every value is still published as the same text."""


def changes(old: Struct, new: Struct) -> tuple[ColumnChange, ...]:
    """Returns how the columns `new` differ from `old`. The changes are in the order of the new columns, and dropped
    columns come last.

    A database's log does not show renames: it looks as if one column were dropped, and another added. So a new column
    in the place of a dropped column counts as its replacement, because it may hold the values of the dropped column. If
    two columns swapped names, or if a column was dropped and added again, the log shows only that the order of columns
    differs. The columns that are now at other places count as moved, and also as retyped if their types differ.
    """
    before, after = dict(old.fields), dict(new.fields)
    replaced, moved = _replaced(old, new), _moved(old, new)
    changes = []
    for name, type_ in new.fields:
        if name in replaced:
            changes.append(
                ColumnChange(
                    kind=ChangeKind.REPLACED, column=name, before=replaced[name], old=before[replaced[name]], new=type_
                )
            )
        elif name not in before:
            changes.append(ColumnChange(kind=ChangeKind.ADDED, column=name, new=type_))
        elif before[name] != type_:
            changes.append(ColumnChange(kind=ChangeKind.RETYPED, column=name, old=before[name], new=type_))
        if name in moved:
            changes.append(ColumnChange(kind=ChangeKind.MOVED, column=name, old=before[name], new=type_))
    replaced_names = set(replaced.values())
    changes += [
        ColumnChange(kind=ChangeKind.DROPPED, column=name, old=type_)
        for name, type_ in old.fields
        if name not in after and name not in replaced_names
    ]
    return tuple(changes)


def restated(changes: Sequence[ColumnChange], filled_columns: Collection[str]) -> tuple[str, ...]:
    """Returns the columns whose published values no longer equal the table's values, although no row was written.

    These are columns that replaced another column or moved, columns with a new type whose values may have another text,
    and added columns that are in `filled_columns`. `filled_columns` names the columns that may have a value in rows
    from before the column was added, such as columns with a default.
    """
    return tuple(
        change.column
        for change in changes
        if change.kind in (ChangeKind.REPLACED, ChangeKind.MOVED)
        or (change.kind is ChangeKind.RETYPED and (change.old, change.new) not in _SAME_TEXT)
        or (change.kind is ChangeKind.ADDED and change.column in filled_columns)
    )


def _replaced(old: Struct, new: Struct) -> dict[str, str]:
    """Maps added columns to the dropped columns that they replace. An added column replaces a dropped column that was
    between the same remaining columns.
    """
    before, after = {name for name, _ in old.fields}, {name for name, _ in new.fields}
    runs = zip(_runs(old, after), _runs(new, before), strict=False)
    return {name: old_name for dropped, added in runs for name, old_name in zip(added, dropped, strict=False)}


def _runs(columns: Struct, common: Collection[str]) -> list[list[str]]:
    """Returns the groups of columns before, between and after the columns in `common`. A group may be empty."""
    runs: list[list[str]] = [[]]
    for name, _ in columns.fields:
        if name in common:
            runs.append([])
        else:
            runs[-1].append(name)
    return runs


def _moved(old: Struct, new: Struct) -> set[str]:
    """Compares the order of the columns that both versions have. Returns those whose place in this order changed."""
    before, after = dict(old.fields), dict(new.fields)
    common = zip((name for name in after if name in before), (name for name in before if name in after), strict=True)
    return {name for name, old_name in common if name != old_name}
