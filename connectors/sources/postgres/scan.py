"""Reads rows of tables under a snapshot that Spark's driver holds, and encodes them as in the changelog.

Spark's executors import nothing of this source but this module and what it imports. A task reads ranges of pages with
COPY. It encodes the rows with the same code that encodes the changelog's messages, so masks, types and formats are the
same as there. With each row it returns the row's leaf (the table, or the partition that stores the row) and the row's
ctid. Leaf and ctid are enough to read the row again under the same snapshot.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.json_columns import Template
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.capture.rows.text_columns import TextColumns
from changelog.connectors.patience import Patience
from changelog.connectors.sources.fences import ROWS, KeyBounds, Pages
from changelog.connectors.sources.postgres.session.connection import Connection, connect, translated
from changelog.connectors.sources.postgres.snapshot.copyout import blocks, copy_out, parse_copy
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.columnar.splice import splice
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op

_PORTION_BYTES: Final = 8 << 20
_PORTION_ROWS: Final = 20_000
"""Rows are encoded in portions. A portion ends once it has more than this many bytes, or this many rows."""

_CTIDS_AT_ONCE: Final = 1000

LOCK_TIMEOUT_S: Final = 10
"""How many seconds a task waits for a table's lock.

If a migration is ahead of the task in the queue for the lock, the migration itself waits for the driver's lock on the
table. The driver holds its lock until the job ends, so a longer wait would not help.
"""

_SNAPSHOT_GONE: Final = (
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
"""The server's errors if a snapshot no longer exists, or if the session that exported it ends just then. Which of the
first two the server raises depends on its version.
"""

_NOWHERE = Change(transaction=Transaction(xid=0, name="0", epoch=0, commit=0, committed_at=0), ordinal=0, stamp=None)
_ORIGIN = Origin(connector="postgres", name="", database="")


_SILENCE_S = 3600.0  # a task may read many pages before it finds a row


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTable:
    """How to read a table.

    `binding` says how its rows are encoded. `columns` names its published columns, in the table's order. `leaves` names
    the partitions that store its rows, quoted for SQL.
    """

    binding: Binding
    columns: tuple[str, ...]
    leaves: tuple[str, ...]


def session(dsn: str) -> Connection:
    """Opens a session without the server's timeouts, in which the server prints values as they are published."""
    return connect(dsn, settings=SETTINGS, patience=Patience(silence_s=_SILENCE_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresScan:
    """Implements `changelog.connectors.sources.fences.Scan`.

    `snapshot` is the name under which the driver exported its snapshot. `text` is that snapshot as
    `pg_current_snapshot()` prints it. `tables` maps the names of entities to their tables.
    """

    dsn: str = field(repr=False)
    snapshot: str
    text: str
    tables: Mapping[str, ScannedTable]

    def rows(self, parts: Sequence[Pages], keys: KeyBounds | None) -> Iterator[pa.RecordBatch]:
        """See `Scan.rows`."""
        only = sql.SQL("true") if keys is None else in_range(keys)
        templates = {part.entity: Template(self.tables[part.entity].binding) for part in parts}
        with self._session() as connection:
            for part in parts:
                table = self.tables[part.entity]
                for rows in _read_portions(
                    connection, table, part.leaf, sql.SQL("{} AND {}").format(_within(part), only)
                ):
                    yield _encoded(table, templates[part.entity], rows, part.leaf)

    def rows_at(self, locators: Mapping[tuple[str, int], Sequence[str]]) -> Iterator[pa.RecordBatch]:
        """See `Scan.rows_at`."""
        with self._session() as connection:
            for (entity, leaf), ctids in locators.items():
                table = self.tables[entity]
                template = Template(table.binding)
                ordered_ctids = sorted(ctids, key=_page_and_item)
                for first in range(0, len(ordered_ctids), _CTIDS_AT_ONCE):
                    condition = _at(ordered_ctids[first : first + _CTIDS_AT_ONCE])
                    for rows in _read_portions(connection, table, leaf, condition):
                        yield _encoded(table, template, rows, leaf)

    @contextlib.contextmanager
    def _session(self) -> Iterator[Connection]:
        """Yields a session that sees the driver's snapshot. Raises ChangelogError (CONNECTION) if the driver no longer
        holds it.
        """
        with contextlib.closing(session(self.dsn)) as connection:
            with translated("importing the snapshot, which the driver holds"):
                connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                self._import_snapshot(connection)
                row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            if row != (self.text,):
                raise ChangelogError(Kind.MALFORMED, "a task does not see the snapshot that the driver holds")
            yield connection

    def _import_snapshot(self, connection: Connection) -> None:
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.snapshot)))
        except _SNAPSHOT_GONE as error:
            raise ChangelogError(
                Kind.CONNECTION,
                "the snapshot of the tables no longer exists, because the session that exported it has ended",
                hint="run the job again",
            ) from error


def _page_and_item(ctid: str) -> tuple[int, int]:
    page, _, item = ctid[1:-1].partition(",")
    return int(page), int(item)


def _at(ctids: Sequence[str]) -> sql.Composable:
    array = sql.SQL("{}::tid[]").format(sql.Literal("{" + ",".join(f'"{ctid}"' for ctid in ctids) + "}"))
    return sql.SQL("ctid = ANY ({})").format(array)


def in_range(keys: KeyBounds) -> sql.Composable:
    """Returns the SQL condition that a row's key is in the range `keys`."""
    column: sql.Composable = sql.Identifier(keys.column)
    if keys.by_bytes:
        column = sql.SQL('{} COLLATE "C"').format(column)
    bounds = [(">=", keys.first), ("<", keys.end)]
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(column, sql.SQL(sign), sql.Literal(value))
        for sign, value in bounds
        if value is not None
    )


def _within(part: Pages) -> sql.Composable:
    bounds = [sql.SQL("ctid >= {}").format(sql.Literal(f"({part.first},0)"))]
    if part.end is not None:
        bounds.append(sql.SQL("ctid < {}").format(sql.Literal(f"({part.end},0)")))
    return sql.SQL(" AND ").join(bounds)


def _read_portions(
    connection: Connection, table: ScannedTable, leaf: int, which: sql.Composable
) -> Iterator[list[memoryview]]:
    """Yields portions of rows in COPY's text format, with each row's ctid as the last column."""
    where = table.binding.entity.where
    condition = which if where is None else sql.SQL("{} AND ({})").format(which, sql.SQL(where))
    query = sql.SQL("COPY (SELECT {}, ctid FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, table.columns)), sql.SQL(table.leaves[leaf]), condition
    )
    with translated("reading a table"):
        try:
            rows = copy_out(connection, query.as_bytes(connection))
            yield from blocks(rows, rows_max=_PORTION_ROWS, bytes_max=_PORTION_BYTES)
        except psycopg.errors.LockNotAvailable as error:
            message = f"a migration of the table of the entity {table.binding.entity.name} waits for this job"
            raise ChangelogError(Kind.ALTERED, message, hint="run the job again after the migration") from error


def _encoded(table: ScannedTable, template: Template, rows: Sequence[memoryview], leaf: int) -> pa.RecordBatch:
    binding = table.binding
    count = len(rows)
    data = bytearray().join(rows)
    columns = parse_copy(data, len(table.columns) + 1)
    buffer = np.frombuffer(data, np.uint8)
    texts = template.texts(Op.READ, data, buffer, None, columns, np.ones(count, bool))
    unusual = [_one(table, columns.row(data, number)) for number in texts.other_places.tolist()]
    order = np.concatenate([texts.places, texts.other_places])
    return pa.RecordBatch.from_arrays(
        [
            pa.array([binding.entity.name], pa.utf8()).take(pa.array(np.zeros(count, np.int32))),
            _joined(texts.keys, [key for key, _, _ in unusual]),
            _joined(texts.current, [current for _, current, _ in unusual]),
            _joined(pa.nulls(texts.size, pa.utf8()), [json_null for _, _, json_null in unusual]),
            pa.array(np.full(count, leaf, np.int32)),
            _ctids(buffer, columns, order),
        ],
        schema=ROWS,
    )


def _one(table: ScannedTable, values: row_records.Tuple) -> tuple[str, str, str | None]:
    """Encodes one row with `row_records`; returns the row's `key`, `current` and `json_null` (see `ROWS`)."""
    record = row_records.read(_ORIGIN, table.binding, values, _NOWHERE)
    current: Any = record.envelope.current
    names = record.envelope.provenance.source.json_null
    return record.place.key, bytes(current).decode(), msgspec.json.encode(names).decode() if names else None


def _joined(usual: pa.StringArray | None, unusual: Sequence[str | None]) -> pa.StringArray:
    more = pa.array(unusual, pa.utf8())
    return more if usual is None else pa.concat_arrays([usual, more]) if unusual else usual


def _ctids(buffer: Any, columns: TextColumns, order: Any) -> pa.StringArray:
    return splice(buffer, len(order), [(columns.starts[-1][order], columns.lengths[-1][order])])
