"""JSON compared by value: one text for all spellings of a value.

Equal are: members in another order, blanks, and other escapes of the same characters. Numbers are
equal by their token: `1`, `1.0` and `1e0` differ, as `0` and `-0` do. Of members of one name the
last counts. Values are what the `json` module gives, but each number is a `Raw` that holds its
token; plain int and finite float are taken too, and are the tokens that they are written as.
"""

import json
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from envelope.errors import ChangelogError, Kind

Value = Any
"""None, bool, str, list, dict, and numbers: Raw from `parse`, or int and float."""


def parse(raw: bytes | str | Raw) -> Value:
    """The value that `raw` spells, its number tokens kept.

    Raises ChangelogError, of kind *malformed* when `raw` is not JSON, *limit* when it nests too
    deep to be read.
    """
    try:
        return _decoder.decode(raw if isinstance(raw, str) else bytes(raw).decode())
    except ValueError as error:
        raise ChangelogError(Kind.MALFORMED, "a value is not JSON") from error
    except RecursionError as error:
        raise ChangelogError(Kind.LIMIT, "a JSON value nests too deep to be read") from error


def dumps(value: Value) -> bytes:
    """Compact JSON in UTF-8, members in their order, number tokens as they are."""
    return _rendered(value, None)


def text_of(value: Value) -> bytes:
    """The canonical text of a value: `dumps` with the members sorted by name."""
    return _rendered(value, "sorted")


def text(raw: bytes | str | Raw) -> str:
    """The canonical text of the value that `raw` spells; raises as `parse` does."""
    return text_of(parse(raw)).decode()


def equal(a: bytes | str | Raw, b: bytes | str | Raw) -> bool:
    """Whether two JSON texts spell one value; raises as `parse` does."""
    return Raw(a) == Raw(b) or text(a) == text(b)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_int=Raw, parse_float=Raw, parse_constant=_refuse)


def _rendered(value: Value, order: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can escape and UTF-8 cannot hold
        return _escaped(value, order)


def _escaped(value: Value, order: Any) -> bytes:
    match value:
        case dict():
            members = sorted(value.items()) if order else value.items()
            return b"{%b}" % b",".join(_rendered(name, order) + b":" + _rendered(of, order) for name, of in members)
        case list():
            return b"[%b]" % b",".join(_rendered(element, order) for element in value)
    return json.dumps(value).encode()
