"""How the columns of an entity changed between two versions of them, and what that means for rows published before."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.types import ColumnType, Primitive, Struct


class Kind(StrEnum):
    """What became of a column."""

    ADDED = "added"
    DROPPED = "dropped"
    REPLACED = "replaced"
    RETYPED = "retyped"
    MOVED = "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One column that is not as it was. `before` is the column that stood where a replaced one stands."""

    kind: Kind
    column: str
    before: str | None = None
    old: ColumnType | None = None
    new: ColumnType | None = None


_SAME_TEXT = frozenset({(Primitive.INT, Primitive.LONG), (Primitive.LONG, Primitive.INT)})
"""Retypes after which every stored value is written as it was."""


def changes(old: Struct, new: Struct) -> tuple[Change, ...]:
    """From the columns `old` to `new`, in the order of the new ones, the dropped last.

    A database's log does not tell a rename from a column that went and one that came: where a new column stands in the
    place of one that is gone, it may hold its values. Nor does it tell columns that changed names with one another, or
    a column that went and came again, but that they stand in another order: such a column may be retyped, too.
    """
    before, after = dict(old.fields), dict(new.fields)
    replaced, moved = _replaced(old, new), _moved(old, new)
    found = []
    for name, type_ in new.fields:
        if name in replaced:
            found.append(
                Change(kind=Kind.REPLACED, column=name, before=replaced[name], old=before[replaced[name]], new=type_)
            )
        elif name not in before:
            found.append(Change(kind=Kind.ADDED, column=name, new=type_))
        elif before[name] != type_:
            found.append(Change(kind=Kind.RETYPED, column=name, old=before[name], new=type_))
        if name in moved:
            found.append(Change(kind=Kind.MOVED, column=name, old=before[name], new=type_))
    gone = set(replaced.values())
    found += [
        Change(kind=Kind.DROPPED, column=name, old=type_)
        for name, type_ in old.fields
        if name not in after and name not in gone
    ]
    return tuple(found)


def restated(found: Sequence[Change], filled: Collection[str]) -> tuple[str, ...]:
    """The columns whose values in rows published before are no longer what the table holds, though no row was written.

    Those are the replaced and the moved, the retyped whose text may differ, and the added that are `filled`: that have
    a default.
    """
    return tuple(
        change.column
        for change in found
        if change.kind in (Kind.REPLACED, Kind.MOVED)
        or (change.kind is Kind.RETYPED and (change.old, change.new) not in _SAME_TEXT)
        or (change.kind is Kind.ADDED and change.column in filled)
    )


def _replaced(old: Struct, new: Struct) -> dict[str, str]:
    """New name to old, for new columns that stand among the same neighbours as old ones did."""
    before, after = {name for name, _ in old.fields}, {name for name, _ in new.fields}
    pairs = zip(_runs(old, after), _runs(new, before), strict=False)
    return {name: was for gone, come in pairs for name, was in zip(come, gone, strict=False)}


def _runs(columns: Struct, kept: Collection[str]) -> list[list[str]]:
    """The columns that are not `kept`, in runs: one before the first kept column, one between each two, one behind."""
    runs: list[list[str]] = [[]]
    for name, _ in columns.fields:
        if name in kept:
            runs.append([])
        else:
            runs[-1].append(name)
    return runs


def _moved(old: Struct, new: Struct) -> set[str]:
    """Of the columns that both have, those before or behind which others stand now."""
    before, after = dict(old.fields), dict(new.fields)
    kept = zip((name for name in after if name in before), (name for name in before if name in after), strict=True)
    return {name for name, was in kept if name != was}
