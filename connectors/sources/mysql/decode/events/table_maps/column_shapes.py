"""Reads the types of a table map's columns, and the metadata that belongs to each type."""

from collections.abc import Callable
from typing import NamedTuple

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.values.type_codes import TypeCode


class LoggedType(NamedTuple):
    """The type and the metadata of a column, with the meanings that `LogColumn` gives them."""

    type: int
    meta: int


def read_shape(code: int, cursor: Cursor) -> LoggedType:
    """Reads the metadata of a column whose type is stored as `code`.

    Raises ChangelogError (MALFORMED) if the type is not known, or if the metadata is impossible for it.
    """
    begin = cursor.at
    if code in _STRINGS:
        return _string(cursor)
    if code == TypeCode.TYPED_ARRAY:
        return _typed_array(cursor)
    if code in _WITHOUT_METADATA:
        return LoggedType(code, 0)
    if code not in _METADATA:
        raise cursor.malformed(f"a column of the unknown type {code}")
    size, possible = _METADATA[code]
    meta = cursor.number(size)
    if not possible(meta):
        raise cursor.malformed(f"the metadata {meta} for a column of the type {TypeCode(code).name}", begin)
    return LoggedType(code, meta)


def _string(cursor: Cursor) -> LoggedType:
    """Reads the metadata of a `STRING`: a byte with the true type, and a byte with the length.

    Bits 8 and 9 of the length are in bits 4 and 5 of the first byte, inverted.
    """
    begin = cursor.at
    first, length = cursor.number(1), cursor.number(1)
    true_type = first | 0x30
    if true_type == TypeCode.STRING:
        return LoggedType(true_type, length | ((first & 0x30) ^ 0x30) << 4)
    if first not in _SIZES_OF_NUMBERS or length not in _SIZES_OF_NUMBERS[first]:
        raise cursor.malformed(f"a string column of the type {first} and the length {length}", begin)
    return LoggedType(first, length)


def _typed_array(cursor: Cursor) -> LoggedType:
    """Skips the metadata of an array: the type of its elements, and the metadata of this type. Neither is needed."""
    element = cursor.number(1)
    if element == TypeCode.VARCHAR:
        cursor.skip(3)
    else:
        read_shape(element, cursor)
    return LoggedType(TypeCode.TYPED_ARRAY, 0)


def _is_decimal(meta: int) -> bool:
    precision, scale = meta & 0xFF, meta >> 8
    return 1 <= precision <= 65 and scale <= min(precision, 38)


def _is_bit(meta: int) -> bool:
    rest, whole = meta & 0xFF, meta >> 8
    return rest < 8 and 1 <= whole * 8 + rest <= 64


def _is_prefix(meta: int) -> bool:
    return 1 <= meta <= 4


def _is_varchar_length(meta: int) -> bool:
    return meta <= 0xFFFF


def _is_fraction(meta: int) -> bool:
    return meta <= 6


_STRINGS = frozenset({TypeCode.STRING, TypeCode.ENUM, TypeCode.SET})
"""For these three types, the server writes `STRING` as the type; the metadata says whether it is an `ENUM` or a `SET`.
"""

_SIZES_OF_NUMBERS: dict[int, frozenset[int]] = {
    TypeCode.ENUM: frozenset({1, 2}),
    TypeCode.SET: frozenset({1, 2, 3, 4, 8}),
}
"""These types store values as numbers. For each type, the set has the sizes in bytes that such a number can have."""

_WITHOUT_METADATA = frozenset(
    {
        TypeCode.TINY,
        TypeCode.SHORT,
        TypeCode.INT24,
        TypeCode.LONG,
        TypeCode.LONGLONG,
        TypeCode.YEAR,
        TypeCode.DATE,
        TypeCode.NEWDATE,
        TypeCode.TIME,
        TypeCode.DATETIME,
        TypeCode.TIMESTAMP,
    }
)

_METADATA: dict[int, tuple[int, Callable[[int], bool]]] = {
    TypeCode.FLOAT: (1, lambda meta: meta == 4),
    TypeCode.DOUBLE: (1, lambda meta: meta == 8),
    TypeCode.NEWDECIMAL: (2, _is_decimal),
    TypeCode.BIT: (2, _is_bit),
    TypeCode.VARCHAR: (2, _is_varchar_length),
    TypeCode.VAR_STRING: (2, _is_varchar_length),
    TypeCode.VARCHAR_COMPRESSED: (2, _is_varchar_length),
    TypeCode.TIME2: (1, _is_fraction),
    TypeCode.DATETIME2: (1, _is_fraction),
    TypeCode.TIMESTAMP2: (1, _is_fraction),
    TypeCode.TINY_BLOB: (1, _is_prefix),
    TypeCode.BLOB: (1, _is_prefix),
    TypeCode.MEDIUM_BLOB: (1, _is_prefix),
    TypeCode.LONG_BLOB: (1, _is_prefix),
    TypeCode.BLOB_COMPRESSED: (1, _is_prefix),
    TypeCode.JSON: (1, _is_prefix),
    TypeCode.GEOMETRY: (1, _is_prefix),
    TypeCode.VECTOR: (1, _is_prefix),
}
"""For each type, the size of its metadata in bytes, and a function that says whether a number is possible metadata."""
