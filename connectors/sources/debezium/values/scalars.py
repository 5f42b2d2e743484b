"""Converts single values to JSON tokens (*prints* them). The values come from a decoder of JSON or Avro.

Bytes come from JSON as a string in base64, and from Avro as bytes. Numbers with a fraction are of the type
`decimal.Decimal` if they come from JSON. All functions raise ValueError, TypeError or OverflowError for a value of
another type than theirs.
"""

import binascii
import re
from collections.abc import Callable
from decimal import Decimal as Number
from struct import Struct
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.codec import string
from changelog.envelope.codec import floats

Render = Callable[[Any], bytes]
"""Takes a value that is not null, and returns its JSON."""

_BITS_MAX: Final = 1 << 20
_REPR_FROM, _REPR_BELOW = 1e-4, 1e15
"""Between these bounds, Python prints floats of 64 bits as PostgreSQL does, except that Python adds `.0` to an integer.
"""

_SINGLE: Final = Struct("<f")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_raws: Final = msgspec.json.Decoder(Raw)
_encode: Final = msgspec.json.Encoder().encode


def boolean(value: Any) -> bytes:
    """Prints true or false."""
    if value is True:
        return b"true"
    if value is False:
        return b"false"
    raise TypeError("not a boolean")


def integer(bits_: int) -> Render:
    """Returns the printer of signed integers that have `bits_` bits."""
    limit = 1 << (bits_ - 1)

    def render(value: Any) -> bytes:
        if type(value) is not int:
            raise TypeError("not an integer")
        if not -limit <= value < limit:
            raise OverflowError("an integer that is too large for its type")
        return b"%d" % value

    return render


def single(value: Any) -> bytes:
    """Prints a float of 32 bits. If it comes from JSON, its decimal digits are first rounded to 32 bits."""
    [rounded] = _SINGLE.unpack(_SINGLE.pack(_float(value)))
    return floats.token(rounded, single=True)


def double(value: Any) -> bytes:
    """Prints a float of 64 bits."""
    if type(value) is float and _REPR_FROM <= abs(value) < _REPR_BELOW:
        return repr(value).removesuffix(".0").encode()
    return floats.token(_float(value), single=False)


def _float(value: Any) -> float:
    if type(value) in (float, int, Number) or value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise TypeError("not a number")


def text(value: Any) -> bytes:
    """Prints a string."""
    if type(value) is not str:
        raise TypeError("not a string")
    return _encode(value)


def uuid(value: Any) -> bytes:
    """Prints a UUID in lower case."""
    if type(value) is not str or not _UUID.fullmatch(value):
        raise ValueError("not a UUID")
    return b'"%b"' % value.lower().encode()


def octets(value: Any) -> bytes:
    """Returns the bytes of a value. A value from JSON is a string in base64."""
    return value if type(value) is bytes else binascii.a2b_base64(value, strict_mode=True)


def binary(value: Any) -> bytes:
    """Prints bytes in base64."""
    return b'"%b"' % binascii.b2a_base64(octets(value), newline=False)


def spelled_binary(decode: Callable[[str], bytes]) -> Render:
    """Returns the printer of bytes that the event contains as a string. `decode` turns this string into the bytes."""

    def render(value: Any) -> bytes:
        if type(value) is not str:
            raise TypeError("not a string")
        return binary(decode(value))

    return render


def embedded(value: Any) -> bytes:
    """Prints a JSON document that the event contains as a string. A string that is not JSON is printed as a string."""
    if type(value) is not str:
        raise TypeError("not a string")
    document = value.encode()
    try:
        _raws.decode(document)
    except ValueError:
        return string(document)
    return document


def bits(length: int) -> Render:
    """Returns the printer of bit strings. Their bytes are in little-endian order.

    `length` is the number of bits; 0 if the column has no length. Then no leading zeros are printed, because their
    number is unknown.
    """
    digits = length if length <= _BITS_MAX else 1

    def render(value: Any) -> bytes:
        number = int.from_bytes(octets(value), "little")
        return f'"{number:0{digits}b}"'.encode()

    return render


def decimal_text(unscaled: int, scale: int) -> str:
    """Returns the number `unscaled` / 10^`scale`, with all digits of its scale."""
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def decimal(scale: int) -> Render:
    """Returns the printer of Connect's decimals, which are the bytes of a two's complement, or numbers in JSON."""

    def render(value: Any) -> bytes:
        if type(value) is not bytes and (type(value) is int or isinstance(value, Number)):
            unscaled = _unscaled(Number(value), scale)
        else:
            unscaled = int.from_bytes(octets(value), "big", signed=True)
        return f'"{decimal_text(unscaled, scale)}"'.encode()

    return render


def _unscaled(number: Number, scale: int) -> int:
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or exponent + scale < 0 or exponent > _BITS_MAX:
        raise ValueError("a number with more digits than its scale")
    unscaled: int = int("".join(map(str, digits))) * 10 ** (exponent + scale)
    return -unscaled if sign else unscaled


def variable_decimal(value: Any) -> bytes:
    """Prints a number whose scale is a part of the value."""
    scale = value["scale"]
    if type(scale) is not int or abs(scale) > _BITS_MAX:
        raise TypeError("not a scale")
    unscaled = int.from_bytes(octets(value["value"]), "big", signed=True)
    return f'"{decimal_text(unscaled, scale)}"'.encode()


def geometry(value: Any) -> bytes:
    """Prints a geometry as the MySQL source does: its SRID, and its well-known binary form in base64."""
    srid = value.get("srid") or 0
    if type(srid) is not int:
        raise TypeError("not a number of a spatial reference system")
    return b'{"srid":%d,"wkb":%b}' % (srid, binary(value["wkb"]))


def postgres_point(value: Any) -> bytes:
    """Prints a point as PostgreSQL does."""
    return b'"(%b,%b)"' % tuple(double(value[axis]).strip(b'"') for axis in ("x", "y"))
