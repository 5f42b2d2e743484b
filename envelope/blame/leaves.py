"""Splits the JSON value of a column into its leaves, such as single texts and numbers.

A *leaf* is a scalar, an empty object or an empty array. A JSON pointer (RFC 6901) says where the leaf is in the row's
state. The pointer names an element of an array by its index. The text of a leaf is canonical
(`changelog.envelope.canonical`), so leaves can be compared by their texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from changelog.envelope.canonical import Value, parse, text_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.json_pointer import escaped

NESTING_MAX: Final = 100
"""Values are divided down to this level of nesting. A part that is nested deeper counts as one leaf."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of a column's value: its pointer, its value, and whether it is a leaf."""

    pointer: str
    value: Value
    is_leaf: bool


def pointer_of(column: str) -> str:
    """Returns the pointer of a column's whole value."""
    return f"/{escaped(column)}"


def leaves(pointer: str, token: bytes) -> dict[str, bytes]:
    """Returns the text of each leaf in the JSON `token` of a column, by its pointer, in the order of the JSON.

    `pointer` is the pointer of the column. JSON that is nested too deeply to be parsed is one leaf, with its text
    unchanged. May raise ChangelogError of kind *malformed* if `token` is not JSON.
    """
    if _is_plain(token):
        return {pointer: token}
    try:
        return {node.pointer: text_of(node.value) for node in _nodes(pointer, parse(token)) if node.is_leaf}
    except RecursionError:
        return {pointer: token}
    except ChangelogError as error:
        if error.kind is not Kind.LIMIT:
            raise
        return {pointer: token}


def containers(pointer: str, token: bytes) -> dict[str, bytes]:
    """Returns the text of each object and array in `token` that is not a leaf, by its pointer.

    `token` must be JSON that `leaves` accepts.
    """
    if token[:1] not in (b"{", b"["):
        return {}
    try:
        return {node.pointer: text_of(node.value) for node in _nodes(pointer, parse(token)) if not node.is_leaf}
    except (RecursionError, ChangelogError):
        return {}


def _is_plain(token: bytes) -> bool:
    """Returns whether the text of a column is canonical as it is: a scalar in which nothing is escaped."""
    return token[:1] not in (b"{", b"[") and b"\\" not in token


def _nodes(pointer: str, root: Value) -> Iterator[_Node]:
    """Yields a value and its parts at all levels. A part comes before the parts that it contains."""
    stack: list[tuple[str, Value, int]] = [(pointer, root, 1)]
    while stack:
        at, value, level = stack.pop()
        is_leaf = not (isinstance(value, dict | list) and value) or level > NESTING_MAX
        yield _Node(at, value, is_leaf)
        if not is_leaf:
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            stack += reversed([(f"{at}/{escaped(str(name))}", part, level + 1) for name, part in parts])
