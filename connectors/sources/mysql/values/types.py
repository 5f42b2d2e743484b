"""Chooses the codec of a column. A codec converts the printed text of a value to its published form.

The printed text of a value is the same whether it was read from the binary log (`printed`) or from the table
(`selected`). `docs/reference/types.md` tells users how each type is published.
"""

import binascii
from collections.abc import Mapping

from changelog.connectors.capture.rows.codec import Codec, Shape, plain, raw, string, timestamp, timestamptz
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.spatial import GEOMETRY_TYPE, VECTOR_TYPE
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope import canonical
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Decimal, Primitive

BINARY = 63
"""The id of the collation of columns whose values are bytes and not text."""

OLD_FORMAT = "/* mariadb-5.3 */"
"""MariaDB prints this after the type of a column whose times are stored in the older layout."""

_BIGINT_UNSIGNED_DIGITS = 20


def codec_for(column: LogColumn) -> Codec:
    """Returns the codec of a column.

    Raises ChangelogError (PRECONDITION) for the types that no published column can have.
    """
    if lacks_size(column.declared):
        raise unsupported(column)
    if column.type in STRINGS and declared_type(column) in DECLARED:
        return DECLARED[declared_type(column)]
    match column.type:
        case TypeCode.LONG:
            return _LONG if column.unsigned else _INT
        case TypeCode.LONGLONG:
            return _UNSIGNED_BIGINT if column.unsigned else _LONG
        case TypeCode.NEWDECIMAL:
            decimal = Decimal(precision=column.precision, scale=column.scale)
            return Codec(shape=Shape.PLAIN, to_json=plain, column_type=decimal)
        case code if code in STRINGS:
            return _BYTES if column.collation in (None, BINARY) else _TEXT
        case code if code in _CODECS:
            return _CODECS[TypeCode(code)]
    raise unsupported(column)


def declared_type(column: LogColumn) -> str:
    """Returns the name of the declared type without its length, such as `uuid` or `vector`."""
    return column.declared.partition("(")[0]


def lacks_size(declared: str) -> bool:
    """Returns whether the log hides how many bytes the values of a declared type have.

    The log does so for times with a fraction in MariaDB's older layout. The columns after such a column cannot be read
    either, because nobody knows where they begin.
    """
    return declared.endswith(OLD_FORMAT) and "(" in declared


def unsupported(column: LogColumn) -> ChangelogError:
    """Returns the error (PRECONDITION) of a column whose type cannot be published."""
    return ChangelogError(
        Kind.PRECONDITION,
        f"column {column.name} has the type {column.declared or column.type}, which cannot be published",
        hint="leave the column out of the entity",
    )


def base64(text: bytes) -> bytes:
    """Returns the base64 of bytes, as a JSON string."""
    return plain(binascii.b2a_base64(text, newline=False))


def embedded(text: bytes) -> bytes:
    """Returns `text` as it is if it is JSON; any other text becomes a JSON string.

    MariaDB does not always check that a `json` column has JSON.
    """
    try:
        canonical.parse(text)
    except ChangelogError:
        return string(text)
    return text


STRINGS = frozenset(
    {
        TypeCode.BLOB,
        TypeCode.BLOB_COMPRESSED,
        TypeCode.LONG_BLOB,
        TypeCode.MEDIUM_BLOB,
        TypeCode.STRING,
        TypeCode.TINY_BLOB,
        TypeCode.VARCHAR,
        TypeCode.VARCHAR_COMPRESSED,
        TypeCode.VAR_STRING,
    }
)
"""The types whose values are text or bytes; only the collation says which of the two."""

_TEXT = Codec(shape=Shape.TEXT, to_json=string, column_type=Primitive.STRING)
_BYTES = Codec(shape=Shape.OTHER, to_json=base64, column_type=Primitive.BYTES)
_INT = Codec(shape=Shape.RAW, to_json=raw, column_type=Primitive.INT)
_LONG = Codec(shape=Shape.RAW, to_json=raw, column_type=Primitive.LONG)
_DATE = Codec(shape=Shape.PLAIN, to_json=plain, column_type=Primitive.DATE)
_TIME = Codec(shape=Shape.PLAIN, to_json=plain, column_type=Primitive.TIME)
_DATETIME = Codec(shape=Shape.TIMESTAMP, to_json=timestamp, column_type=Primitive.TIMESTAMP)
_TIMESTAMP = Codec(shape=Shape.TIMESTAMPTZ, to_json=timestamptz, column_type=Primitive.TIMESTAMP_TZ)
_PLAIN = Codec(shape=Shape.PLAIN, to_json=plain, column_type=Primitive.STRING)
_UNSIGNED_BIGINT = Codec(
    shape=Shape.PLAIN, to_json=plain, column_type=Decimal(precision=_BIGINT_UNSIGNED_DIGITS, scale=0)
)

_VECTOR = Codec(shape=Shape.RAW, to_json=raw, column_type=VECTOR_TYPE)

_CODECS: Mapping[TypeCode, Codec] = {
    TypeCode.TINY: _INT,
    TypeCode.SHORT: _INT,
    TypeCode.INT24: _INT,
    TypeCode.YEAR: _INT,
    TypeCode.FLOAT: Codec(shape=Shape.RAW, to_json=raw, column_type=Primitive.FLOAT),
    TypeCode.DOUBLE: Codec(shape=Shape.RAW, to_json=raw, column_type=Primitive.DOUBLE),
    TypeCode.DATE: _DATE,
    TypeCode.NEWDATE: _DATE,
    TypeCode.TIME: _TIME,
    TypeCode.TIME2: _TIME,
    TypeCode.DATETIME: _DATETIME,
    TypeCode.DATETIME2: _DATETIME,
    TypeCode.TIMESTAMP: _TIMESTAMP,
    TypeCode.TIMESTAMP2: _TIMESTAMP,
    TypeCode.BIT: _PLAIN,
    TypeCode.ENUM: _TEXT,
    TypeCode.SET: _TEXT,
    TypeCode.JSON: Codec(shape=Shape.RAW, to_json=raw, column_type=Primitive.JSON),
    TypeCode.GEOMETRY: Codec(shape=Shape.RAW, to_json=raw, column_type=GEOMETRY_TYPE),
    TypeCode.VECTOR: _VECTOR,
}

DECLARED: Mapping[str, Codec] = {
    "uuid": Codec(shape=Shape.PLAIN, to_json=plain, column_type=Primitive.UUID),
    "inet4": _PLAIN,
    "inet6": _PLAIN,
    "json": Codec(shape=Shape.OTHER, to_json=embedded, column_type=Primitive.JSON),
    "vector": _VECTOR,
}
"""The codecs of MariaDB's types that look like other types in the log; only the catalogue tells them apart. The keys
are results of `declared_type`.
"""
