"""Converts dates, times and durations to the texts of `docs/reference/types.md`. In events, they are often numbers.

A day is the number of days since 1970-01-01 in the proleptic Gregorian calendar, as `java.time` counts them. The year 0
is 1 BC. Days and timestamps outside the years 1 to 9999 get the text that PostgreSQL prints.
"""

import re
from datetime import date
from functools import lru_cache
from typing import Final

from changelog.connectors.capture.rows.codec import plain

SECOND_NS: Final = 1_000_000_000

_SECOND_US: Final = 1_000_000
_MINUTE_US: Final = 60 * _SECOND_US
_DAY_US: Final = 1440 * _MINUTE_US
_MINUTES: Final = [b"%02d:%02d:" % divmod(minute, 60) for minute in range(1440)]
_FINE, _FINE_UTC = b"%b%b%02d.%09d", b"%b%b%02d.%09dZ"

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = date(1, 1, 1).toordinal() - _EPOCH_DAY
_LAST_DAY: Final = date(9999, 12, 31).toordinal() - _EPOCH_DAY
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097

_ISO_DATE: Final = re.compile(r"([+-]?\d{4,})-(\d\d)-(\d\d)")
_ZONED: Final = re.compile(
    r"([+-]?\d{4,}-\d\d-\d\d)T(\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?:Z|([+-])(\d\d):?(\d\d)(?::(\d\d))?)"
)
_LOCAL: Final = re.compile(r"([+-]?\d{4,}-\d\d-\d\d)T(\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?Z?")
_CLOCK: Final = re.compile(r"(\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?Z?")
_DURATION: Final = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+(?:\.\d+)?)S)?)?"
)


def day(days: int) -> bytes:
    """Returns a day as `YYYY-MM-DD`."""
    text, era = _day(days)
    return f"{text}{era}".encode()


def clock(nanoseconds: int) -> bytes:
    """Returns a time of day, or an amount of time, as `HH:MM:SS`, then the fraction of the second, if there is one.

    The fraction has no zeros at its end. The time may be negative, or longer than a day: MySQL has such values.
    """
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(nanoseconds), SECOND_NS)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{sign}{hour:02}:{minute:02}:{second:02}{_fraction(fraction)}".encode()


def timestamp(nanoseconds: int, *, utc: bool = False) -> bytes:
    """Returns the text of the point in time that is `nanoseconds` after the beginning of 1970. With `utc`, the text
    ends with the zone.

    In the years 1 to 9999, the text is in ISO 8601, with six digits after the second, or with nine digits if the value
    is not a whole number of microseconds.
    """
    microseconds, rest = divmod(nanoseconds, 1000)
    days, in_day = divmod(microseconds, _DAY_US)
    prefix = _usual_day(days)
    if prefix is None:
        return _far(days, in_day * 1000 + rest, utc=utc)
    minute, in_minute = divmod(in_day, _MINUTE_US)
    second, fraction = divmod(in_minute, _SECOND_US)
    form = (b"%b%b%02d.%06dZ" if utc else b"%b%b%02d.%06d") if not rest else (_FINE_UTC if utc else _FINE)
    return form % (prefix, _MINUTES[minute], second, fraction if not rest else fraction * 1000 + rest)


def from_iso_date(text: str) -> bytes:
    """Converts a day in ISO 8601, maybe with a `Z` at its end. Raises ValueError for any other text."""
    return day(_days(text.removesuffix("Z")))


def from_iso_clock(text: str) -> bytes:
    """Converts a time of day in ISO 8601, maybe with a `Z`. Raises ValueError for any other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("not a time of day")
    digits = (match[3] or "").rstrip("0")
    return f"{match[1]}:{match[2] or '00'}{'.' if digits else ''}{digits}".encode()


def from_iso_timestamp(text: str) -> bytes:
    """Converts a local timestamp in ISO 8601, maybe with a meaningless `Z`. Raises ValueError for other texts."""
    match = _LOCAL.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp")
    return timestamp(_nanoseconds(match[1], match[2], match[3], match[4]))


def from_zoned(text: str) -> bytes:
    """Converts a timestamp with a zone in ISO 8601 to UTC. Raises ValueError for any other text."""
    match = _ZONED.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp with a zone")
    nanoseconds = _nanoseconds(match[1], match[2], match[3], match[4])
    if match[5]:
        offset_s = (int(match[6]) * 60 + int(match[7])) * 60 + int(match[8] or 0)
        nanoseconds -= (-offset_s if match[5] == "-" else offset_s) * SECOND_NS
    return timestamp(nanoseconds, utc=True)


def duration(nanoseconds: int) -> bytes:
    """Returns an amount of time as PostgreSQL prints an interval without days: `PT4H5M6.5S`."""
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(nanoseconds), SECOND_NS)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    parts = [f"{sign}{number}{unit}" for number, unit in ((hour, "H"), (minute, "M")) if number]
    if second or fraction or not parts:
        parts.append(f"{sign}{second}{_fraction(fraction)}S")
    return f"PT{''.join(parts)}".encode()


def from_iso_duration(text: str) -> bytes:
    """Converts an interval in ISO 8601 to the form in which PostgreSQL prints it, without parts that are 0.

    Raises ValueError for any other text.
    """
    match = _DURATION.fullmatch(text)
    if match is None or len(text) < len("P0D"):
        raise ValueError("not an interval")
    numbers = [_without_zeros(number) for number in match.groups()]
    days = "".join(f"{number}{unit}" for number, unit in zip(numbers[:3], "YMD", strict=True) if number)
    times = "".join(f"{number}{unit}" for number, unit in zip(numbers[3:], "HMS", strict=True) if number)
    return f"P{days}{'T' if times else ''}{times}".encode() if days or times else b"PT0S"


def quoted(text: bytes) -> bytes:
    """Returns a result of the functions above as a JSON string."""
    return plain(text)


def _without_zeros(number: str | None) -> str:
    """Returns a number as text without zeros at the end of its fraction; an empty text if it is 0 or missing."""
    if number is None or not number.strip("-0."):
        return ""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""


@lru_cache(maxsize=4096)
def _day(days: int) -> tuple[str, str]:
    """Returns a day, and ` BC` if it lies before the year 1."""
    if _FIRST_DAY <= days <= _LAST_DAY:
        return date.fromordinal(days + _EPOCH_DAY).isoformat(), ""
    # The calendar repeats every 400 years.
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    within = date.fromordinal(rest + 1)
    year = within.year + cycles * _CYCLE_YEARS
    era = " BC" if year < 1 else ""
    return f"{1 - year if year < 1 else year:04}-{within.month:02}-{within.day:02}", era


@lru_cache(maxsize=4096)
def _usual_day(days: int) -> bytes | None:
    """Returns the beginning of a timestamp, `2026-11-21T`; None outside the years 1 to 9999."""
    return f"{_day(days)[0]}T".encode() if _FIRST_DAY <= days <= _LAST_DAY else None


def _far(days: int, nanoseconds: int, *, utc: bool) -> bytes:
    text, era = _day(days)
    return f"{text} {clock(nanoseconds).decode()}{'+00' if utc else ''}{era}".encode()


def _days(text: str) -> int:
    """Returns the number of the day that `text` names in ISO 8601, where the year 0 is 1 BC."""
    match = _ISO_DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a day")
    cycles, year = divmod(int(match[1]), _CYCLE_YEARS)
    within = date(year + _CYCLE_YEARS, int(match[2]), int(match[3]))
    return within.toordinal() - _EPOCH_DAY + (cycles - 1) * _CYCLE_DAYS


def _nanoseconds(day_text: str, minute: str, second: str | None, fraction: str | None) -> int:
    hours, minutes = int(minute[:2]), int(minute[3:])
    seconds = (_days(day_text) * 24 + hours) * 3600 + minutes * 60 + int(second or 0)
    return seconds * SECOND_NS + int((fraction or "").ljust(9, "0"))
