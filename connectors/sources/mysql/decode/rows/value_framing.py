"""Finds out how many bytes a value takes in a row of the binary log.

Source: MySQL's `binary_log_funcs.cpp`, function `calc_field_size`; MariaDB's `rpl_utility.cc`.
"""

from dataclasses import dataclass

from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How the values of a column are stored.

    If all values have the same number of bytes, `size` is that number, and `prefix` is 0. Otherwise, each value comes
    after its length, `prefix` is how many bytes the length takes, and `size` is 0. The length is an unsigned
    little-endian number, and counts only the bytes after it.
    """

    size: int = 0
    prefix: int = 0


def framing(column: LogColumn) -> Framing:
    """Returns how the values of a column are stored.

    Raises ChangelogError (MALFORMED) for a type whose values are never in rows.
    """
    kind, meta = column.type, column.meta
    if kind in _FIXED:
        return Framing(size=_FIXED[kind])
    if kind in _SIZE_IN_METADATA:
        return Framing(size=meta)
    if kind in _PREFIX_IN_METADATA:
        return Framing(prefix=meta)
    if kind in _SHORT_OR_LONG:
        return Framing(prefix=1 if meta < 256 else 2)
    if kind in _BEFORE_FRACTION:
        return Framing(size=_BEFORE_FRACTION[kind] + (meta + 1) // 2)
    if kind == TypeCode.NEWDECIMAL:
        return Framing(size=_digits_size(column.precision - column.scale) + _digits_size(column.scale))
    if kind == TypeCode.BIT:
        return Framing(size=(column.bits + 7) // 8)
    problem = f"the binary log has values of the column {column.name}, whose type {kind} is never in rows"
    raise ChangelogError(Kind.MALFORMED, problem)


def _digits_size(digits: int) -> int:
    """Returns how many bytes `digits` decimal digits take: four for every nine digits, and fewer for the rest."""
    return digits // 9 * 4 + (digits % 9 + 1) // 2


_FIXED: dict[int, int] = {
    TypeCode.TINY: 1,
    TypeCode.SHORT: 2,
    TypeCode.INT24: 3,
    TypeCode.LONG: 4,
    TypeCode.LONGLONG: 8,
    TypeCode.YEAR: 1,
    TypeCode.DATE: 3,
    TypeCode.NEWDATE: 3,
    TypeCode.TIME: 3,
    TypeCode.DATETIME: 8,
    TypeCode.TIMESTAMP: 4,
}

_SIZE_IN_METADATA = frozenset({TypeCode.FLOAT, TypeCode.DOUBLE, TypeCode.ENUM, TypeCode.SET})

_PREFIX_IN_METADATA = frozenset(
    {
        TypeCode.TINY_BLOB,
        TypeCode.BLOB,
        TypeCode.MEDIUM_BLOB,
        TypeCode.LONG_BLOB,
        TypeCode.BLOB_COMPRESSED,
        TypeCode.JSON,
        TypeCode.GEOMETRY,
        TypeCode.VECTOR,
    }
)

_SHORT_OR_LONG = frozenset({TypeCode.STRING, TypeCode.VARCHAR, TypeCode.VAR_STRING, TypeCode.VARCHAR_COMPRESSED})

_BEFORE_FRACTION: dict[int, int] = {TypeCode.TIME2: 3, TypeCode.DATETIME2: 5, TypeCode.TIMESTAMP2: 4}
