"""Draws random tables and rows, and encodes them as the binary log does. Uses no code of the decoder for this."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from changelog.connectors.capture.rows.row_change import UNCHANGED
from changelog.connectors.capture.rows.row_change import Unchanged as UnchangedType
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import TableMap
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from tests.unit.mysql.binlog_encoder import number, text
from tests.unit.mysql.reading import header

DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""DECIMAL_BYTES[N] is the number of bytes that N decimal digits take; N is 0 to 9."""

NUMERIC = {1, 2, 3, 4, 5, 8, 9, 246}
CHARACTER = {15, 140, 141, 242, 249, 250, 251, 252, 254}
GEOMETRY, ENUM, SET, YEAR = 255, 247, 248, 13


@dataclass(frozen=True, slots=True)
class Kind:
    """A column of a random type. If `prefix` is 0, its values have `size` bytes. Otherwise, `prefix` bytes before each
    value say how long the value is.
    """

    column: LogColumn
    prefix: int = 0
    size: int = 0


def column(code: TypeCode, meta: int = 0) -> LogColumn:
    return LogColumn(name="", type=code, meta=meta, nullable=True)


def digits_bytes(digits: int) -> int:
    return digits // 9 * 4 + DECIMAL_BYTES[digits % 9]


def decimal(precision: int, scale: int) -> Kind:
    scale = min(precision, scale)
    meta = precision | scale << 8
    return Kind(column(TypeCode.NEWDECIMAL, meta), size=digits_bytes(precision - scale) + digits_bytes(scale))


def temporal(code: TypeCode, digits: int) -> Kind:
    base = {TypeCode.TIME2: 3, TypeCode.DATETIME2: 5, TypeCode.TIMESTAMP2: 4}[code]
    return Kind(column(code, digits), size=base + (0, 1, 1, 2, 2, 3, 3)[digits])


def short_or_long(code: TypeCode, length: int) -> Kind:
    return Kind(column(code, length), prefix=2 if length > 255 else 1)


FIXED = {
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
SIZES_AS_META = {TypeCode.FLOAT: (4,), TypeCode.DOUBLE: (8,), TypeCode.ENUM: (1, 2), TypeCode.SET: (1, 2, 3, 4, 8)}
BLOBS = (
    TypeCode.TINY_BLOB,
    TypeCode.BLOB,
    TypeCode.MEDIUM_BLOB,
    TypeCode.LONG_BLOB,
    TypeCode.BLOB_COMPRESSED,
    TypeCode.JSON,
    TypeCode.GEOMETRY,
    TypeCode.VECTOR,
)
VARCHARS = (TypeCode.VARCHAR, TypeCode.VARCHAR_COMPRESSED)
TEMPORALS = (TypeCode.TIME2, TypeCode.DATETIME2, TypeCode.TIMESTAMP2)

kinds = st.one_of(
    st.sampled_from([Kind(column(code), size=size) for code, size in FIXED.items()]),
    st.sampled_from([Kind(column(code, size), size=size) for code, sizes in SIZES_AS_META.items() for size in sizes]),
    st.builds(decimal, st.integers(1, 65), st.integers(0, 30)),
    st.builds(temporal, st.sampled_from(TEMPORALS), st.integers(0, 6)),
    st.integers(1, 64).map(lambda bits: Kind(column(TypeCode.BIT, bits // 8 << 8 | bits % 8), size=(bits + 7) // 8)),
    st.builds(short_or_long, st.sampled_from(VARCHARS), st.integers(0, 65535)),
    st.builds(short_or_long, st.just(TypeCode.STRING), st.integers(0, 1023)),
    st.builds(lambda code, width: Kind(column(code, width), prefix=width), st.sampled_from(BLOBS), st.integers(1, 4)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A random table.

    - `prefixed` says that its table map gives the length of a prefix for each column of the primary key.
    - `listed` says that its table map lists the collations of all columns. Otherwise, the table map has a default
      collation, and lists only the columns with another one.
    """

    dialect: Dialect
    schema: str
    name: str
    kinds: tuple[Kind, ...]
    primary_key: tuple[int, ...]
    prefixed: bool
    invisible: frozenset[int]
    geometry_types: tuple[int, ...]
    listed: bool

    @property
    def columns(self) -> tuple[LogColumn, ...]:
        return tuple(kind.column for kind in self.kinds)


names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)


MYSQL_8 = Dialect(geometry_has_collation=False, year_has_sign=False)
dialects = st.sampled_from([MYSQL_8, MYSQL_8._replace(year_has_sign=True), Dialect.of("11.4.5-MariaDB")])


@st.composite
def tables(draw: st.DrawFn) -> Table:
    dialect = draw(dialects)
    columns = tuple(draw(complete_kinds(kind, dialect)) for kind in draw(st.lists(kinds, max_size=12)))
    indexes = st.integers(0, max(0, len(columns) - 1))
    geometries = sum(kind.column.type == GEOMETRY for kind in columns)
    return Table(
        dialect=dialect,
        schema=draw(names),
        name=draw(names),
        kinds=columns,
        primary_key=tuple(draw(st.lists(indexes, unique=True, max_size=3))) if columns else (),
        prefixed=draw(st.booleans()),
        invisible=frozenset(draw(st.sets(indexes))) if columns else frozenset(),
        geometry_types=tuple(draw(st.lists(st.integers(0, 7), min_size=geometries, max_size=geometries))),
        listed=draw(st.booleans()),
    )


@st.composite
def complete_kinds(draw: st.DrawFn, kind: Kind, dialect: Dialect) -> Kind:
    """Gives a column a random name. Also draws its other properties, such as a collation, if its type has them."""
    code = kind.column.type
    numeric = code in NUMERIC or (dialect.year_has_sign is True and code == YEAR)
    has_text = code in CHARACTER | {ENUM, SET} and code != TypeCode.VECTOR
    labels = draw(st.lists(st.binary(max_size=4), max_size=3)) if code in (ENUM, SET) else ()
    complete = replace(
        kind.column,
        name=draw(names),
        nullable=draw(st.booleans()),
        unsigned=numeric and draw(st.booleans()),
        collation=draw(st.integers(1, 70_000)) if has_text else None,
        labels=tuple(labels),
    )
    return replace(kind, column=complete)


def table_body(table: Table) -> bytes:
    """Encodes the part of a table map that comes after its flags."""
    columns = table.columns
    codes = bytes(TypeCode.STRING if column.type in (ENUM, SET) else column.type for column in columns)
    nullable = bits((column.nullable for column in columns), low_first=True)
    return (
        b"".join(text(name.encode()) + b"\0" for name in (table.schema, table.name))
        + text(codes)
        + text(b"".join(map(metadata, columns)))
        + nullable
        + b"".join(bytes([kind]) + text(content) for kind, content in optional(table))
    )


def metadata(column: LogColumn) -> bytes:
    code, meta = column.type, column.meta
    if code == TypeCode.STRING:
        return bytes([code ^ (meta & 0x300) >> 4, meta & 0xFF])
    if code in (ENUM, SET):
        return bytes([code, meta])
    if code in (TypeCode.NEWDECIMAL, TypeCode.BIT, *VARCHARS):
        return struct.pack("<H", meta)
    return b"" if code in FIXED else bytes([meta])


def bits(flags: Iterable[bool], *, low_first: bool) -> bytes:
    """Packs flags into bytes. The first flag of a byte is its lowest bit if `low_first` is true, else its highest."""
    content = bytearray()
    for position, flag in enumerate(flags):
        if position % 8 == 0:
            content.append(0)
        if flag:
            content[-1] |= 1 << position % 8 if low_first else 0x80 >> position % 8
    return bytes(content)


def optional(table: Table) -> Iterator[tuple[int, bytes]]:
    """Yields the optional fields in the order in which servers write them. The last field has an unknown type."""
    columns = table.columns
    numeric = NUMERIC | {YEAR} if table.dialect.year_has_sign else NUMERIC
    character = CHARACTER | {GEOMETRY} if table.dialect.geometry_has_collation else CHARACTER
    signs = [column.unsigned for column in columns if column.type in numeric]
    if signs:
        yield 1, bits(signs, low_first=False)
    yield from collations([column for column in columns if column.type in character], table, 2)
    yield 4, b"".join(text(column.name.encode()) for column in columns)
    for field, code in ((5, SET), (6, ENUM)):
        labelled = [column.labels for column in columns if column.type == code]
        if labelled:
            yield field, b"".join(number(len(labels)) + b"".join(map(text, labels)) for labels in labelled)
    if table.geometry_types:
        yield 7, b"".join(map(number, table.geometry_types))
    if table.primary_key:
        key = b"".join(number(index) + (b"\3" if table.prefixed else b"") for index in table.primary_key)
        yield 9 if table.prefixed else 8, key
    yield from collations([column for column in columns if column.type in (ENUM, SET)], table, 10)
    yield 12, bits((index not in table.invisible for index in range(len(columns))), low_first=False)
    yield 99, b"a field of later versions"


def collations(columns: Sequence[LogColumn], table: Table, default_field: int) -> Iterator[tuple[int, bytes]]:
    """Yields the field with the collations of `columns`, or nothing if there are no columns. For a column without a
    collation, servers write 63.
    """
    ids = [63 if column.collation is None else column.collation for column in columns]
    if not ids:
        return
    if table.listed:
        yield default_field + 1, b"".join(map(number, ids))
        return
    exceptions = b"".join(
        number(position) + number(collation) for position, collation in enumerate(ids) if collation != ids[0]
    )
    yield default_field, number(ids[0]) + exceptions


Row = tuple[bytes | UnchangedType | None, ...]
"""A row has an item for each column of its table: the bytes of the value, None for NULL, or UNCHANGED if the row lacks
the column.
"""


def values(kind: Kind) -> st.SearchStrategy[bytes]:
    """Draws values of a column."""
    if kind.prefix:
        return st.binary(max_size=min(300, 256**kind.prefix - 1))
    return st.binary(min_size=kind.size, max_size=kind.size)


def rows(table: Table, present: frozenset[int]) -> st.SearchStrategy[Row]:
    """Draws rows that have only the columns `present`."""
    return st.tuples(
        *(
            st.none() | values(kind) if index in present else st.just(UNCHANGED)
            for index, kind in enumerate(table.kinds)
        )
    )


def encode_row(table: Table, row: Row) -> bytes:
    """Encodes a row. It begins with a bit for each column that the row has, which is 1 if the value is null. Then come
    the values that are not null.
    """
    content = bits((value is None for value in row if value is not UNCHANGED), low_first=True)
    for kind, value in zip(table.kinds, row, strict=True):
        if isinstance(value, bytes):
            content += (len(value).to_bytes(kind.prefix, "little") if kind.prefix else b"") + value
    return content


def table_map(content: bytes, dialect: Dialect = MYSQL_8) -> TableMap:
    """Returns a table map that has these bytes after its flags."""
    return TableMap(
        header=header(EventType.TABLE_MAP),
        table_id=7,
        flags=0,
        schema="d",
        table="t",
        body=content,
        dialect=dialect,
    )


def table_of(*codes: tuple[TypeCode, bytes]) -> bytes:
    """Encodes the part of a table map that comes after its flags. The table has columns with these types and metadata.
    The optional fields are left out.
    """
    types = bytes(code for code, _ in codes)
    metadata = b"".join(content for _, content in codes)
    return b"\1d\0\1t\0" + text(types) + text(metadata) + bytes((len(codes) + 7) // 8)


NAMED = table_of((TypeCode.LONG, b"")) + b"\4\2\1a"
SIGNED = b"\1\1\0"
