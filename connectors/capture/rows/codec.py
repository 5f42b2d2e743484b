"""How the values of a column are published: from the server's text to JSON, and to the text that keys are made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from changelog.envelope import canonical as json_canonical
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import ColumnType, Primitive

_PIECE_BYTES = 1 << 18


class Shape(Enum):
    """How the server's text becomes the JSON value."""

    RAW = auto()  # the text is the JSON token
    PLAIN = auto()  # in quotes; the text never needs escaping
    TEXT = auto()  # in quotes, escaped
    BOOL = auto()  # t or f
    FLOAT = auto()  # the text, NaN and infinities in quotes
    TIMESTAMP = auto()  # ISO 8601 without a zone
    TIMESTAMPTZ = auto()  # ISO 8601 in UTC
    OTHER = auto()  # one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How the values of a column are published.

    `to_json` takes the server's text of a value that is not NULL, in UTF-8, and gives the UTF-8 of its JSON value; it
    raises ChangelogError (MALFORMED) on text that the server would not print under `SETTINGS`, as far as it must look.
    """

    shape: Shape
    to_json: Callable[[bytes], bytes]
    column_type: ColumnType


def canonical(text: bytes, codec: Codec) -> str:
    """The canonical text of the value that the server printed as `text`: what keys are made of.

    The content of a JSON string, a number's token, `true` or `false`; of arrays, objects and all that is in json
    columns the canonical JSON text, so that a json string is never taken for another json value.
    """
    value = codec.to_json(text)
    if codec.column_type is Primitive.JSON or value.startswith((b"[", b"{")):
        return json_canonical.text(value)
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def string(text: bytes | memoryview) -> bytes:
    """Any text, in quotes. A long one is converted in pieces, so that no decoded copy of all of it is in memory."""
    if len(text) <= _PIECE_BYTES:
        return _quoted(text, 0)
    # Twice, so that the memory is asked for at once: what grows a little each time is not given back afterwards.
    quoted = bytearray(2 + sum(len(_quoted(piece, at)) - 2 for at, piece in _pieces(text)))
    quoted[0] = quoted[-1] = ord('"')
    to = 1
    for at, piece in _pieces(text):
        inner = _quoted(piece, at)[1:-1]
        quoted[to : to + len(inner)] = inner
        to += len(inner)
    return bytes(quoted)


def _pieces(text: bytes | memoryview) -> Iterator[tuple[int, bytes | memoryview]]:
    """Splits text into pieces that end with a whole character; yields the offset of each, and the piece."""
    at = 0
    while at < len(text):
        end = at + _PIECE_BYTES
        while end < len(text) and text[end] & 0xC0 == 0x80 and end > at + 1:
            end -= 1
        yield at, text[at:end]
        at = end


def _quoted(text: bytes | memoryview, at: int) -> bytes:
    """Text as a JSON string; `at` is its offset in the whole value, for the error message."""
    try:
        return msgspec.json.encode(str(text, "utf-8"))
    except UnicodeDecodeError as error:
        raise ChangelogError(
            Kind.MALFORMED,
            f"a value is not UTF-8, at byte {at + error.start}",
            hint="the database's encoding must be one that the server converts, not SQL_ASCII",
        ) from None
