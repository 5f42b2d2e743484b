"""Makes the JSON Patch of a change from the row before it and the row after it, all as JSON text.

The patches are those that `changelog.envelope.delta` defines. They are made faster here, because the parts of the rows
that did not change are not parsed. Most rows are flat objects, and only a few of their columns change. So the texts of
two rows are first cut at `,"`, and the pieces are compared. If the pieces do not show for certain which members differ,
the two objects are split into their members. If two members differ and one of them is an object, an array or a string
with an escape, `changelog.envelope.delta.patch` compares them.
"""

import re
from functools import lru_cache

import msgspec

from changelog.envelope.canonical import dumps, parse
from changelog.envelope.codec.json_codec import members
from changelog.envelope.delta.patch import diff
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.json_pointer import escaped
from changelog.envelope.model import Op

NONE = b"[]"

_CREATED = b'[{"op":"add","path":"","value":%b}]'
_RESET = b'[{"op":"add","path":"","value":%b,"reset":true}]'
_DELETED = b'[{"op":"test","path":"","value":%b},{"op":"remove","path":""}]'
_GONE = b'[{"op":"remove","path":""}]'

_SCALAR = rb'"[^"\\]*"|[-+.0-9A-Za-z]+'
_PIECES = re.compile(rb'([^"\\]*)":(%b)\0\1":(%b)' % (_SCALAR, _SCALAR))
"""Matches a member, a zero byte (which JSON never has), and a member of the same name."""
_PLAIN = re.compile(_SCALAR)


def patch_text(
    op: str, current: bytes | None, original: bytes | None, *, unavailable: frozenset[str], unavailable_original: bool
) -> bytes:
    """Returns the patch of a change as JSON text: the one that `changelog.envelope.delta.delta_of` defines.

    `current` and `original` are JSON, or None if there is no such state. `unavailable` names the columns that are
    unavailable in `current`, in `original`, or in both. `unavailable_original` says whether any column is unavailable
    in the original. Raises ChangelogError of kind *malformed* if the current state is missing, or if a state has to be
    parsed and is not JSON.
    """
    if op == Op.TRUNCATE:
        return NONE
    if op == Op.DELETE:
        return _GONE if original is None or unavailable_original else _DELETED % original
    if current is None:
        raise ChangelogError(Kind.MALFORMED, f"the message of a change ({op}) has no current state")
    if op == Op.CREATE:
        return _CREATED % current
    if op == Op.READ or original is None:
        return _RESET % current
    return changes(original, current, unavailable)


def changes(original: bytes, current: bytes, left_out: frozenset[str] = frozenset()) -> bytes:
    """Returns the patch that turns `original` into `current`, except in the columns `left_out`.

    As JSON, the patch equals `diff(parse(original), parse(current))` without these columns. Values in it are written as
    in the states.
    """
    if original == current:
        return NONE
    patch = None if left_out else _of_pieces(original, current)
    if patch is None:
        patch = _of_members(original, current, left_out)
    return patch


def _of_pieces(original: bytes, current: bytes) -> bytes | None:
    """Returns the patch between two flat objects with the same columns; None if the texts may be something else.

    Both texts are cut at `,"`. In flat JSON without white space, these two bytes are between every two members. They
    are elsewhere only if a string ends in a comma; then the pieces on both sides of the cut are not whole members. The
    texts are equal up to the first pair of pieces that differ. If both pieces of this pair are whole members with the
    same name, neither text was cut inside a string here, and the next piece begins a new member in both texts. So the
    same reasoning applies to the next pair that differs.
    """
    if original.find(b"{", 1) > 0 or current.find(b"{", 1) > 0 or b"[" in original or b"[" in current:
        return None
    if not (original[:2] == current[:2] == b'{"' and original[-1:] == current[-1:] == b"}"):
        return None
    before, after = original[2:-1].split(b',"'), current[2:-1].split(b',"')
    if len(before) != len(after):
        return None
    parts = []
    for a, b in zip(before, after, strict=True):
        if a == b:
            continue
        match = _PIECES.fullmatch(a + b"\0" + b)
        if match is None:
            return None
        name, old, new = match.groups()
        label = b'"%b":' % name
        if original.count(label) > 1 or current.count(label) > 1:
            return None
        parts.append(_replace(name) % (old, new))
    return b"[%b]" % b",".join(parts)


def _of_members(original: bytes, current: bytes, left_out: frozenset[str]) -> bytes:
    try:
        before, after = members(original), members(current)
    except (ValueError, RecursionError):
        return dumps(diff(parse(original), parse(current)))  # This raises an error if a text is not JSON.
    parts = []
    for name, value in before.items():
        other = after.get(name)
        if value == other or name in left_out:
            continue
        if other is None:
            parts.append(_remove(name, value))
        elif _PLAIN.fullmatch(value) and _PLAIN.fullmatch(other):
            parts.append(_replace(name.encode()) % (value, other))
        else:
            parts.append(dumps(diff({name: parse(value)}, {name: parse(other)}))[1:-1])
    parts += [_add(name, value) for name, value in after.items() if name not in before and name not in left_out]
    return b"[%b]" % b",".join(filter(None, parts))


@lru_cache(maxsize=4096)
def _replace(name: bytes) -> bytes:
    """Returns a template for a `test` and a `replace`. It is filled with the old and the new value."""
    path = pointer(name.decode()).replace(b"%", b"%%")
    return b'{"op":"test","path":%b,"value":%%b},{"op":"replace","path":%b,"value":%%b}' % (path, path)


def _remove(name: str, value: bytes) -> bytes:
    path = pointer(name)
    return b'{"op":"test","path":%b,"value":%b},{"op":"remove","path":%b}' % (path, value, path)


def _add(name: str, value: bytes) -> bytes:
    return b'{"op":"add","path":%b,"value":%b}' % (pointer(name), value)


def pointer(name: str) -> bytes:
    """Returns the JSON pointer to a column, as a JSON string."""
    return msgspec.json.encode("/" + escaped(name))
