"""Compares a row of the source with the changelog's last row of the same key, column by column.

Two values are equal if their canonical forms are equal (docs/reference/types.md): members of objects are compared by
name, JSON by its value, and numbers by their text. There are two kinds of columns that differ but have not drifted. A
column is *unknown* if the changelog has no value for it, because the database's log did not send the value
(`unavailable`). A column is *schema changed* if a later change of the table's columns altered its value, although the
database's log has no change of the row.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from changelog.envelope import canonical
from changelog.envelope.codec.json_codec import members
from changelog.envelope.errors import ChangelogError
from changelog.envelope.versions import Version
from changelog.schemas import evolution
from changelog.schemas.evolution import ChangeKind
from changelog.schemas.types import Struct

MISSING: Final = "missing"
EXTRA: Final = "extra"
CHANGED: Final = "changed"
"""Kinds of drift."""

SAME: Final = "same"
GONE: Final = "gone"
PENDING: Final = "pending"
"""Other states of a key. SAME: both sides have the same row. GONE: neither side has a row. PENDING: the changelog has
changes of the key, but the fence shows none of them. So the row as it was before the first of these changes takes the
place of the changelog's row.
"""

NULL: Final = b"null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of an entity's columns. It affects the rows that the changelog has before `position`, or all rows if
    `position` is None.

    In these rows, the table has nulls in the columns `added`, and may have other values than the changelog in the
    columns `restated`. The columns in `dropped` no longer exist.
    """

    position: str | None
    added: frozenset[str]
    restated: frozenset[str]
    dropped: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHistory:
    """An entity's present columns, and their history: `steps`, oldest first.

    `stale` columns can have other values in the table than in the changelog: a change of columns altered these values,
    and the service has not read them again yet. `floats` are columns with floats that Spark printed, not the database.
    These are compared as numbers, bit by bit.
    """

    columns: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    stale: frozenset[str] = frozenset()
    floats: frozenset[str] = frozenset()

    def after(self, position: str | None) -> Iterator[Step]:
        """Yields the steps that came after a row at `position`."""
        return (step for step in self.steps if step.position is None or position is None or position < step.position)

    @property
    def grew(self) -> bool:
        """Whether columns were added to the table. Older rows of the changelog lack these columns."""
        return any(step.added for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """A row of one side. `values` has the JSON token of each column. `json_null` names the columns whose null is JSON's
    null. `unavailable` names the columns whose values the database's log did not send.
    """

    values: Mapping[str, bytes]
    json_null: frozenset[str] = frozenset()
    unavailable: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, current: str, json_null: Sequence[str] = (), unavailable: Sequence[str] = ()) -> "RowState":
        """Parses a row's JSON. If it is not a JSON object, the result has no values."""
        try:
            values = members(current.encode())
        except (ValueError, RecursionError):
            values = {}
        return cls(values=values, json_null=frozenset(json_null), unavailable=frozenset(unavailable))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The verdict on a key: its `kind` of drift (None if it did not drift), the `columns` that drifted, and the columns
    that are unknown or schema changed.
    """

    kind: str | None
    columns: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    schema_changed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Differences:
    columns: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    schema_changed: list[str] = field(default_factory=list)


def compared(
    source: RowState | None, changelog: RowState | None, shape: ColumnHistory, position: str | None
) -> Compared:
    """Compares the two sides of a key. `position` is the position of the changelog's row."""
    if source is None or changelog is None:
        return Compared(kind=None if source is changelog else EXTRA if source is None else MISSING)
    differences = _Differences()
    steps = list(shape.after(position))
    for name in shape.columns:
        _column(name, source, changelog, steps, shape, differences)
    dropped = frozenset[str]().union(*(step.dropped for step in steps))
    differences.columns += [name for name in changelog.values if name not in source.values and name not in dropped]
    return Compared(
        kind=CHANGED if differences.columns else None,
        columns=tuple(differences.columns),
        unknown=tuple(differences.unknown),
        schema_changed=tuple(differences.schema_changed),
    )


def _column(
    name: str,
    source: RowState,
    changelog: RowState,
    steps: Sequence[Step],
    shape: ColumnHistory,
    differences: _Differences,
) -> None:
    if name in changelog.unavailable:
        differences.unknown.append(name)
        return
    if _same(name, source, changelog, bits=name in shape.floats):
        return
    lacks = name not in changelog.values
    if lacks and _is_null(name, source) and any(name in step.added for step in steps):
        return
    if name in shape.stale or any(name in step.restated for step in steps):
        differences.schema_changed.append(name)
    else:
        differences.columns.append(name)


def _is_null(name: str, state: RowState) -> bool:
    return state.values.get(name) == NULL and name not in state.json_null


def _same(name: str, source: RowState, changelog: RowState, *, bits: bool) -> bool:
    left, right = source.values.get(name), changelog.values.get(name)
    if left is None or right is None:
        return False
    if left == NULL and right == NULL:
        return (name in source.json_null) == (name in changelog.json_null)
    return left == right or (_same_float(left, right) if bits else _equal(left, right))


def _same_float(left: bytes, right: bytes) -> bool:
    try:
        return struct.pack("d", float(left)) == struct.pack("d", float(right))
    except ValueError:  # a string, such as "NaN"
        return False


def _equal(left: bytes, right: bytes) -> bool:
    try:
        return canonical.equal(left, right)
    except ChangelogError:  # not JSON, or too deep to be read
        return False


def steps_of(versions: Sequence[tuple[str, Version]], columns: Struct) -> tuple[Step, ...]:
    """Returns the steps from an entity's first version to the table's present `columns`, oldest first.

    If the present columns differ from those of the last version, the table was altered, and no row has been written
    since.
    """
    steps = [_step(position, version) for position, version in versions if version.number > 1]
    if versions:
        changes = evolution.changes(versions[-1][1].columns, columns)
        if changes:
            steps.append(_unannounced(changes))
    return tuple(steps)


def _step(position: str, version: Version) -> Step:
    changes = msgspec.json.decode(version.state)["changes"]
    return Step(
        position=position,
        added=frozenset(change["column"] for change in changes if change["kind"] == ChangeKind.ADDED),
        restated=frozenset(version.restated),
        dropped=frozenset(change["column"] for change in changes if change["kind"] == ChangeKind.DROPPED)
        | {change["before"] for change in changes if change["kind"] == ChangeKind.REPLACED},
    )


def _unannounced(changes: Sequence[evolution.ColumnChange]) -> Step:
    """Returns the last step. It has the changes of columns that no version has yet, because no row has been written
    since the table was altered.

    Added columns count as restated, because they can have defaults.
    """
    added = frozenset(change.column for change in changes if change.kind is ChangeKind.ADDED)
    return Step(
        position=None,
        added=added,
        restated=frozenset(evolution.restated(changes, added)),
        dropped=frozenset(change.column for change in changes if change.kind is ChangeKind.DROPPED)
        | {change.before for change in changes if change.kind is ChangeKind.REPLACED and change.before is not None},
    )
