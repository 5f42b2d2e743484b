"""Converts dates and times from their bytes in the binary log to text (*prints* them), as the server does.

The layouts are those of `my_time.cc` (`my_time_packed_to_binary`, `my_datetime_packed_to_binary`,
`my_timestamp_to_binary`). MariaDB can also write the older layouts, if `mysql56_temporal_format` is OFF. In a date, the
month or the day may be 0. For bytes that are not valid for the type, the printers raise ChangelogError (MALFORMED);
they raise no other error.
"""

import datetime

from changelog.connectors.sources.mysql.values.malformed import check_size, malformed
from changelog.connectors.sources.mysql.values.numbers import Printer

ZERO = b"0000-00-00 00:00:00"

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HOURS_MAX = 838


def date(raw: bytes | memoryview) -> bytes:
    """Prints a DATE: 3 bytes, little-endian. From the lowest bit up, there are 5 bits for the day, 4 for the month, and
    15 for the year.
    """
    check_size("DATE", raw, 3)
    number = int.from_bytes(raw, "little")
    return _date("DATE", number >> 9, number >> 5 & 15, number & 31)


def time(digits: int) -> Printer:
    """Prints a TIME with `digits` fractional digits, for example `-838:59:59.0`.

    The bytes are a big-endian integer: a number plus an offset. The sign of the number is the sign of the time. The
    lowest bytes of its absolute value are the fraction. Above them, from the lowest bit up, are 6 bits for the second
    and 6 for the minute; the other bits hold the hour.
    """
    fraction_size = (digits + 1) // 2

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("TIME", raw, 3 + fraction_size)
        number = int.from_bytes(raw, "big") - (0x800000 << 8 * fraction_size)
        sign = b"-" if number < 0 else b""
        clock, fraction = divmod(abs(number), 1 << 8 * fraction_size)
        text = _clock("TIME", clock >> 12, clock >> 6 & 63, clock & 63, _HOURS_MAX)
        return sign + text + _fraction("TIME", fraction, digits)

    return printed


def datetime_(digits: int) -> Printer:
    """Prints a DATETIME with `digits` fractional digits.

    The first 5 bytes are the sum of a number and an offset, big-endian. From the number's lowest bit up, there are 6
    bits for the second, 6 for the minute, 5 for the hour and 5 for the day. The other bits hold `13 * year + month`.
    The bytes of the fraction follow.
    """
    fraction_size = (digits + 1) // 2

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("DATETIME", raw, 5 + fraction_size)
        number = int.from_bytes(raw[:5], "big") - 0x8000000000
        if number < 0:
            raise malformed("DATETIME", "is negative")
        year, month = divmod(number >> 22, 13)
        day = _date("DATETIME", year, month, number >> 17 & 31)
        clock = _clock("DATETIME", number >> 12 & 31, number >> 6 & 63, number & 63, 23)
        return day + b" " + clock + _fraction("DATETIME", int.from_bytes(raw[5:], "big"), digits)

    return printed


def timestamp(digits: int) -> Printer:
    """Prints a TIMESTAMP in UTC, with `digits` fractional digits and `+00` at the end.

    The bytes are big-endian: 4 with the seconds since 1970, and then the fraction. The value 0 is the zero date, which
    is printed without a zone.
    """
    fraction_size = (digits + 1) // 2

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("TIMESTAMP", raw, 4 + fraction_size)
        fraction = _fraction("TIMESTAMP", int.from_bytes(raw[4:], "big"), digits)
        return _instant(int.from_bytes(raw[:4], "big"), fraction)

    return printed


def old_time(raw: bytes | memoryview) -> bytes:
    """Prints a TIME of the older layout: 3 bytes, a little-endian signed integer. Its decimal digits are `hhmmss`, so
    123456 is 12:34:56.
    """
    check_size("TIME", raw, 3)
    number = int.from_bytes(raw, "little", signed=True)
    hours, rest = divmod(abs(number), 10000)
    return (b"-" if number < 0 else b"") + _clock("TIME", hours, rest // 100, rest % 100, _HOURS_MAX)


def old_datetime(raw: bytes | memoryview) -> bytes:
    """Prints a DATETIME of the older layout: 8 bytes, a little-endian integer with the digits `YYYYMMDDhhmmss`."""
    check_size("DATETIME", raw, 8)
    day, clock = divmod(int.from_bytes(raw, "little"), 1000000)
    hours, rest = divmod(clock, 10000)
    text = _date("DATETIME", day // 10000, day // 100 % 100, day % 100)
    return text + b" " + _clock("DATETIME", hours, rest // 100, rest % 100, 23)


def old_timestamp(raw: bytes | memoryview) -> bytes:
    """Prints a TIMESTAMP of the older layout: 4 bytes, little-endian, with the seconds since 1970."""
    check_size("TIMESTAMP", raw, 4)
    return _instant(int.from_bytes(raw, "little"), b"")


def _instant(seconds: int, fraction: bytes) -> bytes:
    if not seconds and not fraction.strip(b".0"):
        return ZERO + fraction
    moment = _EPOCH + datetime.timedelta(seconds=seconds)
    return b"%b%b+00" % (moment.strftime("%Y-%m-%d %H:%M:%S").encode(), fraction)


def _date(type_name: str, year: int, month: int, day: int) -> bytes:
    if year > 9999 or month > 12 or day > 31:
        raise malformed(type_name, "is not a date")
    return b"%04d-%02d-%02d" % (year, month, day)


def _clock(type_name: str, hours: int, minutes: int, seconds: int, hours_max: int) -> bytes:
    if hours > hours_max or minutes > 59 or seconds > 59:
        raise malformed(type_name, "is not a time")
    return b"%02d:%02d:%02d" % (hours, minutes, seconds)


def _fraction(type_name: str, number: int, digits: int) -> bytes:
    """Returns the decimal point and the digits of a fraction. The log stores one byte for every two digits, so `number`
    may have one digit more than `digits`.
    """
    stored_digits = (digits + 1) // 2 * 2
    if number >= 10**stored_digits:
        raise malformed(type_name, "has a fraction that is too large")
    return b".%0*d" % (digits, number // 10 ** (stored_digits - digits)) if digits else b""
