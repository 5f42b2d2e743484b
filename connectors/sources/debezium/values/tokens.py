"""Converts the JSON tokens of a column to the tokens that we publish, many of which are the same."""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Final

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.connectors.sources.debezium.values.semantics import Semantics, parsed
from changelog.schemas.types import Decimal, Primitive

Convert = Callable[[bytes], Value]
"""Converts a token, which may be `null`. Raises ValueError, TypeError, KeyError, OverflowError or RecursionError."""

REMEMBERED: Final = 4096
"""How many tokens of a column are remembered. An update has most of its values twice: before and after it."""

_SHORT: Final = frozenset(
    {
        Primitive.FLOAT,
        Primitive.DOUBLE,
        Primitive.DATE,
        Primitive.TIME,
        Primitive.TIMESTAMP,
        Primitive.TIMESTAMP_TZ,
        Primitive.UUID,
    }
)
"""The types whose tokens are short, so that many can be remembered."""


def token_converter(column: Semantics, unavailable: Collection[bytes]) -> Convert:
    """Returns the converter of a column's tokens. The tokens in `unavailable` stand for a value that was not sent."""
    special: dict[bytes, Value] = {b"null": None, **dict.fromkeys(unavailable, UNCHANGED)}
    convert_value = _value_converter(column)

    def convert(token: bytes) -> Value:
        return special[token] if token in special else convert_value(token)

    return convert


def _value_converter(column: Semantics) -> Callable[[bytes], bytes]:
    render, of_token = column.render, column.of_token

    def convert(token: bytes) -> bytes:
        return render(parsed(token))

    chosen = convert if of_token is None else of_token
    is_short = isinstance(column.column_type, Decimal) or column.column_type in _SHORT
    return lru_cache(maxsize=REMEMBERED)(chosen) if is_short else chosen
