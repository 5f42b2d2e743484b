"""Converts numbers and bits from their bytes in the binary log to text (*prints* them).

The layouts are those of the server's fields (`Field_tiny` and its siblings in `field.cc`), and of `decimal2bin` in
`decimal.cc`. Each function that returns a `Printer` is called once for each column. For bytes that are not valid for
the type, the printers raise ChangelogError (MALFORMED); they raise no other error.
"""

import math
import struct
from collections.abc import Callable

from changelog.connectors.sources.mysql.values.malformed import check_size, malformed
from changelog.envelope.codec import floats

Printer = Callable[[bytes | memoryview], bytes]
"""Takes a value's bytes in the log, without the length that stands before them. Returns the printed text."""

_GROUP_DIGITS = 9
_GROUP_BYTES = 4
_SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4)  # entry n: the number of bytes of an incomplete group of n digits


def integer(size: int, *, unsigned: bool) -> Printer:
    """Prints an integer of `size` bytes, little-endian."""

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("integer", raw, size)
        return b"%d" % int.from_bytes(raw, "little", signed=not unsigned)

    return printed


def year(raw: bytes | memoryview) -> bytes:
    """Prints a year. Its one byte is the number of years since 1900, except that 0 means the year 0."""
    check_size("YEAR", raw, 1)
    return b"%d" % (1900 + raw[0] if raw[0] else 0)


def single(raw: bytes | memoryview) -> bytes:
    """Prints a FLOAT with the fewest digits that read back as the same value of 32 bits."""
    check_size("FLOAT", raw, 4)
    return floating(struct.unpack("<f", raw)[0], single=True)


def double(raw: bytes | memoryview) -> bytes:
    """Prints a DOUBLE with the fewest digits that read back as the same value of 64 bits."""
    check_size("DOUBLE", raw, 8)
    return floating(struct.unpack("<d", raw)[0], single=False)


def floating(value: float, *, single: bool) -> bytes:
    """Returns the printed text of a number that is stored in 32 bits (`single`) or 64 bits.

    The server's own text cannot be used: it has too few digits for a FLOAT, and depends on the declared type.
    """
    if not math.isfinite(value):
        raise malformed("FLOAT" if single else "DOUBLE", "is not a finite number")
    return floats.token(value, single=single)


def bits(count: int) -> Printer:
    """Prints a BIT as `count` digits 0 or 1. The value is stored as a big-endian number."""

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("BIT", raw, (count + 7) // 8)
        number = int.from_bytes(raw, "big")
        if number >> count:
            raise malformed("BIT", f"has more than {count} bits")
        return f"{number:0{count}b}".encode()

    return printed


def decimal(precision: int, scale: int) -> Printer:
    """Prints a DECIMAL with `scale` digits after the point.

    Starting from the point in both directions, the digits are divided into groups of nine. A group has four bytes,
    big-endian. The incomplete groups at both ends have fewer bytes. All bits of a negative number are inverted.
    Finally, the first bit of every number is inverted, so that the bytes sort like the numbers.
    """
    whole_sizes = [(precision - scale) % _GROUP_DIGITS] + [_GROUP_DIGITS] * ((precision - scale) // _GROUP_DIGITS)
    part_sizes = [_GROUP_DIGITS] * (scale // _GROUP_DIGITS) + [scale % _GROUP_DIGITS]
    groups = [digits for digits in (*whole_sizes, *part_sizes) if digits]
    size = sum(map(_group_bytes, groups))

    def printed(raw: bytes | memoryview) -> bytes:
        check_size("DECIMAL", raw, size)
        negative = not raw[0] & 0x80
        number = int.from_bytes(raw, "big") ^ (1 << (8 * size - 1))
        if negative:
            number ^= (1 << (8 * size)) - 1
        digits = _digits(number.to_bytes(size, "big"), groups)
        whole = digits[: precision - scale].lstrip("0") or "0"
        part = f".{digits[precision - scale :]}" if scale else ""
        return f"{'-' if negative else ''}{whole}{part}".encode()

    return printed


def _group_bytes(digits: int) -> int:
    return _GROUP_BYTES if digits == _GROUP_DIGITS else _SIZES[digits]


def _digits(octets: bytes, groups: list[int]) -> str:
    """Returns all digits of a decimal number without a sign. `groups` has the number of digits of each group."""
    texts = []
    at = 0
    for digits in groups:
        end = at + _group_bytes(digits)
        text = f"{int.from_bytes(octets[at:end], 'big'):0{digits}d}"
        if len(text) > digits:
            raise malformed("DECIMAL", f"has a group of more than {digits} digits")
        texts.append(text)
        at = end
    return "".join(texts)
