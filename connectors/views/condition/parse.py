"""Parses the condition of a served view from its text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from changelog.envelope.errors import ChangelogError, Kind

Literal = str | Decimal | bool
"""A value in a condition."""

DEPTH_MAX = 50
"""How deeply parentheses and NOT may be nested."""

HINT: Final = (
    "a served view takes COLUMN = VALUE (also <>, <, <=, >, >=), IN, IS NULL, AND, OR, NOT; "
    "filter in the client, or build the view with spark_jobs/rebuild_view.py"
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?[0-9]+(?:\.[0-9]+)?)(?![\w.])"
    r"|(?P<text>'[^'\\]*'|\"[^\"\\]*\")(?!['\"])"
    r"|(?P<quoted>`[^`]+`)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><>|!=|<=|>=|=|<|>|\(|\)|,))"
)
_COMPARISONS: Final = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_RESERVED: Final = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE", "FALSE"})


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """`column sign value`, where the sign is `=`, `<>`, `<`, `<=`, `>` or `>=`."""

    column: str
    sign: str
    value: Literal


@dataclass(frozen=True, slots=True)
class Membership:
    """`column IN (values)`."""

    column: str
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True, slots=True)
class Negation:
    """`NOT part`."""

    part: "Condition"


@dataclass(frozen=True, slots=True)
class Junction:
    """All `parts` joined by AND (`is_and`), or by OR."""

    is_and: bool
    parts: "tuple[Condition, ...]"


Condition = ValueComparison | Membership | IsNull | Negation | Junction


def parse(text: str) -> Condition:
    """Returns the condition that `text` expresses. Raises ChangelogError (USAGE) if a served view does not take it."""
    reader = _Reader(_tokens(text))
    condition = reader.alternatives(0)
    reader.expect_end()
    return condition


def refusal(reason: str) -> ChangelogError:
    """Returns the error for a condition that a served view does not take."""
    return ChangelogError(Kind.USAGE, f"the condition {reason}", hint=HINT)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Returns the kind and the text of each token. A kind is the name of a group of `_TOKEN`."""
    tokens: list[tuple[str, str]] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise refusal(f"cannot be read from its character {place + 1} on")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return tokens


class _Reader:
    """Reads tokens from left to right. OR binds least, then AND, then NOT."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens, self._next = tokens, 0

    def alternatives(self, depth: int) -> Condition:
        parts = [self._conjunction(depth)]
        while self._takes("OR"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else Junction(False, tuple(parts))

    def expect_end(self) -> None:
        if self._next < len(self._tokens):
            raise refusal(f"has {self._tokens[self._next][1]} where it should end")

    def _conjunction(self, depth: int) -> Condition:
        parts = [self._factor(depth)]
        while self._takes("AND"):
            parts.append(self._factor(depth))
        return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))

    def _factor(self, depth: int) -> Condition:
        if depth > DEPTH_MAX:
            raise refusal("is nested too deeply")
        if self._takes("NOT"):
            return Negation(self._factor(depth + 1))
        if self._takes("("):
            condition = self.alternatives(depth + 1)
            self._expect(")")
            return condition
        return self._test(self._column())

    def _test(self, column: str) -> Condition:
        if self._takes("IS"):
            is_negated = self._takes("NOT")
            self._expect("NULL")
            return Negation(IsNull(column)) if is_negated else IsNull(column)
        if self._takes("NOT"):
            self._expect("IN")
            return Negation(self._membership(column))
        if self._takes("IN"):
            return self._membership(column)
        _, sign = self._take()
        if sign not in _COMPARISONS:
            raise refusal(f"has {sign or 'nothing'} after the column {column}")
        return ValueComparison(column, _COMPARISONS[sign], self._value())

    def _membership(self, column: str) -> Condition:
        self._expect("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._expect(")")
        return Membership(column, tuple(values))

    def _column(self) -> str:
        kind, token = self._take()
        if kind == "quoted":
            return token.strip("`")
        if kind != "word" or token.upper() in _RESERVED:
            raise refusal(f"has {token or 'nothing'} where a column should be")
        return token

    def _value(self) -> Literal:
        kind, token = self._take()
        if kind == "number":
            return Decimal(token)
        if kind == "text":
            return token[1:-1]
        if token.upper() in ("TRUE", "FALSE"):
            return token.upper() == "TRUE"
        raise refusal(f"has {token or 'nothing'} where a value should be")

    def _take(self) -> tuple[str, str]:
        """Returns the kind and the text of the next token; two empty texts at the end."""
        if self._next == len(self._tokens):
            return "", ""
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, symbol: str) -> bool:
        """Takes the next token if it is this word or sign, and returns whether it was."""
        if self._next == len(self._tokens):
            return False
        kind, token = self._tokens[self._next]
        is_symbol = kind in ("word", "sign") and token.upper() == symbol
        self._next += is_symbol
        return is_symbol

    def _expect(self, symbol: str) -> None:
        if not self._takes(symbol):
            raise refusal(f"lacks {symbol}")
