"""Makes functions that convert a column's values to the JSON that we publish.

The values are JSON tokens, or come from an Avro decoder.
"""

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Final

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.connectors.sources.debezium.values.semantics import Semantics, parsed
from changelog.schemas.types import Decimal, Primitive

Convert = Callable[[bytes], Value]
"""Converts a token, which may be `null`. Raises ValueError, TypeError, KeyError, OverflowError or RecursionError."""

ConvertValue = Callable[[Any], Value]
"""Converts a value, as an Avro decoder returns it. Raises the same errors as `Convert`."""

REMEMBERED: Final = 64
"""For each column, the results of this many conversions are cached. Many columns have few values, or the same value in
consecutive rows.
"""

_FLOATS: Final = frozenset({Primitive.FLOAT, Primitive.DOUBLE})
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
"""The types whose tokens are short, so that many can be cached."""


def token_converter(column: Semantics, unavailable: Collection[bytes]) -> Convert:
    """Returns a function that converts a column's tokens. Tokens in `unavailable` mean that a value was not sent."""
    special: dict[bytes, Value] = {b"null": None, **dict.fromkeys(unavailable, UNCHANGED)}
    of_token = column.of_token or (lambda token: column.render(parsed(token)))

    def convert(token: bytes) -> Value:
        return special[token] if token in special else of_token(token)

    return lru_cache(maxsize=REMEMBERED)(convert) if _is_short(column) else convert


def value_converter(column: Semantics, unavailable: Collection[Any]) -> ConvertValue:
    """Returns a function that converts a column's values as an Avro decoder returns them.

    The values in `unavailable` mean that a value was not sent.
    """
    render = column.render
    special = frozenset(value for value in unavailable if isinstance(value, str | bytes))
    nested = [value for value in unavailable if isinstance(value, list | dict)]

    def convert(value: Any) -> Value:
        if value is None:
            return None
        return (
            UNCHANGED if (value in nested if isinstance(value, (list, dict)) else value in special) else render(value)
        )

    def convert_always_sent(value: Any) -> Value:
        return None if value is None else render(value)

    converter = convert if special or nested else convert_always_sent
    if not _is_short(column):
        return converter
    remembered = lru_cache(maxsize=REMEMBERED, typed=True)(converter)
    if column.column_type in _FLOATS:  # 0 and -0 are equal, but are printed differently
        return lambda value: remembered(value) if value else converter(value)
    return remembered


def _is_short(column: Semantics) -> bool:
    return isinstance(column.column_type, Decimal) or column.column_type in _SHORT
