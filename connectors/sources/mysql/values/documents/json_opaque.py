"""Converts values of SQL types that JSON lacks, such as DECIMAL; documents of MySQL can contain such values.

The result is the text that MySQL prints. A document holds such a value as the code of its type, and bytes that depend
on the type. See `Json_decimal` and `Json_datetime` in MySQL's `json_dom.h`, and `my_time.h` for the packed dates and
times.
"""

import base64
from dataclasses import dataclass
from typing import Final

from changelog.connectors.sources.mysql.values.numbers import decimal
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.errors import ChangelogError

_PRECISION_MAX: Final = 81
_LINE: Final = 76
"""The server breaks base64 into lines of this many characters."""
_TEMPORAL: Final = frozenset({TypeCode.DATE, TypeCode.TIME, TypeCode.DATETIME, TypeCode.TIMESTAMP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A DECIMAL. `text` is the JSON number, with all digits."""

    text: str


def opaque_value(kind: int, data: bytes) -> str | Number | None:
    """Returns the value that the server prints, or None if the type cannot have these bytes. `kind` is the type's code.

    A DECIMAL becomes a `Number`. A date or a time becomes a string; if it includes a time, the string has 6 fractional
    digits. A value of any other type becomes a string with its bytes in base64.
    """
    if kind == TypeCode.NEWDECIMAL:
        text = _decimal(data)
        return None if text is None else Number(text=text)
    if kind in _TEMPORAL:
        packed = int.from_bytes(data, "little", signed=True)
        return None if len(data) != 8 else _time(packed) if kind == TypeCode.TIME else _datetime(kind, packed)
    encoded = base64.b64encode(data).decode()
    lines = "\n".join(encoded[at : at + _LINE] for at in range(0, len(encoded), _LINE))
    return f"base64:type{kind}:{lines}"


def _decimal(data: bytes) -> str | None:
    """Reads a DECIMAL. The first byte is the number of digits, the second the number of digits after the point."""
    if len(data) < 2 or not 1 <= data[0] <= _PRECISION_MAX or data[1] > data[0]:
        return None
    try:
        return decimal(data[0], data[1])(data[2:]).decode()
    except ChangelogError:
        return None


def _time(packed: int) -> str | None:
    clock, microseconds = divmod(abs(packed), 1 << 24)
    text = _clock(clock >> 12, clock >> 6 & 63, clock & 63, microseconds)
    return None if text is None or clock >> 22 else ("-" if packed < 0 else "") + text


def _datetime(kind: int, packed: int) -> str | None:
    """Returns the text of a date, with or without a time; None if it is not valid. From the lowest bit up, `packed` has
    24 bits for the fraction of a second, 17 for the time and 5 for the day. The other bits hold `13 * year + month`.
    """
    seconds, microseconds = divmod(packed, 1 << 24)
    day, clock = divmod(seconds, 1 << 17)
    year, month = divmod(day >> 5, 13)
    text = _clock(clock >> 12, clock >> 6 & 63, clock & 63, microseconds)
    if text is None or not 0 <= year <= 9999 or clock >> 12 > 23:
        return None
    date = f"{year:04}-{month:02}-{day & 31:02}"
    return date if kind == TypeCode.DATE else f"{date} {text}"


def _clock(hours: int, minutes: int, seconds: int, microseconds: int) -> str | None:
    if minutes > 59 or seconds > 59 or microseconds > 999_999:
        return None
    return f"{hours:02}:{minutes:02}:{seconds:02}.{microseconds:06}"
