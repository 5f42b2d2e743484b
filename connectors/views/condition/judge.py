"""Decides whether a condition holds for a row. As in SQL, the result of a comparison with null is null."""

import math
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from changelog.connectors.views.condition.parse import (
    Condition,
    IsNull,
    Junction,
    Literal,
    Membership,
    Negation,
    ValueComparison,
    refusal,
)
from changelog.envelope.states.json_values import NULL, Read, reader
from changelog.schemas import types
from changelog.schemas.spark import DIGITS_MAX
from changelog.schemas.types import ColumnType, Primitive, Struct

Judge = Callable[[Mapping[str, bytes]], bool | None]
"""Takes a row, as the JSON token of each column, and decides whether the condition holds. A missing column is null."""

_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_WHOLE_NUMBERS: Final = (Primitive.INT, Primitive.LONG)
_FLOATING: Final = (Primitive.FLOAT, Primitive.DOUBLE)
_TEXTS: Final = (Primitive.STRING, Primitive.UUID, Primitive.TIME)


def judge(condition: Condition, columns: Struct) -> Judge:
    """Returns the function that decides whether `condition` holds for a row with these columns.

    A column has the same value as in the job `rebuild_view`: a value that the column's type in Spark cannot hold is
    null. Raises ChangelogError (USAGE) if the condition names a column that does not exist, or compares a column with a
    value that its type does not allow.
    """
    match condition:
        case ValueComparison(column=name, sign=sign, value=value):
            compare, value_of, operand = _SIGNS[sign], *_operand(name, value, columns)
            return lambda row: None if (left := value_of(row)) is None else compare(left, operand)
        case Membership(column=name, values=values):
            return _any([judge(ValueComparison(name, "=", value), columns) for value in values])
        case IsNull(column=name):
            column, type_ = _column(name, columns)
            read_value = _reading(column, reader(type_))
            return lambda row: read_value(row) is None
        case Negation(part=part):
            decide = judge(part, columns)
            return lambda row: None if (result := decide(row)) is None else not result
        case Junction(is_and=is_and, parts=parts):
            judges = [judge(part, columns) for part in parts]
            return _all(judges) if is_and else _any(judges)


def _any(judges: list[Judge]) -> Judge:
    def decide(row: Mapping[str, bytes]) -> bool | None:
        results = [judge(row) for judge in judges]
        return True if True in results else None if None in results else False

    return decide


def _all(judges: list[Judge]) -> Judge:
    def decide(row: Mapping[str, bytes]) -> bool | None:
        results = [judge(row) for judge in judges]
        return False if False in results else None if None in results else True

    return decide


def _operand(name: str, value: Literal, columns: Struct) -> tuple[Callable[[Mapping[str, bytes]], Any], Any]:
    """Returns a function that reads the column's value from a row, and the literal in a form that Python can compare
    with that value.
    """
    column, type_ = _column(name, columns)
    value_of = _reading(column, reader(type_))
    if isinstance(value, bool):
        if type_ is Primitive.BOOLEAN:
            return value_of, value
    elif isinstance(value, Decimal):
        if type_ in _WHOLE_NUMBERS or (isinstance(type_, types.Decimal) and type_.precision <= DIGITS_MAX):
            return value_of, value
        if type_ in _FLOATING:
            return lambda row: _ordered(value_of(row)), _ordered(float(value))
    elif type_ in _TEXTS:
        return value_of, value
    elif type_ is Primitive.DATE:
        return value_of, _day(name, value)
    raise refusal(f"compares the column {name}, which has the type {_name(type_)}, with {_kind(value)}")


def _column(name: str, columns: Struct) -> tuple[str, ColumnType]:
    """Returns the column that the condition calls `name`, and its type. As in Spark, case does not matter."""
    matches = [(column, type_) for column, type_ in columns.fields if column.lower() == name.lower()]
    if len(matches) != 1:
        raise refusal(f"names the column {name}, and there are {len(matches)} columns of this name")
    return matches[0]


def _reading(column: str, read: Read) -> Callable[[Mapping[str, bytes]], Any]:
    def value_of(row: Mapping[str, bytes]) -> Any:
        token = row.get(column, NULL)
        if token == NULL:
            return None
        try:
            return read(token)
        except ValueError:
            return None

    return value_of


def _ordered(value: float | None) -> tuple[bool, float] | None:
    """Returns a value that compares like the number in Spark, where NaN equals itself and is the greatest number."""
    return None if value is None else (True, 0.0) if math.isnan(value) else (False, value)


def _day(name: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise refusal(f"compares the date {name} with a text that is no day: write a day as in 2026-11-21")
    return day


def _name(type_: ColumnType) -> str:
    return type_.value if isinstance(type_, Primitive) else type(type_).__name__.lower()


def _kind(value: Literal) -> str:
    return "a boolean" if isinstance(value, bool) else "a number" if isinstance(value, Decimal) else "a text"
