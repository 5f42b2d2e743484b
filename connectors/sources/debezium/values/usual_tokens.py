"""Converts JSON tokens of the usual forms faster than a JSON parser and a printer do, with the same result.

Each function returns a fast converter for a semantic type. The arguments are the printer of that type (see `scalars`
and `temporal`) and a JSON parser. The converter uses this parser and this printer for tokens of any other form.
"""

import re
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from changelog.connectors.sources.debezium.values.scalars import Render, decimal_text

_strings: Final = msgspec.json.Decoder(str)

Parse = Callable[[bytes], Any]

# Days after the 28th do not match, because the pattern does not know how long the months are.
_ZONED: Final = re.compile(
    rb'"(?!0000)\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z"'
)
_QUOTE: Final = ord('"')
_INTEGER_DIGITS_MAX: Final = 19


def zoned(render: Render, parse: Parse) -> Callable[[bytes], bytes]:
    """Returns a converter that leaves timestamps unchanged if they are in UTC and have six digits after the second."""

    def convert(token: bytes) -> bytes:
        return token if _ZONED.fullmatch(token) else render(parse(token))

    return convert


def counted(render: Render, parse: Parse) -> Callable[[bytes], bytes]:
    """Returns a converter that reads numbers of days, milliseconds and so on without a JSON parser."""

    def convert(token: bytes) -> bytes:
        return render(int(token) if token.isdigit() and len(token) <= _INTEGER_DIGITS_MAX else parse(token))

    return convert


def double(render: Render, parse: Parse) -> Callable[[bytes], bytes]:
    """Returns a converter that reads numbers without a JSON parser."""

    def convert(token: bytes) -> bytes:
        return render(parse(token) if token[0] == _QUOTE else float(token))

    return convert


def decimal(render: Render, parse: Parse, scale: int) -> Callable[[bytes], bytes]:
    """Returns a converter that reads decimals in base64, the usual form, without a JSON parser."""

    def convert(token: bytes) -> bytes:
        if token[0] != _QUOTE:
            return render(parse(token))
        unscaled = int.from_bytes(a2b_base64(token[1:-1], strict_mode=True), "big", signed=True)
        return f'"{decimal_text(unscaled, scale)}"'.encode()

    return convert


def document(render: Render, _parse: Parse) -> Callable[[bytes], bytes]:
    """Returns a converter for JSON documents. In events, these are strings, so it uses a parser for strings only."""

    def convert(token: bytes) -> bytes:
        return render(_strings.decode(token))

    return convert
