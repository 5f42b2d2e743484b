"""Applies a partial update of a JSON document: MySQL can log a list of changes instead of the new document.

It does so in PARTIAL_UPDATE_ROWS events, if `binlog_row_value_options` is PARTIAL_JSON. A change consists of one byte
for the operation, a path and, unless the operation is REMOVE, a value. The path and the value each come after their
length, which is a length-encoded integer. See `json_diff.h` in MySQL's source.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from changelog.connectors.sources.mysql.values.documents.json_binary import DEPTH_MAX, Json, parse_json
from changelog.connectors.sources.mysql.values.documents.json_text import print_json
from changelog.envelope.errors import ChangelogError, Kind


class JsonOperation(IntEnum):
    """What a change does at its path. In an array, INSERT and REMOVE also move the later elements."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


Step = str | int
"""A step of a path: the name of a member, or the index of an element. A negative index counts from the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonChange:
    """One change. `path` is not empty: if the whole document changes, the log has the new document instead of a list.

    `offset` is where the change starts in the list, in bytes. `value` is None if the operation is REMOVE.
    """

    offset: int
    operation: JsonOperation
    path: tuple[Step, ...]
    value: Json


def apply_diffs(old: bytes | memoryview, diffs: bytes | memoryview) -> bytes:
    """Returns the text of the new document.

    `old` is the binary document before the update; `diffs` is the list of changes, without the length before it. Raises
    ChangelogError (MALFORMED) with an offset in the list if a change is not valid or does not fit the document.
    """
    document = parse_json(old)
    for change in read_diffs(diffs):
        try:
            _apply(document, change)
        except LookupError:
            raise _malformed(change.offset) from None
    return print_json(document)


def read_diffs(diffs: bytes | memoryview) -> Iterator[JsonChange]:
    """Yields the changes of a list, in the order in which they are applied. Raises ChangelogError (MALFORMED)."""
    data = bytes(diffs)
    at = 0
    while at < len(data):
        if data[at] not in _OPERATIONS:
            raise _malformed(at)
        start, operation = at, JsonOperation(data[at])
        path, at = _path(data, at + 1)
        value: Json = None
        if operation is not JsonOperation.REMOVE:
            encoded, at = _counted(data, at)
            value = parse_json(encoded)
        yield JsonChange(offset=start, operation=operation, path=path, value=value)


def _apply(document: Json, change: JsonChange) -> None:
    """Changes the document. Raises LookupError if the path does not exist, or if an INSERT names an existing member."""
    *steps, last = change.path
    parent = document
    for step in steps:
        parent = _inner(parent, step)
    if isinstance(parent, dict) and isinstance(last, str):
        _apply_to_object(parent, last, change)
    elif isinstance(parent, list) and isinstance(last, int):
        _apply_to_array(parent, last, change)
    else:
        raise LookupError


def _inner(parent: Json, step: Step) -> Json:
    if isinstance(parent, dict) and isinstance(step, str):
        return parent[step]
    if isinstance(parent, list) and isinstance(step, int):
        return parent[step]
    raise LookupError


def _apply_to_object(members: dict[str, Json], name: str, change: JsonChange) -> None:
    if (name in members) == (change.operation is JsonOperation.INSERT):
        raise LookupError
    if change.operation is JsonOperation.REMOVE:
        del members[name]
    elif change.operation is JsonOperation.REPLACE:
        members[name] = change.value
    else:
        extended = {**members, name: change.value}
        members.clear()
        members.update((key, extended[key]) for key in sorted(extended, key=_stored_order))


def _apply_to_array(values: list[Json], index: int, change: JsonChange) -> None:
    if change.operation is JsonOperation.INSERT:
        values.insert(index, change.value)
    elif change.operation is JsonOperation.REMOVE:
        del values[index]
    else:
        values[index] = change.value


def _stored_order(name: str) -> tuple[int, bytes]:
    """Returns the sort key of a member. The server sorts by the length of the name in bytes, and then by the bytes."""
    encoded = name.encode()
    return len(encoded), encoded


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    """Reads a length-encoded integer, and as many bytes as it says. Returns these bytes, and where they end."""
    if at >= len(data) or not (data[at] < _SHORT or data[at] in _SIZES):
        raise _malformed(at)
    size = _SIZES.get(data[at], 0)
    start = at + 1 + size
    length = int.from_bytes(data[at + 1 : start], "little") if size else data[at]
    if start + length > len(data):
        raise _malformed(at)
    return data[start : start + length], start + length


def _path(data: bytes, at: int) -> tuple[tuple[Step, ...], int]:
    """Returns the steps of the path at `at`, and where the path ends. A path has the same form as in JSON_SET."""
    encoded, end = _counted(data, at)
    text = encoded.decode("utf-8", "surrogateescape")
    place = 1
    steps: list[Step] = []
    while place < len(text) and len(steps) < DEPTH_MAX and (match := _STEP.match(text, place)):
        steps.append(_step(match, at))
        place = match.end()
    if not steps or text[0] != "$" or place != len(text):
        raise _malformed(at)
    return tuple(steps), end


def _step(match: re.Match[str], offset: int) -> Step:
    if match["index"] is not None:
        return int(match["index"])
    if match["last"] is not None:
        return -1 - int(match["before"] or 0)
    try:
        name = match["bare"] if match["quoted"] is None else str(json.loads(match["quoted"]))
        name.encode()  # fails for half of a surrogate pair, and for bytes that are not UTF-8
    except ValueError:
        raise _malformed(offset) from None
    return name


def _malformed(offset: int) -> ChangelogError:
    return ChangelogError(
        Kind.MALFORMED, f"a partial update of a JSON value is not valid: unexpected bytes at offset {offset}"
    )


_OPERATIONS: Final = frozenset(JsonOperation)
_SIZES: Final = {252: 2, 253: 3, 254: 8}
_SHORT: Final = 251
"""A length below this is stored in one byte. A first byte of this value or more says how many bytes follow
(`_SIZES`).
"""
_STEP: Final = re.compile(
    r"""\.(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<bare>[^\s.\[\]"*]+))"""
    r"|\[(?:(?P<index>[0-9]{1,10})|(?P<last>last)(?:-(?P<before>[0-9]{1,10}))?)\]",
    re.DOTALL,
)
