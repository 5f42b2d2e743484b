"""Parses the text forms of PostgreSQL's structured values, such as arrays. Accepts only text that the server can print.

On any other text, every function raises ChangelogError, and says at which byte the text is wrong. Source: PostgreSQL's
documentation, chapters 8.15 to 8.17, for arrays (array_out), composites (record_out), ranges (range_out) and
multiranges (multirange_out); appendix F for hstore.
"""

import re
from collections.abc import Callable
from functools import cache

from changelog.envelope.errors import ChangelogError, Kind

Convert = Callable[[bytes], bytes]

MAX_DIMENSIONS = 6
"""The server's MAXDIM."""


def array(text: bytes, delimiter: bytes, convert: Convert) -> bytes:
    """Returns the JSON array for an array without explicit bounds; `convert` converts each element.

    An array of several dimensions becomes an array of arrays.
    """
    parts: list[bytes] = []
    end = _dimension(text, 0, 1, delimiter, convert, parts)
    if end != len(text):
        raise _malformed("array", end)
    return b"".join(parts)


def record(text: bytes) -> list[bytes | None]:
    """Returns a composite's attributes as text, with None for NULL."""
    if text[:1] != b"(":
        raise _malformed("composite", 0)
    values: list[bytes | None] = []
    at = 1
    while True:
        match = _matched(_ATTRIBUTE, text, at, "composite")
        values.append(_bound(match[1], match[2]))
        at = match.end()
        if match[3] == b")":
            break
    if at != len(text):
        raise _malformed("composite", at)
    return values


def range_(text: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """Returns the lower bound, the upper bound, and the brackets, such as `[)`. An empty range has `empty` as brackets.

    A bound is None if the range is unbounded on that side. Both bounds are None if the range is empty.
    """
    if text == b"empty":
        return None, None, text
    match = _matched(_RANGE, text, 0, "range")
    if match.end() != len(text):
        raise _malformed("range", match.end())
    return _bound(match[2], match[3]), _bound(match[4], match[5]), match[1] + match[6]


def multirange(text: bytes) -> list[bytes]:
    """Returns a multirange's ranges as text."""
    if text == b"{}":
        return []
    ranges: list[bytes] = []
    at = 0
    while at == 0 or text[at : at + 1] == b",":
        if at == 0 and text[:1] != b"{":
            raise _malformed("multirange", 0)
        match = _matched(_RANGE, text, at + 1, "multirange")
        ranges.append(match[0])
        at = match.end()
    if text[at:] != b"}":
        raise _malformed("multirange", at)
    return ranges


def hstore(text: bytes) -> list[tuple[bytes, bytes | None]]:
    """Returns an hstore's keys, each with its value; a value may be None."""
    pairs: list[tuple[bytes, bytes | None]] = []
    at = 0
    while at < len(text):
        match = _matched(_PAIR, text, at, "hstore")
        pairs.append((_unescape(match[1]), None if match[2] is None else _unescape(match[2])))
        at = match.end()
    return pairs


def _dimension(text: bytes, at: int, depth: int, delimiter: bytes, convert: Convert, parts: list[bytes]) -> int:
    """Appends to `parts` the JSON of the array or inner array that starts at offset `at`. Returns the offset of its
    end.
    """
    if text[at : at + 1] != b"{" or depth > MAX_DIMENSIONS:
        raise _malformed("array", at)
    at += 1
    parts.append(b"[")
    if text[at : at + 1] == b"}":
        parts.append(b"]")
        return at + 1
    while True:
        if text[at : at + 1] == b"{":
            at = _dimension(text, at, depth + 1, delimiter, convert, parts)
        else:
            match = _matched(_element(delimiter), text, at, "array")
            quoted, bare = match.groups()
            parts.append(b"null" if bare == b"NULL" else convert(_unescape(quoted) if bare is None else bare))
            at = match.end()
        mark = text[at : at + 1]
        at += 1
        if mark == b"}":
            parts.append(b"]")
            return at
        if mark != delimiter:
            raise _malformed("array", at - 1)
        parts.append(b",")


def _bound(quoted: bytes | None, bare: bytes | None) -> bytes | None:
    """Returns a composite's attribute or a range's bound; None (NULL or unbounded) if it is empty and not quoted."""
    return _unescape(quoted) if quoted is not None else bare or None


def _unescape(quoted: bytes) -> bytes:
    return _ESCAPE.sub(rb"\1", quoted) if b"\\" in quoted or b'"' in quoted else quoted


def _matched(pattern: re.Pattern[bytes], text: bytes, at: int, what: str) -> re.Match[bytes]:
    match = pattern.match(text, at)
    if match is None:
        raise _malformed(what, at)
    return match


def _malformed(what: str, offset: int) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"a value is not a valid PostgreSQL {what}: unexpected text at byte {offset}")


# Inside quotes, a backslash escapes the next character; composites and ranges also double the quote.
_QUOTED = rb'"([^"\\]*(?:(?:\\.|"")[^"\\]*)*)"'
_BACKSLASHED = rb'"([^"\\]*(?:\\.[^"\\]*)*)"'
_ESCAPE = re.compile(rb'["\\](.)', re.DOTALL)
_ATTRIBUTE = re.compile(rb"(?:" + _QUOTED + rb'|([^"\\(),]*))([,)])', re.DOTALL)
_SIDE = rb"(?:" + _QUOTED + rb'|([^"\\()\[\],]*))'
_RANGE = re.compile(rb"([\[(])" + _SIDE + rb"," + _SIDE + rb"([\])])", re.DOTALL)
_PAIR = re.compile(_BACKSLASHED + rb"=>(?:" + _BACKSLASHED + rb'|NULL)(?:, (?=")|\Z)', re.DOTALL)


@cache
def _element(delimiter: bytes) -> re.Pattern[bytes]:
    return re.compile(_BACKSLASHED + rb'|([^"\\{}' + re.escape(delimiter) + rb"]+)", re.DOTALL)
