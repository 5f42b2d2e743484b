"""Converts the database server's text of values to JSON, and to the canonical text that keys are made of."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from changelog.envelope import canonical as json_canonical
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import ColumnType, Primitive

_PIECE_BYTES = 1 << 18

_TIMESTAMP = re.compile(rb"((?!0000)\d{4}-(?!00)\d\d-(?!00)\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?")
_TIMESTAMPTZ = re.compile(_TIMESTAMP.pattern + rb"\+00")


class Shape(Enum):
    """How the server's text becomes the JSON value."""

    RAW = auto()  # the text is used unchanged
    PLAIN = auto()  # the text is put in quotes; it never needs escaping
    TEXT = auto()  # the text is escaped and put in quotes
    BOOL = auto()  # the text is t or f, and becomes true or false
    FLOAT = auto()  # the text is used unchanged, but NaN and infinities are put in quotes
    TIMESTAMP = auto()  # the text becomes ISO 8601 without a zone, in quotes
    TIMESTAMPTZ = auto()  # the text becomes ISO 8601 in UTC, in quotes
    OTHER = auto()  # only `to_json` can convert the text, one value at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Converts the values of one column.

    `to_json` takes the server's text of a value that is not NULL, in UTF-8, and returns its JSON value in UTF-8. It
    raises ChangelogError (MALFORMED) for a text that no server prints under the source's session settings. But it does
    not check a text that it can use unchanged.
    """

    shape: Shape
    to_json: Callable[[bytes], bytes]
    column_type: ColumnType


def canonical(text: bytes, codec: Codec) -> str:
    """Returns the canonical form of a value that the server printed as `text`. Keys consist of values in this form.

    If the JSON value is a string, its canonical form is the content of this string, without quotes and escapes. A
    number, `true` and `false` stay as they are. Arrays, objects and all values of json columns become canonical JSON,
    where strings keep their quotes, so that the json string "1" and the json number 1 differ.
    """
    value = codec.to_json(text)
    if codec.column_type is Primitive.JSON or value.startswith((b"[", b"{")):
        return json_canonical.text(value)
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def raw(text: bytes) -> bytes:
    """Returns `text`, which is already a JSON token."""
    return text


def plain(text: bytes) -> bytes:
    """Returns `text` in quotes; it must not contain a quote, a backslash or a control character."""
    return b'"%b"' % text


def timestamp(text: bytes) -> bytes:
    """Converts a timestamp of the years 1 to 9999 to ISO 8601 with microseconds.

    All other timestamps (BC, later years, infinity, and dates with a part that is 0) are published as the server prints
    them.
    """
    match = _TIMESTAMP.fullmatch(text)
    return b'"%bT%b.%b"' % (match[1], match[2], (match[3] or b"").ljust(6, b"0")) if match else plain(text)


def timestamptz(text: bytes) -> bytes:
    """Converts like `timestamp`, but the result has a `Z` at the end."""
    match = _TIMESTAMPTZ.fullmatch(text)
    return b'"%bT%b.%bZ"' % (match[1], match[2], (match[3] or b"").ljust(6, b"0")) if match else plain(text)


def string(text: bytes | memoryview) -> bytes:
    """Returns any text in UTF-8 as a JSON string.

    A long text is converted in pieces, so that there is never a decoded copy of the whole text in memory.
    """
    if len(text) <= _PIECE_BYTES:
        return _quoted(text, 0)
    # The first conversion finds out the length, so that the second can fill a buffer that is allocated only once.
    # If the buffer grew piece by piece, its memory would not be returned to the system afterwards.
    quoted = bytearray(2 + sum(len(_quoted(piece, at)) - 2 for at, piece in _pieces(text)))
    quoted[0] = quoted[-1] = ord('"')
    to = 1
    for at, piece in _pieces(text):
        inner = _quoted(piece, at)[1:-1]
        quoted[to : to + len(inner)] = inner
        to += len(inner)
    return bytes(quoted)


def _pieces(text: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview]]:
    """Splits text into pieces that end with a whole character; yields each piece's offset and the piece."""
    at = 0
    while at < len(text):
        end = at + _PIECE_BYTES
        while end < len(text) and text[end] & 0xC0 == 0x80 and end > at + 1:
            end -= 1
        yield at, text[at:end]
        at = end


def _quoted(text: bytes | memoryview, at: int) -> bytes:
    """Returns a piece of a text as a JSON string; `at` is the offset of the piece, for the error message."""
    try:
        return msgspec.json.encode(str(text, "utf-8"))
    except UnicodeDecodeError as error:
        raise ChangelogError(
            Kind.MALFORMED,
            f"a value is not UTF-8, at byte {at + error.start}",
            hint="the database's encoding must be one that the server converts, not SQL_ASCII",
        ) from None
