"""Makes, applies and inverts JSON Patches (RFC 6902) that contain the old and the new value of every change.

The only operations are `test`, `add`, `replace` and `remove`. Before each `replace` and `remove` there is a `test` of
the value that the operation removes. So a patch checks the document to which it is applied, and can be inverted.
`changelog.envelope.canonical` defines how JSON values are parsed, compared and written. Numbers are equal only if they
are written alike; the RFC is less strict. The results of these functions share parts with their arguments: do not
change any of them in place.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw

from changelog.envelope.canonical import Value, dumps, parse, text_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.json_pointer import escaped, unescaped
from changelog.envelope.model import MISSING

__all__ = ["EDITS_MAX", "MISSING", "Operation", "apply", "diff", "dumps", "invert", "parse"]

Operation = dict[str, Any]

EDITS_MAX = 256
"""If two arrays differ by at most this many insertions and deletions, each element is compared with its counterpart,
even if the insertions and deletions have changed its index. If they differ by more, elements with the same index are
compared.
"""

_NESTING_MAX = 100
"""Values are compared part by part down to this level of nesting. A changed value that is nested deeper is replaced as
a whole."""

_PLAIN = frozenset({str, Raw, int, bool, type(None)})
"""For two values of the same type in this set, `==` tells whether they are equal in JSON."""

_INDEX = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_POINTER = re.compile(r"(/([^/~]|~[01])*)*")

Difference = tuple[int, int, int, int]
"""A difference `(i1, i2, j1, j2)` between two arrays: the second has `second[j1:j2]` in place of `first[i1:i2]`."""


def diff(original: Value, current: Value) -> list[Operation]:
    """Returns the patch that turns `original` into `current`. The patch is empty if they are equal.

    Each of the two may be MISSING. If `original` is MISSING, the patch is an `add` at the root. If `current` is
    MISSING, the patch is a `test` and a `remove` at the root.
    """
    if original is MISSING:
        return [] if current is MISSING else [_add("", current)]
    if current is MISSING:
        return _remove("", original)
    return _changes("", original, current)


def apply(patch: Sequence[Operation], document: Value) -> Value:
    """Applies `patch` to `document`. Returns a new value, or MISSING if the patch removed the root.

    If an operation has members that the RFC does not define, these are ignored. Raises ChangelogError of kind
    *malformed* if a test fails, if a path does not exist, or if an operation is not one of the four; the error names
    the number of the operation.
    """
    holder = {} if document is MISSING else {"": document}
    for number, operation in enumerate(patch, 1):
        try:
            holder = _applied(operation, holder)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise ChangelogError(
                Kind.MALFORMED, f"a patch does not apply: operation {number} of {len(patch)} fails"
            ) from None
    return holder.get("", MISSING)


def invert(patch: Sequence[Operation]) -> list[Operation]:
    """Returns the patch that undoes `patch`: `apply(invert(p), apply(p, document)) == document`.

    Raises ChangelogError of kind *malformed* if the patch does not show the value before one of its operations. This is
    so for a `replace` or `remove` without a `test` before it, and for an `add` that resets the state.
    """
    steps: list[list[Operation]] = []
    before: Operation = {}
    for number, operation in enumerate(patch, 1):
        tested = before.get("op") == "test" and before.get("path") == operation.get("path")
        match operation:
            case {"op": "test"}:
                steps.append([operation])
            case {"op": "add", "path": path, "value": value} if not operation.get("reset"):
                steps.append(_remove(path, value))
            case {"op": "remove", "path": path} if tested:
                steps[-1] = [_add(path, before["value"])]
            case {"op": "replace", "path": path, "value": value} if tested:
                steps[-1] = _replace(path, value, before["value"])
            case _:
                raise ChangelogError(
                    Kind.MALFORMED,
                    f"a patch cannot be inverted: operation {number} of {len(patch)} lacks the value that it removes",
                )
        before = operation
    return [operation for step in reversed(steps) for operation in step]


def _add(path: str, value: Value) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _remove(path: str, value: Value) -> list[Operation]:
    return [{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}]


def _replace(path: str, value: Value, by: Value) -> list[Operation]:
    return [{"op": "test", "path": path, "value": value}, {"op": "replace", "path": path, "value": by}]


def _changes(path: str, a: Value, b: Value) -> list[Operation]:
    shallow = path.count("/") < _NESTING_MAX
    if shallow and isinstance(a, dict) and isinstance(b, dict):
        return _of_objects(path, a, b)
    if shallow and isinstance(a, list) and isinstance(b, list):
        return _of_arrays(path, a, b)
    return [] if text_of(a) == text_of(b) else _replace(path, a, b)


def _of_objects(path: str, a: dict[str, Value], b: dict[str, Value]) -> list[Operation]:
    operations: list[Operation] = []
    for name, value in a.items():
        other = b.get(name, MISSING)
        if type(value) in _PLAIN and type(value) is type(other) and value == other:
            continue
        member = f"{path}/{escaped(name)}"
        operations += _remove(member, value) if other is MISSING else _changes(member, value, other)
    operations += [_add(f"{path}/{escaped(name)}", value) for name, value in b.items() if name not in a]
    return operations


def _of_arrays(path: str, a: list[Value], b: list[Value]) -> list[Operation]:
    """Returns a patch of the elements that differ, or a patch that replaces the whole array, if that is shorter."""
    operations: list[Operation] = []
    for i1, i2, j1, j2 in _differences([text_of(value) for value in a], [text_of(value) for value in b]):
        paired = min(i2 - i1, j2 - j1)
        for n in range(paired):
            operations += _changes(f"{path}/{j1 + n}", a[i1 + n], b[j1 + n])
        for value in a[i1 + paired : i2]:
            operations += _remove(f"{path}/{j1 + paired}", value)
        operations += [_add(f"{path}/{j}", b[j]) for j in range(j1 + paired, j2)]
    whole = _replace(path, a, b)
    return operations if not operations or len(dumps(operations)) <= len(dumps(whole)) else whole


def _differences(a: Sequence[bytes], b: Sequence[bytes]) -> Iterator[Difference]:
    """Yields the differences between two sequences, in order."""
    start, least = 0, min(len(a), len(b))
    while start < least and a[start] == b[start]:
        start += 1
    end = 0
    while end < least - start and a[-1 - end] == b[-1 - end]:
        end += 1
    i, j = start, start
    for x, y in _common(a[start : len(a) - end], b[start : len(b) - end]):
        if (i, j) != (start + x, start + y):
            yield i, start + x, j, start + y
        i, j = start + x + 1, start + y + 1
    if (i, j) != (len(a) - end, len(b) - end):
        yield i, len(a) - end, j, len(b) - end


def _common(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int]]:
    """Returns a longest common subsequence, as pairs of an index in `a` and an index in `b`.

    Returns an empty list if the sequences differ by more than `EDITS_MAX` insertions and deletions. Source: E. W.
    Myers, *An O(ND) Difference Algorithm and Its Variations* (1986), the greedy form: `reach[k]` is the furthest x on
    the diagonal x - y = k.
    """
    reach, trace = {1: 0}, []
    for edits in range(min(len(a) + len(b), EDITS_MAX) + 1):
        trace.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            x = reach[k + 1] if _goes_down(reach, k, edits) else reach[k - 1] + 1
            while x < len(a) and 0 <= x - k < len(b) and a[x] == b[x - k]:
                x += 1
            reach[k] = x
            if x >= len(a) and x - k >= len(b):
                return _pairs(trace, len(a), len(b))
    return []


def _pairs(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    """Returns the diagonal steps of the path from the start to `(x, y)`, in the order of the path. `trace[n]` is the
    `reach` of `_common` before it tried `n` edits.
    """
    pairs: list[tuple[int, int]] = []
    for edits in range(len(trace) - 1, -1, -1):
        reach, k = trace[edits], x - y
        before = k + 1 if _goes_down(reach, k, edits) else k - 1
        while x > reach[before] and y > reach[before] - before:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = reach[before], reach[before] - before
    return pairs[::-1]


def _goes_down(reach: dict[int, int], k: int, edits: int) -> bool:
    return k == -edits or (k != edits and reach[k - 1] < reach[k + 1])


def _applied(operation: Operation, holder: dict[str, Value]) -> dict[str, Value]:
    """Applies one operation to the document in `holder`, and returns the changed holder.

    The document is the member `""` of `holder`, so the root needs no special case.
    """
    *parents, last = _tokens(operation["path"])
    if operation["op"] == "test":
        node: Value = holder
        for token in (*parents, last):
            node = node[_member(node, token)]
        if text_of(node) != text_of(operation["value"]):
            raise ValueError("the test fails")
        return holder
    changed: dict[str, Value] = dict(holder)
    node = changed
    for token in parents:
        member = _member(node, token)
        node[member] = _copied(node[member])
        node = node[member]
    _change(node, last, operation)
    return changed


def _change(node: Value, token: str, operation: Operation) -> None:
    match operation["op"]:
        case "add" if isinstance(node, list):
            node.insert(len(node) if token == "-" else _member(node, token, room=1), operation["value"])
        case "add":
            node[token] = operation["value"]
        case "replace":
            node[_member(node, token)] = operation["value"]
        case "remove":
            del node[_member(node, token)]
        case _:
            raise ValueError("no such operation")


def _member(node: Value, token: str, *, room: int = 0) -> Any:
    """Returns the name of the member, or the index of the element, that `token` names in `node`.

    Raises LookupError if `node` has no such member or element. If `room` is 1, the index may also be the array's
    length.
    """
    if isinstance(node, dict):
        if token not in node:
            raise LookupError("no such member")
        return token
    if not isinstance(node, list) or not _INDEX.fullmatch(token) or int(token) >= len(node) + room:
        raise LookupError("no such element")
    return int(token)


def _copied(node: Value) -> Value:
    if isinstance(node, dict | list):
        return node.copy()
    raise TypeError("a scalar has no members")


def _tokens(path: str) -> list[str]:
    """Returns the steps of a JSON pointer (RFC 6901). The first step is `""`, for the root. Raises ValueError if `path`
    is not a JSON pointer.
    """
    if not _POINTER.fullmatch(path):
        raise ValueError("not a JSON pointer")
    return [unescaped(token) for token in path.split("/")]
