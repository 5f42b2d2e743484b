"""Copies the rows of a view into a table of PostgreSQL. Each task of Spark copies its own rows.

Arrow batches are sent as CSV. All values stay exact. Columns get the matching PostgreSQL types; `json` values keep
their text. Arrays, maps, structs and nested documents become `jsonb`, with the JSON that messages have
(docs/reference/types.md).
"""

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal as Number
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct

Render = Callable[[Any], Any]
"""Takes the Python object that Arrow returns for a value, never None. Returns an object that msgspec writes as the JSON
that messages have for this value.
"""

COPIED: Final = "rows long, out_of_range long, unavailable long"
"""The columns in which a task reports how many rows it copied, how many of their values are out of range, and how many
are unavailable.
"""

_ABOUT: Final = {
    "_key": "text",
    "_position": "text",
    "_op": "text",
    "_committed_at": "timestamptz",
    "_api_version": "text",
    "_service_name": "text",
    "_identifier": "text",
    "_context": "json",
    "_unavailable": "text[]",
    "_out_of_range": "text[]",
}

_TYPES: Final = {
    Primitive.BOOLEAN: "boolean",
    Primitive.INT: "integer",
    Primitive.LONG: "bigint",
    Primitive.FLOAT: "real",
    Primitive.DOUBLE: "double precision",
    Primitive.STRING: "text",
    Primitive.BYTES: "bytea",
    Primitive.UUID: "uuid",
    Primitive.DATE: "date",
    Primitive.TIME: "time",
    Primitive.TIMESTAMP: "timestamp",
    Primitive.TIMESTAMP_TZ: "timestamptz",
    Primitive.JSON: "json",
}

_CSV: Final = csv.WriteOptions(include_header=False, quoting_style="needed")
_DETAILED: Final = ("22", "23")  # classes of errors whose messages quote values


@dataclass(frozen=True, slots=True)
class ViewColumns:
    """The columns of a view: first its own `columns`, and then columns that describe the state, such as `_position`.

    Among `columns`, nested documents are arrays of structs.
    """

    columns: Sequence[Column]

    def names(self) -> list[str]:
        """Returns the names of all columns, quoted for Spark's SQL."""
        own = (column.name.replace("`", "``") for column in self.columns)
        return [f"`{name}`" for name in (*own, *_ABOUT)]

    def declared(self) -> list[tuple[str, str]]:
        """Returns the names of all columns, with their PostgreSQL types."""
        return [*((column.name, _declared(column.type)) for column in self.columns), *_ABOUT.items()]


def _declared(type_: ColumnType) -> str:
    match type_:
        case Primitive():
            return _TYPES[type_]
        case Decimal(precision=precision, scale=scale):
            return f"numeric({precision},{scale})"
    return "jsonb"


def copier(
    dsn: str, table: str, parts: str, nonce: str, shape: ViewColumns
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that copies a task's batches into `table`. In the same transaction, it notes in the table
    `parts` that the task is done.

    `table` and `parts` are quoted names. `parts` accepts only rows with this `nonce`. So if a task of an earlier run is
    still running, it can copy nothing. If an earlier attempt of the same task has copied the rows, the function copies
    nothing. It yields one row of `COPIED`. It raises ChangelogError (STORAGE) if PostgreSQL reports an error.
    """
    finish = [_finish(column.type) for column in shape.columns]

    def copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - only executors need it

        context = TaskContext.get()
        part = context.partitionId() if context else 0
        try:
            with psycopg.connect(dsn, client_encoding="UTF8", connect_timeout=10) as connection:
                counts = _copied(connection, table, parts, (part, nonce), (_as_csv(batch, finish) for batch in batches))
        except psycopg.Error as error:
            state = error.sqlstate or ""
            reason = f"error {state}" if state[:2] in _DETAILED else error.diag.message_primary or type(error).__name__
            raise ChangelogError(Kind.STORAGE, f"copying rows to PostgreSQL: {' '.join(reason.split())}") from None
        yield pa.record_batch(
            [pa.array([count], pa.int64()) for count in counts], ["rows", "out_of_range", "unavailable"]
        )

    return copy


Csv = tuple[bytes, Sequence[int]]
"""Rows as CSV, and the counts of these rows in the order of `COPIED`."""


def _copied(
    connection: psycopg.Connection[Any], table: str, parts: str, part_and_nonce: tuple[int, str], texts: Iterable[Csv]
) -> Sequence[int]:
    part, nonce = part_and_nonce
    claim = f"INSERT INTO {parts} (part, counts, nonce) VALUES (%s, '{{0,0,0}}', %s) ON CONFLICT DO NOTHING"
    if connection.execute(claim.encode(), [part, nonce]).rowcount == 0:
        row = connection.execute(f"SELECT counts FROM {parts} WHERE part = %s".encode(), [part]).fetchone()
        assert row is not None  # the insert did nothing because this row existed
        return list(row[0])
    counts = [0, 0, 0]
    with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv)".encode()) as copy:
        for text, more in texts:
            copy.write(text)
            counts = [before + count for before, count in zip(counts, more, strict=True)]
    connection.execute(f"UPDATE {parts} SET counts = %s WHERE part = %s".encode(), [counts, part])
    return counts


def _as_csv(batch: pa.RecordBatch, finish: Sequence[Callable[[pa.Array], pa.Array]]) -> Csv:
    column_arrays = [finisher(batch.column(number)) for number, finisher in enumerate(finish)]
    about = dict(zip(_ABOUT, batch.columns[len(column_arrays) :], strict=True))
    lengths = [pc.sum(pc.list_value_length(about[name])).as_py() or 0 for name in ("_out_of_range", "_unavailable")]
    about_arrays = [_names(array) if pa.types.is_list(array.type) else array for array in about.values()]
    table = pa.record_batch(
        [*column_arrays, *about_arrays], [f"c{number}" for number in range(len(column_arrays) + len(about_arrays))]
    )
    buffer = io.BytesIO()
    csv.write_csv(table, buffer, _CSV)
    return buffer.getvalue(), [len(batch), *lengths]


def _names(array: pa.Array) -> pa.Array:
    """Writes lists of strings as PostgreSQL writes arrays."""
    return pa.array(["{" + ",".join(map(_quoted, names)) + "}" for names in array.to_pylist()], pa.utf8())


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _finish(type_: ColumnType) -> Callable[[pa.Array], pa.Array]:
    """Returns the function that prepares a column for the CSV that PostgreSQL reads."""
    match type_:
        case Primitive.BYTES:
            return lambda array: _each(array, lambda value: "\\x" + value.hex())
        case Array() | Map() | Struct():
            render = renderer(type_)
            return lambda array: _each(array, lambda value: msgspec.json.encode(render(value)).decode())
    return lambda array: array


def _each(array: pa.Array, render: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else render(value) for value in array.to_pylist()], pa.utf8())


def renderer(type_: ColumnType) -> Render:
    """Returns the `Render` function for values of this type."""
    match type_:
        case Array(element=element):
            of_element = _optional(element)
            return lambda values: [of_element(value) for value in values]
        case Map(value=value):
            of_member = _optional(value)
            return lambda pairs: {name: of_member(value) for name, value in pairs}
        case Struct(fields=fields):
            members = [(name, _optional(field)) for name, field in fields]
            return lambda document: {name: member(document[name]) for name, member in members}
        case Decimal():
            return lambda value: format(value, "f") if isinstance(value, Number) else value
    return _PLAIN.get(type_, _as_it_is)


def _optional(type_: ColumnType) -> Render:
    render = renderer(type_)
    return lambda value: None if value is None else render(value)


def _as_it_is(value: Any) -> Any:
    return value


def _float(value: float) -> object:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _local_moment(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="microseconds")  # Arrow adds the zone of the session, UTC


_PLAIN: Final[dict[Primitive, Render]] = {
    Primitive.FLOAT: lambda value: _float(float(str(np.float32(value)))),
    Primitive.DOUBLE: _float,
    Primitive.BYTES: lambda value: base64.b64encode(value).decode(),
    Primitive.DATE: str,
    Primitive.TIMESTAMP: _local_moment,
    Primitive.TIMESTAMP_TZ: _moment,
    Primitive.JSON: lambda value: msgspec.Raw(value.encode()),
}
