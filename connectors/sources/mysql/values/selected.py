"""Makes the SQL that reads a column's values from a table, and the function that converts what the server sends.

The result is the text that the module `printed` makes of the same values in the binary log. The server sends the values
in its text protocol, and prints most of them as `printed` does. These are the exceptions:
- numbers that the server rounds or pads with zeros
- TIMESTAMPs, which the server prints without a zone
- types that the server prints as bytes
- texts with halves of surrogate pairs

Some doubles in JSON documents differ on MySQL 9, because `printed` writes them as MySQL 8.0 does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from changelog.connectors.sources.mysql.session.names import quoted
from changelog.connectors.sources.mysql.values import numbers, spatial
from changelog.connectors.sources.mysql.values.batches import batch_selected
from changelog.connectors.sources.mysql.values.batches.raw_columns import PrintColumn
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.text.charsets import clean
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, DECLARED, STRINGS, declared_type, unsupported
from changelog.envelope.errors import ChangelogError, Kind

IDLE_S = 31_536_000
"""The server ends a session after this many seconds without a query. Each session sets this limit itself, because the
server's own limit may be lower.
"""

SETTINGS = (
    "SET NAMES utf8mb4",
    "SET time_zone = '+00:00'",
    # This turns off all other modes, above all PAD_CHAR_TO_FULL_LENGTH and ANSI_QUOTES. ALLOW_INVALID_DATES stays on
    # because a key can be an invalid date, such as 2024-02-31.
    "SET sql_mode = 'ALLOW_INVALID_DATES'",
    f"SET sql_select_limit = 18446744073709551615, wait_timeout = {IDLE_S}",
)
"""The statements that a session executes before it reads rows."""

Convert = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A column of a query.

    `sql` is the SQL expression to select. `convert` turns the bytes that the server sends for a value other than NULL
    into the printed text; it raises ChangelogError (MALFORMED) for bytes that the server never sends. If `convert` is
    None, the bytes that the server sends are the printed text. `convert_column` does the same as `convert` for many
    values together; it is None if there is no such function.
    """

    sql: str
    convert: Convert | None
    convert_column: PrintColumn | None


Conversion = tuple[Convert | None, PrintColumn | None]
"""The members `convert` and `convert_column` of `Selected`."""


def selected(column: LogColumn) -> Selected:
    """Returns how to read a column: the expression that a query selects, and the conversion of the values.

    `column` must be from the catalogue (`catalog_columns`), so that `declared` is set: this says, for example, whether
    the server pads numbers with zeros.

    Raises ChangelogError (PRECONDITION) if the column's type cannot be published.
    """
    sql = quoted(column.name)
    if column.type in _FLOATING:
        sql = _DOUBLE.format(sql)
    convert, convert_column = _conversion(column)
    return Selected(sql=sql, convert=convert, convert_column=convert_column)


def _conversion(column: LogColumn) -> Conversion:
    if column.type in STRINGS:
        return _string(column)
    if column.type == TypeCode.YEAR:
        return _SHORT_YEAR if column.declared.startswith("year(2)") else _UNPADDED
    if column.type in _NUMBERS:
        return _UNPADDED if "zerofill" in column.declared else _AS_SENT
    if column.type == TypeCode.BIT:
        return numbers.bits(column.bits), batch_selected.bits(column.bits)
    if column.type in _CONVERSIONS:
        return _CONVERSIONS[TypeCode(column.type)]
    raise unsupported(column)


def _string(column: LogColumn) -> Conversion:
    declared = declared_type(column)
    if declared in DECLARED:
        return _DECLARED.get(declared, _AS_SENT)
    return _AS_SENT if column.collation in (None, BINARY) else _TEXT


def _floating(text: bytes, *, single: bool) -> bytes:
    try:
        value = float(text)
    except ValueError:
        raise ChangelogError(Kind.MALFORMED, "a FLOAT or DOUBLE is not a number") from None
    return numbers.floating(value, single=single)


def _unpadded(text: bytes) -> bytes:
    """Removes zeros at the beginning, but leaves at least one digit before the point."""
    whole, point, part = text.partition(b".")
    return (whole.lstrip(b"0") or b"0") + point + part


def _short_year(text: bytes) -> bytes:
    """Converts a year that MariaDB prints with two digits. It is one of the years 1970 to 2069."""
    if not text.isdigit():
        raise ChangelogError(Kind.MALFORMED, "a YEAR is not a number")
    return b"%d" % (int(text) + (2000 if int(text) < 70 else 1900))


def _utc(text: bytes) -> bytes:
    """Adds the zone to a TIMESTAMP, but not to the zero date."""
    return text if text.startswith(b"0000") else text + b"+00"


_DOUBLE = "/*M! IF({0} = 0 AND ATAN2({0}, -1) < 0, '-0', */ {0} * 1e0 /*M! ) */"
"""The server prints a FLOAT with only 6 digits. The product of the FLOAT and 1e0 is a DOUBLE, so it has all digits, and
it keeps the sign of -0.

MariaDB 11.8 prints -0 as 0, so the `/*M! … */` comments, which only MariaDB executes, add an expression that tests the
sign. MySQL must not execute that expression, because MySQL's IF, given a text and a number, prints the number with too
few digits.
"""

_AS_SENT: Conversion = None, None
_TEXT: Conversion = clean, batch_selected.texts
_UNPADDED: Conversion = _unpadded, batch_selected.without_zeros
_SHORT_YEAR: Conversion = _short_year, None
_IN_UTC: Conversion = _utc, batch_selected.in_utc
_VECTOR: Conversion = spatial.vector, None

_NUMBERS = frozenset(
    {
        TypeCode.TINY,
        TypeCode.SHORT,
        TypeCode.INT24,
        TypeCode.LONG,
        TypeCode.LONGLONG,
        TypeCode.NEWDECIMAL,
    }
)

_FLOATING = frozenset({TypeCode.FLOAT, TypeCode.DOUBLE})

_CONVERSIONS: Mapping[TypeCode, Conversion] = {
    TypeCode.FLOAT: (lambda text: _floating(text, single=True), batch_selected.floating(4)),
    TypeCode.DOUBLE: (lambda text: _floating(text, single=False), batch_selected.floating(8)),
    TypeCode.TIMESTAMP: _IN_UTC,
    TypeCode.TIMESTAMP2: _IN_UTC,
    TypeCode.ENUM: _TEXT,
    TypeCode.SET: _TEXT,
    TypeCode.GEOMETRY: (spatial.geometry, None),
    TypeCode.VECTOR: _VECTOR,
    TypeCode.DATE: _AS_SENT,
    TypeCode.NEWDATE: _AS_SENT,
    TypeCode.TIME: _AS_SENT,
    TypeCode.TIME2: _AS_SENT,
    TypeCode.DATETIME: _AS_SENT,
    TypeCode.DATETIME2: _AS_SENT,
    TypeCode.JSON: _AS_SENT,
}

_DECLARED: Mapping[str, Conversion] = {"json": _TEXT, "vector": _VECTOR}
