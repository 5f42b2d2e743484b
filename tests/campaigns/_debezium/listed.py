"""The listed differences between Debezium's values and ours, each with the exact form of both.

`docs/reference/debezium-events.md` says why they exist. A rule takes our value and Debezium's, as `parsed` returns
them, and says whether they differ in exactly this way.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

Rule = Callable[[Any, Any], bool]
Rules = Mapping[str, Rule]
"""Rules by the name of the difference."""


class Number(str):
    """A number of JSON. It equals only other numbers of the same value; -0 is not 0."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self._value() == other._value()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._value())

    def _value(self) -> tuple[Decimal, bool]:
        number = Decimal(str(self))
        return number, number.is_signed()


def parsed(text: bytes | str) -> Any:
    """Parses JSON. Numbers keep their digits, and objects the order of their members, also of repeated ones."""
    return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_Members)


class _Members(tuple[tuple[str, Any], ...]):
    __slots__ = ()


def members(value: Any) -> dict[str, Any]:
    """Returns a parsed object as a dict."""
    assert isinstance(value, _Members)
    return dict(value)


def money(ours: Any, theirs: Any) -> bool:
    """We publish the text of the server, Debezium a number."""
    return bool(re.fullmatch(r"-?\$[\d,]+\.\d\d", ours)) and ours.replace("$", "").replace(",", "") == theirs


def one_bit(ours: Any, theirs: Any) -> bool:
    """We publish a bit string of one bit as a string, Debezium as a boolean."""
    return (ours, theirs) in (("0", False), ("1", True))


def leading_zeros(ours: Any, theirs: Any) -> bool:
    """Debezium's bit strings have no length, so zeros at the beginning get lost."""
    return bool((ours.lstrip("0") or "0") == theirs)


def padded_to(length: int) -> Rule:
    """Returns the rule for bit strings of different lengths: Debezium tells only the most bits that a column holds."""
    return lambda ours, theirs: bool(ours.zfill(length) == theirs)


def without_scale(ours: Any, theirs: Any) -> bool:
    """Debezium's numbers without a fixed scale have no zeros at the end."""
    return "." in ours and bool(ours.rstrip("0").rstrip(".") == theirs)


def in_the_gap(ours: Any, theirs: Any) -> bool:
    """Debezium takes days of 1582 that the Gregorian calendar left out in Rome for days of the Julian calendar."""
    if isinstance(ours, list):
        pairs = zip(ours, theirs, strict=True)
        return len(ours) == len(theirs) and all(own == other or in_the_gap(own, other) for own, other in pairs)
    if not isinstance(ours, str) or not "1582-10-05" <= ours[:10] <= "1582-10-14":
        return False
    return bool((date.fromisoformat(ours[:10]) + timedelta(days=10)).isoformat() + ours[10:] == theirs)


def same_members(ours: Any, theirs: Any) -> bool:
    """A map has no order. Debezium's order is that of a hash table."""
    return members(ours) == members(theirs)


def in_utc(ours: Any, theirs: Any) -> bool:
    """We publish a time with its zone, as the server prints it; Debezium converts the time to UTC."""
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(\.\d+)?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?", ours)
    if match is None:
        return False
    hour, minute, second, fraction, sign, *offset = match.groups()
    shift = timedelta(**dict(zip(("hours", "minutes", "seconds"), (int(part or 0) for part in offset), strict=True)))
    clock = timedelta(hours=int(hour), minutes=int(minute), seconds=int(second))
    seconds = int((clock - shift if sign == "+" else clock + shift).total_seconds()) % 86_400
    converted = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{(fraction or '').rstrip('0')}+00"
    return bool(converted == theirs)


def range_text(ours: Any, theirs: Any) -> bool:
    """We publish a range as an object, Debezium as the text of the server."""
    sides = members(ours)
    lower, upper, bounds = sides["lower"], sides["upper"], sides["bounds"]
    if bounds == "empty":
        return bool(theirs == "empty")
    text = [_bound(side) for side in (lower, upper)]
    return bool(theirs.replace('"', "") == f"{bounds[0]}{text[0]},{text[1]}{bounds[1]}")


def _bound(side: str | None) -> str:
    """Returns a bound as the server prints it, from its JSON."""
    if side is None:
        return ""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.(\d{6})(Z?)", side)
    if match is None:
        return str(side)
    day, clock, fraction, zone = match.groups()
    digits = fraction.rstrip("0")
    return f"{day} {clock}{'.' if digits else ''}{digits}{'+00' if zone else ''}"


def fraction_digits(ours: Any, theirs: Any) -> bool:
    """We publish all digits of a time's fraction that its column has, Debezium not the zeros at the end."""
    return "." in ours and bool(ours.rstrip("0").rstrip(".") == theirs)


def no_day(ours: Any, theirs: Any) -> bool:
    """We publish a date or a timestamp of which a part is 0 as the server's text, Debezium as null."""
    return theirs is None and bool(re.match(r"0000-|\d{4}-00-|\d{4}-\d\d-00", ours))


def same_json(ours: Any, theirs: Any) -> bool:
    """MySQL's binary JSON has no text. Both print the same document, with other spaces and doubles."""
    return _plain(ours) == _plain(theirs)


def _plain(value: Any) -> Any:
    if isinstance(value, _Members):
        return {name: _plain(member) for name, member in value}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Number) and not re.fullmatch(r"-?\d+", value) else value
