"""Defines deltas. A delta is a JSON Patch that turns the state of a row before a change (the original) into the state
after the change.

`changelog.envelope.delta.patch` defines the operations of patches. This module makes the patch of each kind of change
(see the table below), and folds deltas into states, forwards and backwards. `changelog.envelope.delta.patch_text` makes
the same patches faster, from JSON text. A column is *unavailable* if the database's log did not send its value.

| change | patch |
|---|---|
| create | `add` at the root |
| update | the changes that turn the original into the current state, without columns that are unavailable in either |
| delete | `test` and `remove` at the root; only `remove` if the original is not fully known |
| read, or an update whose original is unknown | `add` at the root with `"reset": true` |
| truncate | empty: the `op` of the provenance is enough |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from changelog.envelope.canonical import Value, text_of
from changelog.envelope.delta.patch import Operation, apply, diff, invert, parse
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.json_pointer import unescaped
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Provenance
from changelog.envelope.position import UNPLACED


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The delta of one change. The change's position, `provenance.source.position`, identifies it."""

    provenance: Provenance
    patch: Sequence[Operation]


def delta_of(envelope: Envelope) -> Delta:
    """Returns the delta of a change.

    Raises ChangelogError of kind *malformed* if a state is not JSON, or if a required state is missing.
    """
    source = envelope.provenance.source
    original = MISSING if isinstance(envelope.original, Missing | None) else parse(envelope.original)
    patch: list[Operation]
    if source.op is Op.TRUNCATE:
        patch = []
    elif source.op is Op.DELETE:
        complete = original is not MISSING and not source.unavailable_original
        patch = diff(original, MISSING) if complete else [{"op": "remove", "path": ""}]
    else:
        current = _current(envelope)
        if source.op is Op.CREATE:
            patch = diff(MISSING, current)
        elif source.op is Op.READ or original is MISSING:
            patch = [{"op": "add", "path": "", "value": current, "reset": True}]
        else:
            left_out = {*source.unavailable, *source.unavailable_original}
            patch = diff(_without(original, left_out), _without(current, left_out))
    return Delta(provenance=envelope.provenance, patch=patch)


def fold(deltas: Iterable[Delta], state: Value = MISSING) -> Value:
    """Returns the state of a key after its deltas; MISSING if the row no longer exists.

    `deltas` are sorted by position; repeated deltas are skipped. `state` is the state before the first delta. If the
    first delta is a create or a reset (an `add` at the root), `state` can be MISSING.

    A state can lack a column whose value is not known yet, for example because it was unavailable, or because the
    column was added to the table. Such a column gets its value from the first delta that has the column's whole value.
    For every other column, the patches test the former value. If a test fails, a delta is missing; then this function
    raises ChangelogError of kind *malformed*.
    """
    for delta in _once(deltas):
        truncated = delta.provenance.source.op is Op.TRUNCATE
        state = MISSING if truncated else _stepped(delta, delta.patch, state)
    return state


def foldable(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Yields the deltas of a key, beginning with the first one that has the whole state: a create or a reset.

    There can be deltas before this one: if a table changes while it is read, a change of a row can be published before
    the read that has the whole row.
    """
    return dropwhile(lambda delta: not any(op["op"] == "add" and not op["path"] for op in delta.patch), deltas)


def back(deltas: Iterable[Delta], state: Value) -> Value:
    """Returns the state of a key before `deltas`. These are sorted by position, and `state` is the state after the last
    delta.

    Raises ChangelogError of kind *malformed* if a delta does not contain the earlier state. Such a delta is a reset, a
    truncate, or a delete without its original.
    """
    for delta in reversed(list(_once(deltas))):
        if delta.provenance.source.op is Op.TRUNCATE:
            raise ChangelogError(Kind.MALFORMED, "a truncate does not hold the state that it removes")
        state = _stepped(delta, invert(delta.patch), state)
    return state


def _current(envelope: Envelope) -> Value:
    if envelope.current is None:
        source = envelope.provenance.source
        raise ChangelogError(Kind.MALFORMED, f"the message of a change ({source.op}) has no current state")
    return parse(envelope.current)


def _without(state: Value, names: Iterable[str]) -> Value:
    return {name: value for name, value in state.items() if name not in names} if isinstance(state, dict) else state


def _once(deltas: Iterable[Delta]) -> Iterable[Delta]:
    """Yields each delta once. Events that applications published themselves are all yielded: they have no position, so
    a repeated event cannot be recognised.
    """
    last = None
    for delta in deltas:
        position = delta.provenance.source.position
        if last is None or position > last or position == UNPLACED:
            last = position
            yield delta


def _stepped(delta: Delta, patch: Sequence[Operation], state: Value) -> Value:
    """Applies a patch to a state: the patch of `delta`, or the inverse of this patch."""
    source = delta.provenance.source
    stepped = apply(_fitted(patch, state), state)
    if not (isinstance(stepped, dict) and isinstance(state, dict)):
        return stepped
    if any(operation.get("reset") for operation in patch):  # The new state may lack values that did not change.
        unchanged = {name: state[name] for name in source.unavailable if name in state}
        return {**unchanged, **stepped}
    return _without(stepped, set(source.unavailable_original) - set(source.unavailable))


def _fitted(patch: Sequence[Operation], state: Value) -> list[Operation]:
    """Returns a form of the patch that can be applied even if the state lacks columns.

    If the state lacks a column, a test of the column's whole value becomes an `add` of this value, and operations
    inside the value are left out.
    """
    if not isinstance(state, dict):
        return list(patch)
    names = set(state)
    fitted: list[Operation] = []
    for operation in patch:
        if operation["path"] == "":
            fitted += _tests(operation, state) if operation["op"] == "test" else [operation]
            continue
        column, within = _column(operation["path"])
        if within and column not in names:
            continue
        if operation["op"] == "test" and column not in names:
            operation = {**operation, "op": "add"}
        names.add(column)
        fitted.append(operation)
    return fitted


def _tests(test: Operation, state: Mapping[str, Value]) -> list[Operation]:
    """Compares a state with a test of the whole state, but only the columns that both have. Returns no operation if
    these are equal. Otherwise, returns the test, which will fail.
    """
    value: Any = test["value"]
    if not isinstance(value, dict):
        return [test]
    common = {name: state[name] for name in state if name in value}
    equal = text_of(common) == text_of({name: value[name] for name in common})
    return [] if equal else [test]


def _column(path: str) -> tuple[str, bool]:
    """Returns the column that a path names, and whether the path leads to a part of the column's value."""
    first, slash, _ = path[1:].partition("/")
    return unescaped(first), bool(slash)
