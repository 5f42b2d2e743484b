"""Has a rule for each known difference between the values that our own source publishes and those from Debezium.

A rule is a function. It gets our value and Debezium's value, both as `parsed` returns them, and returns whether they
differ in exactly the way that its docstring describes. `docs/reference/debezium-events.md` says why they differ.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

_INTEGER = re.compile(r"-?\d+")

Rule = Callable[[Any, Any], bool]
Rules = Mapping[str, Rule]
"""The rules for the values of one column, by the name of the difference."""


class Number(str):
    """A number in JSON. It equals other `Number`s that have the same value, and nothing else; -0 does not equal 0."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self._value() == other._value()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(Decimal(str(self)))

    def _value(self) -> tuple[Decimal, bool]:
        number = Decimal(str(self))
        return number, number.is_signed()


def parsed(text: bytes | str) -> Any:
    """Parses JSON. Keeps all digits of numbers. Keeps all members of objects in their order, even if two members have
    the same name.
    """
    return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=_Members)


class _Members(tuple[tuple[str, Any], ...]):
    __slots__ = ()


def members(value: Any) -> dict[str, Any]:
    """Returns a parsed object as a dict."""
    assert isinstance(value, _Members)
    return dict(value)


def money(ours: Any, theirs: Any) -> bool:
    """We publish the text that the server prints, and Debezium publishes a number."""
    return bool(re.fullmatch(r"-?\$[\d,]+\.\d\d", ours)) and ours.replace("$", "").replace(",", "") == theirs


def one_bit(ours: Any, theirs: Any) -> bool:
    """We publish a bit string of one bit as a string, Debezium as a boolean."""
    return (ours, theirs) in (("0", False), ("1", True))


def leading_zeros(ours: Any, theirs: Any) -> bool:
    """Debezium does not know the length of a bit string, so it drops the zeros at the beginning."""
    return bool((ours.lstrip("0") or "0") == theirs)


def padded_to(length: int) -> Rule:
    """Returns the rule for `bit varying(length)`. Debezium adds zeros at the beginning, up to this length."""
    return lambda ours, theirs: bool(ours.zfill(length) == theirs)


def without_scale(ours: Any, theirs: Any) -> bool:
    """If a type has no fixed scale, Debezium leaves out the zeros at the end of its numbers."""
    return "." in ours and bool(ours.rstrip("0").rstrip(".") == theirs)


def in_the_gap(ours: Any, theirs: Any) -> bool:
    """When the Gregorian calendar began in 1582, ten dates were skipped. Debezium takes these as dates of the older
    Julian calendar, and converts them.
    """
    if isinstance(ours, list):
        pairs = zip(ours, theirs, strict=True)
        return len(ours) == len(theirs) and all(own == other or in_the_gap(own, other) for own, other in pairs)
    if not isinstance(ours, str) or not "1582-10-05" <= ours[:10] <= "1582-10-14":
        return False
    return bool((date.fromisoformat(ours[:10]) + timedelta(days=10)).isoformat() + ours[10:] == theirs)


def same_members(ours: Any, theirs: Any) -> bool:
    """The members of an hstore have no order. Debezium publishes them in the order of a hash table."""
    return members(ours) == members(theirs)


def in_utc(ours: Any, theirs: Any) -> bool:
    """We publish a time with time zone as the server prints it. Debezium converts the time to UTC."""
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
    """We publish a range as an object, and Debezium publishes the text that the server prints."""
    sides = members(ours)
    lower, upper, bounds = sides["lower"], sides["upper"], sides["bounds"]
    if bounds == "empty":
        return bool(theirs == "empty")
    text = [_bound(side) for side in (lower, upper)]
    return bool(theirs.replace('"', "") == f"{bounds[0]}{text[0]},{text[1]}{bounds[1]}")


def _bound(side: str | None) -> str:
    """Converts a bound from the JSON that we publish to the text that the server prints."""
    if side is None:
        return ""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.(\d{6})(Z?)", side)
    if match is None:
        return str(side)
    day, clock, fraction, zone = match.groups()
    digits = fraction.rstrip("0")
    return f"{day} {clock}{'.' if digits else ''}{digits}{'+00' if zone else ''}"


def fraction_digits(ours: Any, theirs: Any) -> bool:
    """We publish a time with as many decimals as its column has. Debezium leaves out the zeros at the end."""
    return "." in ours and bool(ours.rstrip("0").rstrip(".") == theirs)


def no_day(ours: Any, theirs: Any) -> bool:
    """If a part of a date or a timestamp is 0, we publish the text that the server prints. Debezium publishes null."""
    return theirs is None and bool(re.match(r"0000-|\d{4}-00-|\d{4}-\d\d-00", ours))


def epoch(ours: Any, theirs: Any) -> bool:
    """In the log, MySQL's zero timestamp is the number 0. Debezium reads this number as 1970-01-01."""
    return bool(re.fullmatch(r"0000-00-00 00:00:00(\.0+)?", ours)) and theirs == "1970-01-01T00:00:00.000000Z"


def year_0(ours: Any, theirs: Any) -> bool:
    """For dates in the year 0, we publish the server's text, and Debezium the same date in the year 1 BC."""
    match = re.fullmatch(r"0000-(\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(\.\d+)?)?", ours)
    if match is None:
        return False
    fraction = (match[3] or "").rstrip("0").rstrip(".")
    return bool(theirs == f"0001-{match[1]}{f' {match[2]}{fraction}' if match[2] else ''} BC")


def year_1(ours: Any, theirs: Any) -> bool:
    """If Debezium reads a date in the year 0 from a table, it publishes the same date in the year 1."""
    match = re.fullmatch(r"0000-(\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d+))?)?", ours)
    if match is None:
        return False
    clock = f"T{match[2]}.{(match[3] or '').ljust(6, '0')}" if match[2] else ""
    return bool(theirs == f"0001-{match[1]}{clock}")


def escaped(ours: Any, theirs: Any) -> bool:
    """Debezium publishes the labels of an ENUM or SET as they are escaped in the definition of the table: with a
    backslash before each backslash and each comma.
    """
    return bool(re.sub(r"[\\,]", r"\\\g<0>", ours) == theirs)


def as_double(ours: Any, theirs: Any) -> bool:
    """If the definition of a float has a precision, such as FLOAT(7,2), Debezium publishes the float as a double."""
    return bool(float(np.float32(str(ours))) == float(theirs))


def shifted_uuid(ours: Any, theirs: Any) -> bool:
    """MariaDB's log leaves out zero bytes at the end of a UUID. Debezium adds them at the beginning."""
    octets = bytes.fromhex(ours.replace("-", "")).rstrip(b"\0")
    return bool(theirs.replace("-", "") == octets.rjust(16, b"\0").hex())


def six_digits(ours: Any, theirs: Any) -> bool:
    """Debezium reads tables by a protocol in which the server prints floats with six digits."""
    exact = np.float32(str(ours))
    return bool(np.float32(f"{float(exact):.6g}") == np.float32(str(theirs)))


def two_decimals(ours: Any, theirs: Any) -> bool:
    """Debezium reads tables by a protocol in which the server prints a `DOUBLE(10,2)` with two decimals."""
    return float(f"{float(str(ours)):.2f}") == float(str(theirs))


def as_text(ours: Any, theirs: Any) -> bool:
    """In MariaDB, a JSON column is a text column. Debezium publishes its values as strings."""
    return isinstance(theirs, str) and bool(parsed(theirs) == ours)


def no_character(ours: Any, theirs: Any) -> bool:
    """The character set `ucs2` has no surrogate pairs, so each half of a pair is an invalid character there.

    We publish `?` for each half, as the server does. Debezium publishes the character that both halves stand for
    together. If a half is alone, Debezium publishes one U+FFFD for it and the character after it. It also publishes
    U+FFFD for bytes of latin1 that Java does not know.
    """
    pattern = "".join(
        r"(\?.?|[\x80-\x9f])" if of == "\ufffd" else rf"({of}|\?\?)" if of > "\uffff" else re.escape(of)
        for of in theirs
    )
    return bool(re.fullmatch(pattern, ours, re.DOTALL))


def same_json(ours: Any, theirs: Any) -> bool:
    """MySQL stores JSON in a binary form. When we and Debezium convert this form to text, the spaces and the digits of
    doubles can differ.
    """
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_json, ours, theirs))
    if isinstance(ours, _Members) and isinstance(theirs, _Members):
        own, other = members(ours), members(theirs)
        return own.keys() == other.keys() and all(same_json(value, other[name]) for name, value in own.items())
    if isinstance(ours, Number) and isinstance(theirs, Number) and not _INTEGER.fullmatch(ours):
        return float(ours) == float(theirs)
    return bool(ours == theirs)
