"""Converts the values of a column from their bytes in the binary log to text (*prints* them).

The printed text of a value is what its codec (`types.codec_for`) converts to JSON. It is the text that the server
prints in the result of a query, except in the cases that `selected` lists.
"""

from collections.abc import Callable, Mapping

from changelog.connectors.sources.mysql.values import numbers, spatial, strings, temporal
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.documents.json_text import json_text
from changelog.connectors.sources.mysql.values.numbers import Printer
from changelog.connectors.sources.mysql.values.text.charsets import to_utf8
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, STRINGS, declared_type, unsupported


def printer_for(column: LogColumn, charsets: Mapping[int, str]) -> Printer:
    """Returns the printer of a column's values.

    `charsets` maps the ids of collations to the names of their character sets. Raises ChangelogError (PRECONDITION) if
    the type or the character set of the column is not supported.
    """
    if column.type in INTEGER_SIZES:
        return numbers.integer(INTEGER_SIZES[TypeCode(column.type)], unsigned=column.unsigned)
    if column.type in STRINGS:
        return _string(column, charsets)
    if column.type in _WITH_METADATA:
        return _WITH_METADATA[TypeCode(column.type)](column.meta)
    match column.type:
        case TypeCode.NEWDECIMAL:
            return numbers.decimal(column.precision, column.scale)
        case TypeCode.BIT:
            return numbers.bits(column.bits)
        case TypeCode.ENUM:
            return strings.enum(column.meta, column.labels, to_utf8(column.collation, charsets))
        case TypeCode.SET:
            return strings.set_(column.meta, column.labels, to_utf8(column.collation, charsets))
        case code if code in _FIXED:
            return _FIXED[TypeCode(code)]
    raise unsupported(column)


def _string(column: LogColumn, charsets: Mapping[int, str]) -> Printer:
    if declared_type(column) in DECLARED_PRINTERS:
        return DECLARED_PRINTERS[declared_type(column)]
    fixed = column.type == TypeCode.STRING
    if column.collation in (None, BINARY):
        printer = strings.binary(column.meta) if fixed else bytes
    else:
        printer = (strings.char if fixed else strings.text)(to_utf8(column.collation, charsets))
    return strings.compressed(printer) if column.type in COMPRESSED else printer


COMPRESSED = frozenset({TypeCode.BLOB_COMPRESSED, TypeCode.VARCHAR_COMPRESSED})

INTEGER_SIZES: Mapping[TypeCode, int] = {
    TypeCode.TINY: 1,
    TypeCode.SHORT: 2,
    TypeCode.INT24: 3,
    TypeCode.LONG: 4,
    TypeCode.LONGLONG: 8,
}

_WITH_METADATA: Mapping[TypeCode, Callable[[int], Printer]] = {
    TypeCode.TIME2: temporal.time,
    TypeCode.DATETIME2: temporal.datetime_,
    TypeCode.TIMESTAMP2: temporal.timestamp,
}

_FIXED: Mapping[TypeCode, Printer] = {
    TypeCode.YEAR: numbers.year,
    TypeCode.FLOAT: numbers.single,
    TypeCode.DOUBLE: numbers.double,
    TypeCode.DATE: temporal.date,
    TypeCode.NEWDATE: temporal.date,
    TypeCode.TIME: temporal.old_time,
    TypeCode.DATETIME: temporal.old_datetime,
    TypeCode.TIMESTAMP: temporal.old_timestamp,
    TypeCode.JSON: json_text,
    TypeCode.GEOMETRY: spatial.geometry,
    TypeCode.VECTOR: spatial.vector,
}

DECLARED_PRINTERS: Mapping[str, Printer] = {
    "uuid": strings.uuid,
    "inet4": strings.inet4,
    "inet6": strings.inet6,
    "vector": spatial.vector,
}
"""The printers of MariaDB's types that look like other types in the log; only the catalogue tells them apart.
MariaDB's `json` is not among them: it is a text in the log, and is printed like any other text.
"""
