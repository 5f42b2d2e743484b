"""Writes JSON in a canonical form: one text for all spellings of a value, so that JSON can be compared by value.

The order of members, white space and the choice of escapes make no difference. But numbers are compared as they are
written: `1`, `1.0` and `1e0` differ, and so do `0` and `-0`. If several members have the same name, the last one
counts. `parse` returns what the `json` module returns, except that each number is a `Raw` that holds the number's text.
`dumps` and `text_of` also accept values that contain int and finite float.
"""

import json
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from changelog.envelope.errors import ChangelogError, Kind

Value = Any
"""None, bool, str, list, dict, or a number: a Raw from `parse`, an int or a float."""


def parse(raw: bytes | str | Raw) -> Value:
    """Parses JSON and keeps numbers as they are written.

    Raises ChangelogError: of kind *malformed* if `raw` is not JSON, of kind *limit* if it is nested
    too deeply to be read.
    """
    try:
        return _decoder.decode(raw if isinstance(raw, str) else bytes(raw).decode())
    except ValueError as error:
        raise ChangelogError(Kind.MALFORMED, "a value is not JSON") from error
    except RecursionError as error:
        raise ChangelogError(Kind.LIMIT, "a JSON value is nested too deeply to be read") from error


def dumps(value: Value) -> bytes:
    """Returns a value as compact JSON in UTF-8. Members keep their order, and numbers are written as they were read."""
    return _rendered(value, None)


def text_of(value: Value) -> bytes:
    """Returns the canonical text of a value: the same as `dumps`, but with the members sorted by name."""
    return _rendered(value, "sorted")


def text(raw: bytes | str | Raw) -> str:
    """Returns the canonical text of JSON. Raises the errors of `parse`."""
    return text_of(parse(raw)).decode()


def equal(a: bytes | str | Raw, b: bytes | str | Raw) -> bool:
    """Returns whether two pieces of JSON have the same canonical text. May raise the errors of `parse`."""
    return Raw(a) == Raw(b) or text(a) == text(b)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_int=Raw, parse_float=Raw, parse_constant=_refuse)


def _rendered(value: Value, order: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:  # The value has an unpaired surrogate, which JSON can escape and UTF-8 cannot hold.
        return _escaped(value, order)


def _escaped(value: Value, order: Any) -> bytes:
    match value:
        case dict():
            members = sorted(value.items()) if order else value.items()
            pairs = (_rendered(name, order) + b":" + _rendered(member, order) for name, member in members)
            return b"{%b}" % b",".join(pairs)
        case list():
            return b"[%b]" % b",".join(_rendered(element, order) for element in value)
    return json.dumps(value).encode()
