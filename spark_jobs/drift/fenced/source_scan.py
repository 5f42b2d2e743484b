"""Reads rows of tables, as the changelog would have them, in Spark's tasks under a snapshot that the driver holds.

A task reads ranges of pages with COPY and encodes them with the code that encodes messages, so masks, types and formats
cannot differ. With each row it gives the row's place (`leaf` and `ctid`), by which it can be read again under the same
snapshot.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from connectors.capture.rows import row_records
from connectors.capture.rows.json_columns import Columns, Template
from connectors.capture.rows.row_records import Change, Origin, Transaction
from connectors.sources.postgres.session.connection import translated
from connectors.sources.postgres.snapshot.copyout import copy_out, parse_copy, row_values
from envelope.columnar.splice import splice
from envelope.errors import ChangelogError, Kind
from envelope.model import Op
from spark_jobs.drift.fenced.fence import Connection, Fence, Fenced, SourceDatabase

ROWS: Final = pa.schema(
    [
        pa.field("entity", pa.utf8()),
        pa.field("key", pa.utf8()),
        pa.field("current", pa.utf8()),
        pa.field("json_null", pa.utf8()),
        pa.field("leaf", pa.int32()),
        pa.field("ctid", pa.utf8()),
    ]
)
"""One row of a table. `json_null` is a JSON array of the columns that hold JSON's null; null if none does."""

PORTION_BYTES: Final = 8 << 20
PORTION_ROWS: Final = 20_000
"""The most bytes and rows that are encoded at once; a larger row is encoded alone."""

LOCK_TIMEOUT_S: Final = 10
"""How long a task waits for a table's lock. A migration in the queue before it waits for the driver, and so for us."""

_NOWHERE = Change(transaction=Transaction(xid=0, epoch=0, commit=0, committed_at=0), ordinal=0, stamp=None)
_ORIGIN = Origin(connector="postgres", name="", database="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Pages `first` up to, not including, `end` of a leaf of an entity's table; None means the leaf's end."""

    entity: str
    leaf: int
    first: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a task needs to read under the fence. It holds the connection string, so it goes to executors only."""

    source: SourceDatabase = field(repr=False)
    fence: Fence

    @contextlib.contextmanager
    def session(self) -> Iterator[Connection]:
        """Yields a session that sees the fence's snapshot. Raises ChangelogError (CONNECTION) if the fence is gone."""
        with contextlib.closing(self.source.connect()) as connection:
            with translated("importing the snapshot, which the driver holds"):
                connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.fence.name)))
                row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            if row != (self.fence.text,):
                raise ChangelogError(Kind.MALFORMED, "a task does not see the snapshot that the driver holds")
            yield connection


def scan(
    batches: Iterable[pa.RecordBatch], *, reading: Reading, parts: Sequence[Sequence[Pages]], condition: sql.Composable
) -> Iterator[pa.RecordBatch]:
    """The rows (`ROWS`) that match the condition, of the parts whose numbers are in the batches' first column."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            with reading.session() as connection:
                yield from _read(connection, reading.fence.tables, parts[number], condition)


def rows_at(connection: Connection, table: Fenced, leaf: int, ctids: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows (`ROWS`) of a leaf at these places, under the session's snapshot."""
    places = sql.SQL("{}::tid[]").format(sql.Literal("{" + ",".join(f'"{ctid}"' for ctid in ctids) + "}"))
    condition = sql.SQL("ctid = ANY ({})").format(places)
    template = Template(table.binding)
    for copied in _copied(connection, table, leaf, condition):
        yield _encoded(table, template, copied, leaf)


def _read(
    connection: Connection, tables: Mapping[str, Fenced], parts: Sequence[Pages], only: sql.Composable
) -> Iterator[pa.RecordBatch]:
    templates = {part.entity: Template(tables[part.entity].binding) for part in parts}
    for part in parts:
        table = tables[part.entity]
        for copied in _copied(connection, table, part.leaf, sql.SQL("{} AND {}").format(_within(part), only)):
            yield _encoded(table, templates[part.entity], copied, part.leaf)


def _within(part: Pages) -> sql.Composable:
    bounds = [sql.SQL("ctid >= {}").format(sql.Literal(f"({part.first},0)"))]
    if part.end is not None:
        bounds.append(sql.SQL("ctid < {}").format(sql.Literal(f"({part.end},0)")))
    return sql.SQL(" AND ").join(bounds)


def _copied(connection: Connection, table: Fenced, leaf: int, which: sql.Composable) -> Iterator[list[bytes]]:
    """Yields portions of rows in COPY's text format, with the place of each row as the last column."""
    where = table.entity.where
    condition = which if where is None else sql.SQL("{} AND ({})").format(which, sql.SQL(where))
    query = sql.SQL("COPY (SELECT {}, ctid FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, table.columns)), sql.SQL(table.leaves[leaf].name), condition
    )
    with translated("reading a table"):
        try:
            yield from _portions(map(bytes, copy_out(connection, query.as_bytes(connection))))
        except psycopg.errors.LockNotAvailable as error:
            message = f"a migration of the table of {table.entity.name} waits for this job"
            raise ChangelogError(Kind.ALTERED, message, hint="run the job again after it") from error


def _portions(copied: Iterable[bytes]) -> Iterator[list[bytes]]:
    portion: list[bytes] = []
    room = PORTION_BYTES
    for row in copied:
        portion.append(row)
        room -= len(row)
        if room < 0 or len(portion) == PORTION_ROWS:
            yield portion
            portion, room = [], PORTION_BYTES
    if portion:
        yield portion


def _encoded(table: Fenced, template: Template, copied: Sequence[bytes], leaf: int) -> pa.RecordBatch:
    binding = table.binding
    count = len(copied)
    data = bytearray().join(copied)
    columns = parse_copy(data, len(table.columns) + 1)
    buffer = np.frombuffer(data, np.uint8)
    texts = template.texts(Op.READ, data, buffer, None, columns, np.ones(count, bool))
    unusual = [_one(table, row_values(data, columns, number)) for number in texts.left.tolist()]
    order = np.concatenate([texts.places, texts.left])
    return pa.RecordBatch.from_arrays(
        [
            pa.array([binding.entity.name], pa.utf8()).take(pa.array(np.zeros(count, np.int32))),
            _joined(texts.keys, [key for key, _, _ in unusual]),
            _joined(texts.current, [current for _, current, _ in unusual]),
            _joined(pa.nulls(texts.size, pa.utf8()), [json_null for _, _, json_null in unusual]),
            pa.array(np.full(count, leaf, np.int32)),
            _places(buffer, columns, order),
        ],
        schema=ROWS,
    )


def _one(table: Fenced, values: Sequence[bytes | None]) -> tuple[str, str, str | None]:
    """Encodes one row with the plain code: its key, its state and its `json_null`."""
    record = row_records.read(_ORIGIN, table.binding, values, _NOWHERE)
    current: Any = record.envelope.current
    names = record.envelope.provenance.source.json_null
    return record.place.key, bytes(current).decode(), msgspec.json.encode(names).decode() if names else None


def _joined(usual: pa.StringArray | None, unusual: Sequence[str | None]) -> pa.StringArray:
    more = pa.array(unusual, pa.utf8())
    return more if usual is None else pa.concat_arrays([usual, more]) if unusual else usual


def _places(buffer: Any, columns: Columns, order: Any) -> pa.StringArray:
    return splice(buffer, len(order), [(columns.starts[-1][order], columns.lengths[-1][order])])
