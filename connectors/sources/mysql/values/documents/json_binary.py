"""Reads MySQL's binary JSON: the format of JSON columns in tables and in the binary log.

The format is described at the top of `json_binary.h` in MySQL's source. A document is one byte, which gives the type,
and then the value. An object or array begins with the number of its members and its size in bytes. Then come entries of
fixed size. The entry of a key is its offset and its length. The entry of a value is its type and its offset; a small
value takes the place of the offset. Offsets count from the start of the object or array. In a *small* object or array,
the number of members, the size and the offsets have 2 bytes each; in a *large* one, they have 4. The length of a key
always has 2 bytes.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Union

from changelog.connectors.sources.mysql.values.documents.json_opaque import Number, opaque_value
from changelog.envelope.errors import ChangelogError, Kind

DEPTH_MAX: Final = 100
"""How deep objects and arrays may be nested; the server's limit (JSON_DOCUMENT_MAX_DEPTH)."""


Json = Union[None, bool, int, float, str, Number, list["Json"], dict[str, "Json"]]  # noqa: UP007 (it is recursive)
"""A document, or a value in it. A float is finite. Members are in the order in which they are stored. A document can
also contain values of SQL types that JSON lacks. Such a value is the string that the server prints, except that a
DECIMAL is a `Number`.
"""


def parse_json(data: bytes | memoryview) -> Json:
    """Returns the document that `data` holds. Empty `data` means null, as in the server.

    Unused bytes are allowed, because an update in place can leave some. Raises ChangelogError (MALFORMED) with the
    offset of the part that is not valid.
    """
    data = bytes(data)
    return _Reader(data).value(data[0], 1, len(data), 1) if data else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The layout of a small or a large object or array: of its header, of a key's entry and of a value's entry. Values
    of the types `inlined` are stored in their entries.
    """

    header: struct.Struct
    key: struct.Struct
    value: struct.Struct
    inlined: frozenset[int]


_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_LITERALS: Final = (None, True, False)
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
    _DOUBLE: struct.Struct("<d"),
}
_MASKS: Final[Mapping[int, tuple[int, int]]] = {
    _INT16: (0xFFFF, 0x8000),
    _UINT16: (0xFFFF, 0),
    _INT32: (0xFFFFFFFF, 0x80000000),
    _UINT32: (0xFFFFFFFF, 0),
}
"""For each type of number that an entry can hold: a mask of the number's bits, and its sign bit (0 if it has no sign).
"""
_SMALL: Final = _Form(
    header=struct.Struct("<HH"),
    key=struct.Struct("<HH"),
    value=struct.Struct("<BH"),
    inlined=frozenset({_LITERAL, _INT16, _UINT16}),
)
_LARGE: Final = _Form(
    header=struct.Struct("<II"),
    key=struct.Struct("<IH"),
    value=struct.Struct("<BI"),
    inlined=_SMALL.inlined | {_INT32, _UINT32},
)
_OBJECTS: Final = {_SMALL_OBJECT: _SMALL, _LARGE_OBJECT: _LARGE}
_ARRAYS: Final = {_SMALL_ARRAY: _SMALL, _LARGE_ARRAY: _LARGE}


class _Reader:
    """Reads the values of one document.

    In a valid document, no byte belongs to two values. So the reader counts the bytes that it reads, and refuses a
    document once they are more than the document has. Otherwise, a small document could become a huge text, if many of
    its offsets name the same value.
    """

    __slots__ = ("_data", "_unread")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._unread = len(data) - 1  # without the type of the document

    def value(self, kind: int, at: int, end: int, depth: int) -> Json:
        """Returns the value at `at`, which must end at or before `end`. If it is an object or array, `depth` is its
        level of nesting.
        """
        if kind == _STRING:
            return self._string(at, end)
        if kind in _OBJECTS:
            return self._object(_OBJECTS[kind], at, end, depth)
        if kind in _ARRAYS:
            return self._array(_ARRAYS[kind], at, end, depth)
        if kind == _OPAQUE:
            return self._opaque(at, end)
        return self._scalar(kind, at, end)

    def _scalar(self, kind: int, at: int, end: int) -> Json:
        """Returns a literal or a number."""
        if kind == _LITERAL:
            self._take(at, 1, end)
            if self._data[at] >= len(_LITERALS):
                raise _malformed(at)
            return _LITERALS[self._data[at]]
        form = _NUMBERS.get(kind)
        if form is None:
            raise _malformed(at)
        self._take(at, form.size, end)
        number: int | float = form.unpack_from(self._data, at)[0]
        if not math.isfinite(number):
            raise _malformed(at)
        return number

    def _object(self, form: _Form, at: int, end: int, depth: int) -> Json:
        count, end = self._header(form, at, end, depth)
        keys = at + form.header.size
        entries = keys + count * form.key.size
        self._take(keys, entries - keys, end)
        names = [
            self._text(at + offset, length, end) for offset, length in form.key.iter_unpack(self._data[keys:entries])
        ]
        members = dict(zip(names, self._values(form, at, entries, count, end, depth), strict=True))
        if len(members) != count:
            raise _malformed(at)  # two members have the same name
        return members

    def _array(self, form: _Form, at: int, end: int, depth: int) -> Json:
        count, end = self._header(form, at, end, depth)
        return self._values(form, at, at + form.header.size, count, end, depth)

    def _header(self, form: _Form, at: int, end: int, depth: int) -> tuple[int, int]:
        """Reads the header of the object or array at `at`. Returns the number of its members, and where it ends."""
        if depth > DEPTH_MAX:
            raise _malformed(at)
        self._take(at, form.header.size, end)
        count, size = form.header.unpack_from(self._data, at)
        if size > end - at:
            raise _malformed(at)
        return count, at + size

    def _values(self, form: _Form, start: int, entries: int, count: int, end: int, depth: int) -> list[Json]:
        """Returns the values of the object or array that begins at `start`. Their entries begin at `entries`."""
        size = form.value.size
        self._take(entries, count * size, end)
        values: list[Json] = []
        for entry in range(entries, entries + count * size, size):
            kind, offset = form.value.unpack_from(self._data, entry)
            if kind in form.inlined:
                values.append(_inlined(kind, offset, entry))
            else:
                values.append(self.value(kind, start + offset, end, depth + 1))
        return values

    def _string(self, at: int, end: int) -> str:
        if at < end and self._data[at] < 0x80:  # like most texts, it is short: one byte holds its length
            self._unread -= 1
            return self._text(at + 1, self._data[at], end)
        length, start = self._length(at, end)
        return self._text(start, length, end)

    def _opaque(self, at: int, end: int) -> str | Number:
        self._take(at, 1, end)
        length, start = self._length(at + 1, end)
        self._take(start, length, end)
        value = opaque_value(self._data[at], self._data[start : start + length])
        if value is None:
            raise _malformed(at)
        return value

    def _length(self, at: int, end: int) -> tuple[int, int]:
        """Reads the length that is encoded at `at`. Returns it, and the offset of the first byte after the encoding.

        Each byte has 7 bits of the length, the lowest ones first. The highest bit of a byte is set if another byte
        follows.
        """
        length = 0
        for index in range(5):
            self._take(at + index, 1, end)
            byte = self._data[at + index]
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return length, at + index + 1
        raise _malformed(at)

    def _text(self, at: int, size: int, end: int) -> str:
        self._take(at, size, end)
        try:
            return self._data[at : at + size].decode()
        except UnicodeDecodeError as error:
            raise _malformed(at + error.start) from None

    def _take(self, at: int, size: int, end: int) -> None:
        """Counts `size` bytes as read.

        Raises ChangelogError (MALFORMED) if these bytes reach beyond `end`, or if more bytes were read in total than
        the document has.
        """
        self._unread -= size
        if at + size > end or self._unread < 0:
            raise _malformed(at)


def _inlined(kind: int, field: int, entry: int) -> Json:
    """Returns the value of an entry whose field holds the value itself instead of an offset."""
    if kind == _LITERAL:
        if field >= len(_LITERALS):
            raise _malformed(entry + 1)
        return _LITERALS[field]
    mask, sign = _MASKS[kind]
    return ((field & mask) ^ sign) - sign


def _malformed(offset: int) -> ChangelogError:
    return ChangelogError(Kind.MALFORMED, f"a value is not valid binary JSON: unexpected bytes at offset {offset}")
