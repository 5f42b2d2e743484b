"""Deltas: what a message says of a change, as the patch from the state before to the state after.

`envelope.delta.patch` has the operations. This module defines the patch of each kind of change, and how a reader folds
deltas into states, forwards and back. `envelope.delta.patch_text` makes the same patches from JSON text, many a second.

| change | patch |
|---|---|
| create | `add` at the root |
| update | from the original to the current; columns that are unavailable on either side take no part |
| delete | `test` and `remove` at the root; `remove` alone where the original is not known in full |
| read, or an update whose original is not known | `add` at the root with `"reset": true` |
| truncate | none: the `op` of the provenance says it |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from envelope.canonical import Value, text_of
from envelope.delta.patch import Operation, apply, diff, invert, parse
from envelope.errors import ChangelogError, Kind
from envelope.model import MISSING, Envelope, Missing, Op, Provenance
from envelope.position import UNPLACED


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """One change of one entity. Its id is the change's position, `provenance.source.position`."""

    provenance: Provenance
    patch: Sequence[Operation]


def delta_of(envelope: Envelope) -> Delta:
    """The delta of a change.

    Raises ChangelogError, of kind *malformed* when a state is not JSON or a change lacks the one that it must have.
    """
    source = envelope.provenance.source
    original = MISSING if isinstance(envelope.original, Missing | None) else parse(envelope.original)
    patch: list[Operation]
    if source.op is Op.TRUNCATE:
        patch = []
    elif source.op is Op.DELETE:
        whole = original is not MISSING and not source.unavailable_original
        patch = diff(original, MISSING) if whole else [{"op": "remove", "path": ""}]
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
    """The state of an entity after its deltas, which come in their order; repeats are passed over.

    `state` is the one before them: MISSING when they begin with a create or a reset. MISSING comes back where the
    entity was deleted.

    A column that the state does not have is one that is not known yet, as after an unavailable value or where it was
    added to the table: what deltas tell of it as a whole is learnt from them. Every other test is made: raises
    ChangelogError of kind *malformed* where a delta is missing.
    """
    for delta in _once(deltas):
        truncated = delta.provenance.source.op is Op.TRUNCATE
        state = MISSING if truncated else _stepped(delta, delta.patch, state)
    return state


def foldable(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """An entity's deltas from the first on that says its state whole: a create or a reset.

    Where a table was written to while it was read, others stand before, of a state that nobody was told.
    """
    return dropwhile(lambda delta: not any(each["op"] == "add" and not each["path"] for each in delta.patch), deltas)


def back(deltas: Iterable[Delta], state: Value) -> Value:
    """The state of an entity before its deltas, which come in their order, from the `state` after them.

    Raises ChangelogError of kind *malformed* where they do not say it: at a reset, at a truncate, and at a delete
    without its original.
    """
    for delta in reversed(list(_once(deltas))):
        if delta.provenance.source.op is Op.TRUNCATE:
            raise ChangelogError(Kind.MALFORMED, "a truncate does not say what it takes away")
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
    """Each delta once. Events that services publish themselves have no position in a source, and all stay."""
    last = None
    for delta in deltas:
        position = delta.provenance.source.position
        if last is None or position > last or position == UNPLACED:
            last = position
            yield delta


def _stepped(delta: Delta, patch: Sequence[Operation], state: Value) -> Value:
    """The state on the other side of a delta, by its patch or the inverse of it."""
    source = delta.provenance.source
    stepped = apply(_fitted(patch, state), state)
    if not (isinstance(stepped, dict) and isinstance(state, dict)):
        return stepped
    if any(operation.get("reset") for operation in patch):  # the log leaves out what did not change
        kept = {name: state[name] for name in source.unavailable if name in state}
        return {**kept, **stepped}
    return _without(stepped, set(source.unavailable_original) - set(source.unavailable))


def _fitted(patch: Sequence[Operation], state: Value) -> list[Operation]:
    """The patch as it applies to a state in which columns are not known."""
    if not isinstance(state, dict):
        return list(patch)
    known = set(state)
    fitted: list[Operation] = []
    for operation in patch:
        if operation["path"] == "":
            fitted += _tests(operation, state) if operation["op"] == "test" else [operation]
            continue
        column, within = _column(operation["path"])
        if within and column not in known:
            continue
        if operation["op"] == "test" and column not in known:
            operation = {**operation, "op": "add"}
        known.add(column)
        fitted.append(operation)
    return fitted


def _tests(test: Operation, state: Mapping[str, Value]) -> list[Operation]:
    """A test of the whole state, of the columns that both sides know."""
    value: Any = test["value"]
    if not isinstance(value, dict):
        return [test]
    both = {name: state[name] for name in state if name in value}
    alike = text_of(both) == text_of({name: value[name] for name in both})
    return [] if alike else [test]


def _column(path: str) -> tuple[str, bool]:
    """The column that a path leads to or into, and whether it leads into it."""
    first, slash, _ = path[1:].partition("/")
    return first.replace("~1", "/").replace("~0", "~"), bool(slash)
