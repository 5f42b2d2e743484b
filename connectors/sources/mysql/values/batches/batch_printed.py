"""Chooses the function that converts many values of a column to text at once.

The texts must be the same as those of the module `printed`, which prints values one by one.
"""

from collections.abc import Callable, Mapping

from changelog.connectors.sources.mysql.values.batches import batch_numbers, batch_strings, batch_temporal
from changelog.connectors.sources.mysql.values.batches.raw_columns import PrintColumn
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.numbers import Printer
from changelog.connectors.sources.mysql.values.printed import COMPRESSED, DECLARED_PRINTERS, INTEGER_SIZES
from changelog.connectors.sources.mysql.values.text.charsets import to_utf8
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, STRINGS, declared_type

_DISTINCT_BYTES_MAX = 8


def column_printer(column: LogColumn, charsets: Mapping[int, str], size: int, printer: Printer) -> PrintColumn | None:
    """Returns a function that prints many values of a column at once; None if `printer` must print each value alone.

    `charsets` maps the ids of collations to the names of their character sets. `size` is the number of bytes of each
    value, or 0 if values have different sizes.
    """
    if column.type in INTEGER_SIZES:
        return batch_numbers.integer(INTEGER_SIZES[TypeCode(column.type)], unsigned=column.unsigned)
    if column.type in STRINGS:
        return _string(column, charsets)
    if column.type == TypeCode.NEWDECIMAL:
        return batch_numbers.decimal(column.precision, column.scale)
    if column.type in _FLOATING:
        return batch_numbers.floating(_FLOATING[TypeCode(column.type)])
    if column.type in _TEMPORAL:
        return _TEMPORAL[TypeCode(column.type)](column.meta)
    return batch_numbers.distinct(size, printer) if 0 < size <= _DISTINCT_BYTES_MAX else None


def _string(column: LogColumn, charsets: Mapping[int, str]) -> PrintColumn | None:
    if declared_type(column) in DECLARED_PRINTERS or column.type in COMPRESSED:
        return None
    fixed = column.type == TypeCode.STRING
    if column.collation in (None, BINARY):
        return batch_strings.binary(column.meta) if fixed else batch_strings.as_stored
    return batch_strings.text(to_utf8(column.collation, charsets), fixed=fixed)


_FLOATING: Mapping[TypeCode, int] = {TypeCode.FLOAT: 4, TypeCode.DOUBLE: 8}

_TEMPORAL: Mapping[TypeCode, Callable[[int], PrintColumn]] = {
    TypeCode.TIME2: batch_temporal.time,
    TypeCode.DATETIME2: batch_temporal.datetime_,
    TypeCode.TIMESTAMP2: batch_temporal.timestamp,
}
