"""Converts recorded values to the JSON that the changelog must have for them.

The campaigns' triggers record rows with `to_jsonb`, which writes some types in another form than the changelog. The
code that converts them was written from docs/reference/types.md alone. A number is kept as its text (`Number`), so that
it is never rounded. A very long text is replaced by its beginning and its SHA-256, because the rows would not fit into
memory otherwise. Texts in recorded rows and in rows of the changelog are replaced in the same way.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from decimal import Decimal
from typing import Any

State = Mapping[str, Any]
"""The values of a row, by column."""

SHORT_MAX = 1_000_000
SHOWN = 1_000
"""How many characters are kept of a text that is longer than SHORT_MAX."""

_RANGE = re.compile(r"([\[(])(-?\d*),(-?\d*)([\])])")
_PRINTED = re.compile(r'(?:^|,)(?:"((?:[^"\\]|""|\\\\)*)"|([^",]*))')
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(\+00:00)?")


class Number(str):
    """A number in JSON. It equals other `Number`s that have the same value, and nothing else."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and Decimal(str(self)) == Decimal(str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(Decimal(str(self)))


def parsed(text: str | bytes) -> Any:
    """Parses JSON, and keeps its numbers as they are written."""
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse, object_pairs_hook=_shortened)


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not JSON")


def _shortened(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: _short(value) if isinstance(value, str) and len(value) > SHORT_MAX else value for name, value in members
    }


def _short(text: str) -> str:
    return f"{text[:SHOWN]} {hashlib.sha256(text.encode()).hexdigest()}"


def documented(row: State, types: Mapping[str, str]) -> State:
    """Converts a row from what `to_jsonb` returns to what docs/reference/types.md says."""
    return {name: _value(value, types[name]) for name, value in row.items()}


def printed(composite: str) -> list[str]:
    """Parses what the database prints for a value of a composite type: `(7,"a b",)`. Returns its parts as texts.

    The parts are sorted, because `to_jsonb` does not keep the order of the attributes. Null becomes an empty string.
    """
    parts = _PRINTED.findall(composite[1:-1])
    return sorted(re.sub(r'""|\\\\', lambda pair: pair[0][0], quoted) or bare for quoted, bare in parts)


def same(state: State, shown: State, composites: Container[str]) -> bool:
    """Whether the changelog's row `shown` equals the expected `state`.

    `composites` has the names of columns with a composite type. There, `shown` may instead have the text that the
    database prints for the value.
    """
    return state.keys() == shown.keys() and all(
        shown[name] == value or (name in composites and _prints(shown[name], value)) for name, value in state.items()
    )


def _prints(shown: Any, composite: Any) -> bool:
    if not isinstance(shown, str) or not isinstance(composite, dict):
        return False
    return printed(shown) == sorted("" if value is None else str(value) for value in composite.values())


def _value(value: Any, type_name: str) -> Any:
    if value is None:
        return None
    if type_name.endswith("[]"):
        return [_value(element, type_name.removesuffix("[]")) for element in value]
    form = _FORMS.get(type_name)
    return value if form is None else form(value)


def _bytes(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()


def _moment(text: str) -> str:
    match = _MOMENT.fullmatch(text)
    if match is None:
        return text
    seconds, fraction, zone = match.groups()
    return f"{seconds}.{(fraction or '').ljust(6, '0')}{'Z' if zone else ''}"


def _range(text: str) -> dict[str, Any]:
    match = _RANGE.fullmatch(text)
    if match is None:
        return {"lower": None, "upper": None, "bounds": text}
    opening, lower, upper, closing = match.groups()
    bounds = {"lower": Number(lower) if lower else None, "upper": Number(upper) if upper else None}
    return {**bounds, "bounds": opening + closing}


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "numeric": str,
    "bytea": _bytes,
    "timestamp with time zone": _moment,
    "timestamp without time zone": _moment,
    "int4range": _range,
}


def key_text(row: State, columns: Sequence[str]) -> str:
    """The key of a row as the changelog writes it. `columns` are the columns of the key; they hold integers or strings.

    If there is one column, the key is its value as text. Otherwise, it is a compact JSON array of such texts.
    """
    texts = [str(row[column]) for column in columns]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
