"""Reads the rows of requested keys from a table.

A key is requested by its canonical text, the form in which the changelog stores it. The server's input function
converts this text back into a value, and a query searches the table for the value. A type may treat different spellings
as equal, such as 1.5 and 1.50. So the query can also return a row whose key is spelled differently from the requested
one. Therefore a returned row counts only if the canonical text of its key is among the requested ones.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from changelog.connectors.capture.rows.codec import Shape
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import KeyedRows
from changelog.connectors.capture.tables.key_lookup import LookupKeys
from changelog.connectors.sources.postgres.session.connection import Connection, explain
from changelog.connectors.sources.postgres.snapshot.copyout import CHUNK_BYTES_MAX, add, blocks, copy_rows, copying
from changelog.connectors.sources.postgres.snapshot.read_table import ReadTable, encode_copied
from changelog.connectors.sources.postgres.values.text_to_json import codec_for
from changelog.connectors.sources.postgres.values.types import PgType
from changelog.envelope.errors import RETRIED

Mask = npt.NDArray[np.bool_]

_SCANNED_ROWS = 4096
_AS_PRINTED = frozenset(Shape) - {Shape.OTHER}
_OBJECT_NAMES = frozenset({
    "regclass", "regcollation", "regconfig", "regdatabase", "regdictionary", "regnamespace",
    "regoper", "regoperator", "regproc", "regprocedure", "regrole", "regtype",
})  # fmt: skip
"""Types whose input function looks up a name. The lookup needs rights, and its result can change at any moment."""

Texts = tuple[str, ...]


def key_casts(connection: Connection, types: Sequence[PgType]) -> tuple[str, ...] | None:
    """Returns, for each type, a SQL template that converts canonical text into a value; `{}` stands for the text.

    Returns None if one of the types has no exact conversion.
    """
    casts = []
    for type_ in types:
        base = type_
        while base.base is not None:
            base = base.base
        if base.name in _OBJECT_NAMES:
            return None
        if base.kind == "base" and base.name == "bytea":
            casts.append("decode({}, 'base64')")
        elif base.kind in ("base", "enum") and codec_for(base, -1).shape in _AS_PRINTED:
            row = connection.execute("SELECT format_type(%s, -1)", [base.oid]).fetchone()
            assert row is not None
            casts.append("{}::" + row[0].replace("{", "{{").replace("}", "}}"))
        else:
            return None
    return tuple(casts)


def read_keys(
    reader: Connection, origin: Origin, table: ReadTable, name: str, part: LookupKeys, *, read_at: int
) -> KeyedRows:
    """Reads the rows of the keys under the transaction's snapshot. Raises ChunkTooLargeError.

    `name` is the table's name, quoted for SQL.
    """
    rows = encode_copied(origin, table.bound, _copy(reader, table, name, part), read_at=read_at)
    return KeyedRows(origin=origin, rows=rows, requested=pa.array(part.keys, pa.utf8()), ghosts=part.ghosts)


def _copy(reader: Connection, table: ReadTable, name: str, part: LookupKeys) -> bytearray:
    keys = None if table.casts is None else _castable(reader, table.casts, _split(part.keys, len(table.casts)))
    if keys is None:
        return _scan(reader, table, name, part)
    if not keys:
        return bytearray()
    try:
        with reader.transaction():
            return copy_rows(reader, _query(table, name, keys))
    except (psycopg.errors.UndefinedFunction, psycopg.errors.AmbiguousFunction):
        return _scan(reader, table, name, part)  # the type's operators are not in the search path


def _split(keys: Sequence[str], width: int) -> list[Texts]:
    """Splits keys into their columns' values; leaves out keys that cannot be in a table with `width` key columns."""
    return [texts for key in keys if (texts := _texts(key, width))]


def _texts(key: str, width: int) -> Texts | None:
    """Splits a key into its columns' values; None if the key cannot be in a table with `width` key columns."""
    if width == 1:
        return (key,)
    try:
        texts = msgspec.json.decode(key, type=list[str])
    except msgspec.DecodeError:
        return None
    return tuple(texts) if len(texts) == width else None


def _castable(reader: Connection, casts: Sequence[str], keys: Sequence[Texts]) -> Sequence[Texts] | None:
    """Returns the keys that the server can convert into values.

    The other keys are found by bisection and left out: a text that is not a value of the column's type cannot be the
    key of any row. Returns None if the server rejects a key for another reason, for example because its value is nested
    too deeply; then only a scan of the table can find the key's row. The query here reads no table, so an error in
    reading a table is never mistaken for a bad key.
    """
    if not keys:
        return keys
    counts = _listed([sql.SQL("count({})").format(value) for value in _values(casts)])
    try:
        with reader.transaction():
            reader.execute(sql.SQL("SELECT {} FROM {}").format(counts, _unnested(keys)))
        return keys
    except psycopg.DataError:
        if len(keys) == 1:
            return []
    except psycopg.Error as error:
        if explain(error.sqlstate, str(error), "reading keys").kind in RETRIED:
            raise
        return None
    half = len(keys) // 2
    first, second = (_castable(reader, casts, part) for part in (keys[:half], keys[half:]))
    return None if first is None or second is None else [*first, *second]


def _query(table: ReadTable, name: str, keys: Sequence[Texts]) -> sql.Composed:
    """Returns the query for the rows with these keys. The server can answer it with an index on the key columns."""
    assert table.casts is not None
    condition = sql.SQL("({}) IN (SELECT {} FROM {})").format(
        _listed(map(sql.Identifier, table.key)), _listed(_values(table.casts)), _unnested(keys)
    )
    return _select(table, name, condition)


def _values(casts: Sequence[str]) -> list[sql.Composed]:
    """Returns for each column of `_unnested` the SQL that converts its text into a value."""
    return [sql.SQL(cast).format(sql.Identifier(f"k{number}")) for number, cast in enumerate(casts)]


def _unnested(keys: Sequence[Texts]) -> sql.Composed:
    """Returns SQL for the keys as a table with one text column for each key column: k0, k1 and so on."""
    arrays = [sql.SQL("{}::text[]").format(sql.Literal(list(column))) for column in zip(*keys, strict=True)]
    names = [sql.Identifier(f"k{number}") for number in range(len(arrays))]
    return sql.SQL("unnest({}) AS u({})").format(_listed(arrays), _listed(names))


def _select(table: ReadTable, name: str, condition: sql.Composable) -> sql.Composed:
    where = sql.SQL("") if table.where is None else sql.SQL(" AND ({})").format(sql.SQL(table.where))
    return sql.SQL("COPY (SELECT {} FROM {}{} WHERE {}{}) TO STDOUT").format(
        _listed(map(sql.Identifier, table.columns)),
        sql.SQL("ONLY " if table.only else ""),
        sql.SQL(name),
        condition,
        where,
    )


def _listed(parts: Iterator[sql.Composable] | Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _scan(reader: Connection, table: ReadTable, name: str, part: LookupKeys) -> bytearray:
    """Scans the whole table for the rows with requested keys; needed if no query can search for these keys."""
    requested = pa.array(part.keys, pa.utf8())
    rows = bytearray()
    with copying(reader, _select(table, name, sql.SQL("true"))) as rows_of_table:
        for block in blocks(rows_of_table, rows_max=_SCANNED_ROWS, bytes_max=CHUNK_BYTES_MAX):
            encoded = encode_copied(_UNPUBLISHED, table.bound, bytearray().join(block), read_at=0)
            hits = pc.is_in(encoded.keys, requested).to_numpy(zero_copy_only=False)
            for number in encoded.numbers[hits].tolist():
                add(rows, block[number])
    return rows


_UNPUBLISHED = Origin(connector="postgres", name="", database="")
