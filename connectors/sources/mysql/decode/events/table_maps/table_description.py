"""Decodes the part of a table map that describes the table: names, types, and the optional metadata of columns.

Source: MySQL's `rows_event.h`, class `Table_map_event`, with `Optional_metadata_field_type`. Which columns an
optional field describes can depend on the server: see `dialect`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.table_maps.column_shapes import LoggedType, read_shape
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode

OFFSET = 27
"""Where the description begins in a table map: after the header, the table's id and the flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """A table as the log describes it. The indexes of columns begin with 0.

    - `width`: the number of columns. `columns` is None if the server does not log their names.
    - `primary_key`: the indexes of its columns, in the order of the key.
    - `invisible`: the indexes of the columns that `SELECT *` leaves out.
    - `geometry_types`: for each `GEOMETRY` column, in order, the number of its type; 0 is any geometry.
    """

    schema: str
    table: str
    width: int
    columns: tuple[LogColumn, ...] | None
    primary_key: tuple[int, ...] = ()
    invisible: frozenset[int] = frozenset()
    geometry_types: tuple[int, ...] = ()


@lru_cache(maxsize=1024)
def describe(body: bytes, dialect: Dialect) -> TableDescription:
    """Decodes `body`: the part of a table map that begins with the name of the database, without the checksum.

    Raises ChangelogError (MALFORMED) with the offset in the event.
    """
    cursor = Cursor(body, base=OFFSET)
    schema, table = read_names(cursor)
    shapes, nullable = _read_shapes(cursor)
    fields = _optional_fields(cursor)
    keys = list(_primary_key(fields, len(shapes)))
    return TableDescription(
        schema=schema,
        table=table,
        width=len(shapes),
        columns=_columns(cursor, shapes, nullable, fields, dialect),
        primary_key=tuple(keys),
        invisible=_invisible(fields, len(shapes)),
        geometry_types=tuple(_numbers(fields.get(_Field.GEOMETRY_TYPE))),
    )


def read_names(cursor: Cursor) -> tuple[str, str]:
    """Reads the names of the database and of the table."""
    schema = cursor.terminated(cursor.number(1))
    return schema, cursor.terminated(cursor.number(1))


class _Field(IntEnum):
    """The optional fields of a table map."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_LABELS = 5
    ENUM_LABELS = 6
    GEOMETRY_TYPE = 7
    PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    LABELS_DEFAULT_CHARSET = 10
    LABELS_COLUMN_CHARSET = 11
    VISIBILITY = 12


_Fields = dict[int, Cursor]

_NUMERIC = frozenset(
    {
        TypeCode.TINY,
        TypeCode.SHORT,
        TypeCode.INT24,
        TypeCode.LONG,
        TypeCode.LONGLONG,
        TypeCode.FLOAT,
        TypeCode.DOUBLE,
        TypeCode.NEWDECIMAL,
    }
)
_CHARACTER = frozenset(
    {
        TypeCode.STRING,
        TypeCode.VAR_STRING,
        TypeCode.VARCHAR,
        TypeCode.VARCHAR_COMPRESSED,
        TypeCode.TINY_BLOB,
        TypeCode.BLOB,
        TypeCode.MEDIUM_BLOB,
        TypeCode.LONG_BLOB,
        TypeCode.BLOB_COMPRESSED,
        TypeCode.VECTOR,
    }
)
"""The types of columns that always have a collation in the log; for `GEOMETRY`, see `Dialect`."""

_WITHOUT_TEXT = frozenset({TypeCode.GEOMETRY, TypeCode.VECTOR})
"""The types of columns that have a collation in the log, but no text."""

_LABELLED = frozenset({TypeCode.ENUM, TypeCode.SET})


def _read_shapes(cursor: Cursor) -> tuple[Sequence[LoggedType], Sequence[bool]]:
    """Reads the types of all columns, and whether each column may be null."""
    codes = cursor.take(cursor.length())
    metadata = cursor.part(cursor.length())
    shapes = [read_shape(code, metadata) for code in codes]
    metadata.finish("the metadata of the columns")
    return shapes, _low_bits_first(cursor.take((len(codes) + 7) // 8), len(codes))


def _low_bits_first(bitmap: bytes, count: int) -> Sequence[bool]:
    bits = int.from_bytes(bitmap, "little")
    return [bool(bits >> index & 1) for index in range(count)]


def _optional_fields(cursor: Cursor) -> _Fields:
    """Splits the optional metadata into its fields. Fields that are not known stay unread."""
    fields: _Fields = {}
    while cursor.left:
        begin = cursor.at
        kind = cursor.number(1)
        if kind in fields:
            raise cursor.malformed(f"the optional field {kind} twice", begin)
        fields[kind] = cursor.part(cursor.length())
    return fields


def _columns(
    cursor: Cursor, shapes: Sequence[LoggedType], nullable: Sequence[bool], fields: _Fields, dialect: Dialect
) -> tuple[LogColumn, ...] | None:
    """Returns the columns, or None if their names are not in the log."""
    if _Field.COLUMN_NAME not in fields:
        return None
    names = _names(fields[_Field.COLUMN_NAME], len(shapes))
    unsigned = _unsigned(cursor, shapes, fields, dialect)
    character = _CHARACTER | {TypeCode.GEOMETRY} if dialect.geometry_has_collation else _CHARACTER
    collations = _collations(cursor, shapes, fields, character)
    labels = _labels(cursor, shapes, fields)
    return tuple(
        LogColumn(
            name=name,
            type=shape.type,
            meta=shape.meta,
            nullable=nullable[index],
            unsigned=index in unsigned,
            collation=None if shape.type in _WITHOUT_TEXT else collations.get(index),
            labels=labels.get(index, ()),
        )
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
    )


def _of_types(shapes: Sequence[LoggedType], types: Iterable[int]) -> list[int]:
    """Returns the indexes of the columns with these types."""
    return [index for index, shape in enumerate(shapes) if shape.type in types]


def _required(cursor: Cursor, fields: _Fields, field: _Field) -> Cursor:
    """Returns a field. A table map with names must have every field that applies to one of its columns."""
    if field not in fields:
        raise cursor.malformed(f"a table map with names, but without the optional field {field}")
    return fields[field]


def _names(field: Cursor, width: int) -> Sequence[str]:
    names = [field.text(field.length()) for _ in range(width)]
    field.finish("the names of the columns")
    return names


def _unsigned(cursor: Cursor, shapes: Sequence[LoggedType], fields: _Fields, dialect: Dialect) -> set[int]:
    """Returns the indexes of the unsigned columns. SIGNEDNESS has a bit for each numeric column, high bits first.

    If it is not known whether a YEAR column has a bit, the bits are read in both ways. The ways that fit the field's
    size must then agree about all other columns.
    """
    without_years, with_years = _of_types(shapes, _NUMERIC), _of_types(shapes, _NUMERIC | {TypeCode.YEAR})
    if dialect.year_has_sign is not None:
        return _signs(cursor, fields, with_years if dialect.year_has_sign else without_years)
    size = fields[_Field.SIGNEDNESS].left if _Field.SIGNEDNESS in fields else 0
    possible = [columns for columns in (with_years, without_years) if (len(columns) + 7) // 8 == size]
    signs = [_signs(cursor, fields, columns) for columns in possible]
    if not signs or any(other & set(without_years) != signs[0] & set(without_years) for other in signs):
        raise cursor.malformed("sign bits of numeric columns, but does not show whether a YEAR column has one")
    return signs[0]


def _signs(cursor: Cursor, fields: _Fields, columns: Sequence[int]) -> set[int]:
    """Returns which of these columns are unsigned."""
    if not columns:
        return set()
    field = _required(cursor, fields, _Field.SIGNEDNESS).copy()
    bitmap = field.take((len(columns) + 7) // 8)
    field.finish("the signs of the numeric columns")
    return {column for position, column in enumerate(columns) if _high_bit(bitmap, position)}


def _high_bit(bitmap: bytes, position: int) -> bool:
    return bool(bitmap[position // 8] & 0x80 >> position % 8)


def _collations(
    cursor: Cursor, shapes: Sequence[LoggedType], fields: _Fields, character: Iterable[int]
) -> dict[int, int]:
    """Returns the collation of each column with text or labels, by the column's index.

    The collations of texts and those of labels are in different fields.
    """
    text = _listed_collations(
        cursor, fields, _of_types(shapes, character), _Field.DEFAULT_CHARSET, _Field.COLUMN_CHARSET
    )
    labels = _listed_collations(
        cursor, fields, _of_types(shapes, _LABELLED), _Field.LABELS_DEFAULT_CHARSET, _Field.LABELS_COLUMN_CHARSET
    )
    return text | labels


def _listed_collations(
    cursor: Cursor, fields: _Fields, columns: Sequence[int], default: _Field, single: _Field
) -> dict[int, int]:
    """Reads the collations of `columns`: either a common one and the exceptions from it, or one for each column."""
    if not columns:
        return {}
    if default not in fields:
        field = _required(cursor, fields, single)
        collations = {column: field.length() for column in columns}
        field.finish("the collations of the columns")
        return collations
    field = fields[default]
    common = field.length()
    collations = dict.fromkeys(columns, common)
    while field.left:
        position = _index(field, len(columns))
        collations[columns[position]] = field.length()
    return collations


def _labels(cursor: Cursor, shapes: Sequence[LoggedType], fields: _Fields) -> dict[int, tuple[bytes, ...]]:
    """Returns the labels of each ENUM column and each SET column, by the column's index."""
    labels: dict[int, tuple[bytes, ...]] = {}
    for kind, field_type in ((TypeCode.ENUM, _Field.ENUM_LABELS), (TypeCode.SET, _Field.SET_LABELS)):
        columns = _of_types(shapes, (kind,))
        if columns:
            field = _required(cursor, fields, field_type)
            labels |= {column: tuple(_label_list(field)) for column in columns}
            field.finish("the labels of the columns")
    return labels


def _label_list(field: Cursor) -> Iterator[bytes]:
    for _ in range(field.length()):
        yield field.take(field.length())


def _primary_key(fields: _Fields, width: int) -> Iterator[int]:
    """Yields the indexes of the primary key's columns, including columns of which the key has only a prefix."""
    simple, prefixed = fields.get(_Field.PRIMARY_KEY), fields.get(_Field.PRIMARY_KEY_WITH_PREFIX)
    while simple is not None and simple.left:
        yield _index(simple, width)
    while prefixed is not None and prefixed.left:
        yield _index(prefixed, width)
        prefixed.length()


def _index(field: Cursor, count: int) -> int:
    begin = field.at
    index = field.length()
    if index >= count:
        raise field.malformed(f"the column index {index} of only {count} columns", begin)
    return index


def _invisible(fields: _Fields, width: int) -> frozenset[int]:
    field = fields.get(_Field.VISIBILITY)
    if field is None:
        return frozenset()
    bitmap = field.take((width + 7) // 8)
    field.finish("the visibility of the columns")
    return frozenset(index for index in range(width) if not _high_bit(bitmap, index))


def _numbers(field: Cursor | None) -> Iterator[int]:
    while field is not None and field.left:
        yield field.length()
