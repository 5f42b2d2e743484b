"""Converts the JSON tokens of a column to the tokens that we publish, many of which are the same."""

from collections.abc import Callable, Collection
from typing import Final

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.connectors.sources.debezium.values.semantics import Semantics, parsed
from changelog.schemas.types import Primitive

Convert = Callable[[bytes], Value]
"""Converts a token, which may be `null`. Raises ValueError, TypeError, KeyError, OverflowError or RecursionError."""

_QUOTE: Final = ord('"')
_INT_DIGITS_MAX: Final = 9
_LONG_DIGITS_MAX: Final = 18


def token_converter(column: Semantics, unavailable: Collection[bytes]) -> Convert:
    """Returns the converter of a column's tokens. The tokens in `unavailable` stand for a value that was not sent."""
    special: dict[bytes, Value] = {b"null": None, **dict.fromkeys(unavailable, UNCHANGED)}
    render, of_token = column.render, column.of_token
    as_is = _AS_IS.get(column.column_type) if isinstance(column.column_type, Primitive) and column.passes else None

    def convert(token: bytes) -> Value:
        if token in special:
            return special[token]
        if as_is is not None and as_is(token):
            return token
        return render(parsed(token)) if of_token is None else of_token(token)

    return convert


def _is_plain_string(token: bytes) -> bool:
    return token[0] == _QUOTE and b"\\" not in token


def _is_int(token: bytes) -> bool:
    return token.isdigit() and len(token) <= _INT_DIGITS_MAX


def _is_long(token: bytes) -> bool:
    return token.isdigit() and len(token) <= _LONG_DIGITS_MAX


_AS_IS: Final[dict[Primitive, Callable[[bytes], bool]]] = {
    Primitive.STRING: _is_plain_string,
    Primitive.INT: _is_int,
    Primitive.LONG: _is_long,
}
