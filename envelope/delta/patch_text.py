"""Makes patches, as JSON text, from JSON text: the same as `changelog.envelope.delta` defines, without parsing
unchanged parts.

Most states are flat objects in which a few columns changed. Such texts are cut at `,"`, and the pieces are compared as
text. If that is not conclusive, the objects are cut into their members; if two members differ and are not plain values,
`changelog.envelope.delta.patch` compares them.
"""

import re
from functools import lru_cache

import msgspec

from changelog.envelope.canonical import dumps, parse
from changelog.envelope.codec.json_codec import members
from changelog.envelope.delta.patch import diff
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op

NONE = b"[]"

_CREATED = b'[{"op":"add","path":"","value":%b}]'
_RESET = b'[{"op":"add","path":"","value":%b,"reset":true}]'
_DELETED = b'[{"op":"test","path":"","value":%b},{"op":"remove","path":""}]'
_GONE = b'[{"op":"remove","path":""}]'

_SCALAR = rb'"[^"\\]*"|[-+.0-9A-Za-z]+'
_PIECES = re.compile(rb'([^"\\]*)":(%b)\0\1":(%b)' % (_SCALAR, _SCALAR))
"""A member, a byte that no JSON has, and a member of the same name."""
_PLAIN = re.compile(_SCALAR)


def patch_text(
    op: str, current: bytes | None, original: bytes | None, *, unavailable: frozenset[str], unavailable_original: bool
) -> bytes:
    """The patch of `changelog.envelope.delta.delta_of`, from the parts of an envelope: states as JSON, None if there is
    none.

    `unavailable` names the columns that are unavailable on either side; `unavailable_original` says whether the
    original lacks any.
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
    """The patch between two states in JSON, without the columns `left_out`.

    By value it equals `diff(parse(original), parse(current))`; it keeps the spelling of values.
    """
    if original == current:
        return NONE
    patch = None if left_out else _of_pieces(original, current)
    if patch is None:
        patch = _of_members(original, current, left_out)
    return patch


def _of_pieces(original: bytes, current: bytes) -> bytes | None:
    """The patch between two flat objects of the same columns; None if the texts may be something else.

    In flat JSON without white space, `,"` appears between two members, and otherwise only if a string ends in a comma;
    then neither piece around it is a whole member. So the texts are equal up to the first pieces that differ. If both
    of these are whole members of the same column, the next pieces are again members, or equal.
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
        name, was, is_ = match.groups()
        label = b'"%b":' % name
        if original.count(label) > 1 or current.count(label) > 1:
            return None
        parts.append(_replace(name) % (was, is_))
    return b"[%b]" % b",".join(parts)


def _of_members(original: bytes, current: bytes, left_out: frozenset[str]) -> bytes:
    try:
        before, after = members(original), members(current)
    except (ValueError, RecursionError):
        return dumps(diff(parse(original), parse(current)))  # raises if one is not JSON
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
    """A template of a `test` and a `replace`, for the old and the new value."""
    path = pointer(name.decode()).replace(b"%", b"%%")
    return b'{"op":"test","path":%b,"value":%%b},{"op":"replace","path":%b,"value":%%b}' % (path, path)


def _remove(name: str, value: bytes) -> bytes:
    path = pointer(name)
    return b'{"op":"test","path":%b,"value":%b},{"op":"remove","path":%b}' % (path, value, path)


def _add(name: str, value: bytes) -> bytes:
    return b'{"op":"add","path":%b,"value":%b}' % (pointer(name), value)


def pointer(name: str) -> bytes:
    """The JSON pointer to a column, as a JSON string."""
    return msgspec.json.encode("/" + name.replace("~", "~0").replace("/", "~1"))
