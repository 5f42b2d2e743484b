"""Converts JSON documents to text as MySQL does, with a space after each comma and colon."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from json import JSONEncoder
from typing import Any, Final

from changelog.connectors.sources.mysql.values.documents.json_binary import Json, parse_json
from changelog.connectors.sources.mysql.values.documents.json_opaque import Number

_PLAIN_FROM, _PLAIN_BELOW = 1e-4, 1e15  # between these, Python prints doubles as MySQL does
_EXPONENT_MIN, _EXPONENT_MAX = -15, 14  # MySQL prints an exponent only outside these powers of ten

_quickly: Final = JSONEncoder(ensure_ascii=False, check_circular=False).encode
"""Python's encoder. It separates values as MySQL does, and escapes what MySQL escapes: quotes, backslashes and
characters below 32. But it formats some doubles differently, and it cannot print a `Number`.
"""
_other_double: Final = re.compile(r"[0-9]e[+-]|[0-9]{16}\.").search
"""Finds a double that Python formats differently, or a text that looks like such a double."""


def json_text(data: bytes | memoryview) -> bytes:
    """Returns the text of a binary document. Raises ChangelogError (MALFORMED) with the offset of the invalid bytes."""
    return print_json(parse_json(data))


def print_json(document: Json) -> bytes:
    """Returns the text of a document in UTF-8.

    Doubles have the fewest digits that read back as the same number, and a point or an exponent. MySQL 8.0 prints
    exactly the same; MySQL 9 prints some doubles differently.
    """
    try:
        text = _quickly(document)
    except TypeError:
        return _text(document).encode()
    return (_text(document) if _other_double(text) else text).encode()


def _text(value: Json) -> str:
    return _PRINTERS[type(value)](value)


def _object(members: dict[str, Json]) -> str:
    return "{" + ", ".join([f"{_quickly(name)}: {_text(value)}" for name, value in members.items()]) + "}"


def _array(values: list[Json]) -> str:
    return "[" + ", ".join([_text(value) for value in values]) + "]"


def _double(number: float) -> str:
    """Formats a double, with the fewest possible digits, as MySQL 8.0 does.

    Whole numbers of more than 15 digits have an exponent, and so have numbers with more than 14 zeros after the point.
    """
    if _PLAIN_FROM <= abs(number) < _PLAIN_BELOW:
        return repr(number)
    exact = Decimal(repr(number)).normalize()
    if exact.adjusted() < _EXPONENT_MIN or (exact.adjusted() > _EXPONENT_MAX and number.is_integer()):
        mantissa, _, exponent = f"{exact:e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    text = f"{exact:f}"
    return text if "." in text else f"{text}.0"


def _literal(value: bool | None) -> str:
    return "null" if value is None else "true" if value else "false"


def _number(value: Number) -> str:
    return value.text


_PRINTERS: Final[Mapping[type, Callable[[Any], str]]] = {
    type(None): _literal,
    bool: _literal,
    int: str,
    float: _double,
    str: _quickly,
    Number: _number,
    list: _array,
    dict: _object,
}
