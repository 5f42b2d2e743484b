"""Converts a row of `information_schema.COLUMNS` to the form in which the binary log describes a column.

The source needs this form when it reads a table without the log. Some members differ from those that the log gives:

- `labels` are missing, because queries return the values of an ENUM or a SET as labels, not as numbers.
- `unsigned` of a YEAR is false, although MariaDB's log sets it.
- The `type` of a vector of MariaDB is `VECTOR`, although it is `VARCHAR` in MariaDB's log.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.connectors.sources.mysql.values.types import BINARY, OLD_FORMAT
from changelog.envelope.errors import ChangelogError, Kind


class CatalogColumn(NamedTuple):
    """The fields of `information_schema.COLUMNS` that `FIELDS` names.

    `column_type` is `json` for a `json` column of MariaDB, although its `data_type` is `longtext`. `octet_length` is
    the maximum length of a value in bytes. The last four fields are None for types to which they do not apply.
    """

    name: str
    data_type: str
    column_type: str
    nullable: str
    collation: str | None
    octet_length: int | None
    precision: int | None
    scale: int | None
    fraction_digits: int | None


FIELDS = (
    "COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLLATION_NAME, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION,"
    " NUMERIC_SCALE, DATETIME_PRECISION"
)

COLLATIONS: Mapping[Flavour, str] = {
    Flavour.MYSQL: "SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS",
    Flavour.MARIADB: ("SELECT FULL_COLLATION_NAME, ID FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"),
}
"""The queries that list the collations: their names, as in `CatalogColumn.collation`, and their ids."""

_LABEL = re.compile(r"'(?:[^']|'')*'")
_COMPRESSED = "COMPRESSED*/"
_LABELS_IN_ONE_BYTE = 255
_SET_SIZES = (1, 2, 3, 4, 8)


def column_of(row: CatalogColumn, collations: Mapping[str, int]) -> LogColumn:
    """Returns the column as the log describes it, but without its `labels`.

    `collations` maps the names of collations to their ids. Raises ChangelogError (PRECONDITION) if the type is not
    known.
    """
    if row.data_type not in _SHAPES:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"column {row.name} has the type {row.column_type}, which is not known",
            hint="leave the column out of the entity",
        )
    code, meta = _SHAPES[row.data_type]
    return LogColumn(
        name=row.name,
        type=_stored(code, row.column_type),
        meta=meta(row),
        nullable=row.nullable == "YES",
        unsigned=" unsigned" in row.column_type,
        collation=_collation(row, code, collations),
        declared=row.column_type,
    )


def _stored(code: TypeCode, column_type: str) -> TypeCode:
    """Returns the code of the layout in which the server stores the column's values.

    MariaDB has layouts of its own for compressed columns, and for dates and times in the old format.
    """
    if column_type.endswith(_COMPRESSED):
        return _COMPRESSED_CODES[code]
    return _OLD_CODES[code] if column_type.endswith(OLD_FORMAT) else code


def _collation(row: CatalogColumn, code: TypeCode, collations: Mapping[str, int]) -> int | None:
    if row.collation is not None:
        return collations[row.collation]
    return BINARY if code in _WITH_COLLATION else None


def _nothing(_: CatalogColumn) -> int:
    return 0


def _always(meta: int) -> Callable[[CatalogColumn], int]:
    return lambda _: meta


def _octets(row: CatalogColumn) -> int:
    return row.octet_length or 0


def _varchar_octets(row: CatalogColumn) -> int:
    """Returns the maximum length of a value. In a compressed column, this includes the first byte, which says how the
    value is compressed.
    """
    return _octets(row) + row.column_type.endswith(_COMPRESSED)


def _digits(row: CatalogColumn) -> int:
    return (row.precision or 0) | (row.scale or 0) << 8


def _bits(row: CatalogColumn) -> int:
    whole, rest = divmod(row.precision or 0, 8)
    return rest | whole << 8


def _fraction(row: CatalogColumn) -> int:
    return 0 if row.column_type.endswith(OLD_FORMAT) else row.fraction_digits or 0


def _enum_size(row: CatalogColumn) -> int:
    return 1 if len(_LABEL.findall(row.column_type)) <= _LABELS_IN_ONE_BYTE else 2


def _set_size(row: CatalogColumn) -> int:
    bits = len(_LABEL.findall(row.column_type))
    return next(size for size in _SET_SIZES if 8 * size >= bits)


_OLD_CODES = {
    TypeCode.TIME2: TypeCode.TIME,
    TypeCode.DATETIME2: TypeCode.DATETIME,
    TypeCode.TIMESTAMP2: TypeCode.TIMESTAMP,
}
_COMPRESSED_CODES = {TypeCode.VARCHAR: TypeCode.VARCHAR_COMPRESSED, TypeCode.BLOB: TypeCode.BLOB_COMPRESSED}
_WITH_COLLATION = frozenset({TypeCode.STRING, TypeCode.VARCHAR, TypeCode.BLOB, TypeCode.ENUM, TypeCode.SET})

_SHAPES: Mapping[str, tuple[TypeCode, Callable[[CatalogColumn], int]]] = {
    name: (code, meta)
    for code, meta, names in (
        (TypeCode.TINY, _nothing, "tinyint"),
        (TypeCode.SHORT, _nothing, "smallint"),
        (TypeCode.INT24, _nothing, "mediumint"),
        (TypeCode.LONG, _nothing, "int"),
        (TypeCode.LONGLONG, _nothing, "bigint"),
        (TypeCode.FLOAT, _always(4), "float"),
        (TypeCode.DOUBLE, _always(8), "double"),
        (TypeCode.NEWDECIMAL, _digits, "decimal"),
        (TypeCode.YEAR, _nothing, "year"),
        (TypeCode.BIT, _bits, "bit"),
        (TypeCode.DATE, _nothing, "date"),
        (TypeCode.TIME2, _fraction, "time"),
        (TypeCode.DATETIME2, _fraction, "datetime"),
        (TypeCode.TIMESTAMP2, _fraction, "timestamp"),
        (TypeCode.STRING, _octets, "char binary"),
        (TypeCode.STRING, _always(16), "uuid inet6"),
        (TypeCode.STRING, _always(4), "inet4"),
        (TypeCode.VARCHAR, _varchar_octets, "varchar varbinary"),
        (TypeCode.BLOB, _always(1), "tinyblob tinytext"),
        (TypeCode.BLOB, _always(2), "blob text"),
        (TypeCode.BLOB, _always(3), "mediumblob mediumtext"),
        (TypeCode.BLOB, _always(4), "longblob longtext"),
        (TypeCode.ENUM, _enum_size, "enum"),
        (TypeCode.SET, _set_size, "set"),
        (TypeCode.JSON, _always(4), "json"),
        (TypeCode.VECTOR, _always(4), "vector"),
        (TypeCode.GEOMETRY, _always(4), "geometry point linestring polygon"),
        (TypeCode.GEOMETRY, _always(4), "multipoint multilinestring multipolygon geomcollection geometrycollection"),
    )
    for name in names.split()
}
"""For each `DATA_TYPE`, the column's type in the log, and the function that returns the column's metadata."""
