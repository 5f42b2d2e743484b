"""Reads tables for windows: threads that each COPY a chunk under a snapshot, then write its message."""

import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg import sql

from connectors.sources.postgres import rows
from connectors.sources.postgres.assembler import SIGNAL_PREFIX
from connectors.sources.postgres.columnar import Bound
from connectors.sources.postgres.connection import translated
from connectors.sources.postgres.objects import Columns, Texts
from connectors.sources.postgres.rendering import Meta, Span, render
from connectors.sources.postgres.rows import Change, Origin, Transaction
from connectors.sources.postgres.windows import Chunk, Snapshot, Windows
from envelope import batch
from envelope.errors import ChangelogError, Kind
from envelope.model import Op
from envelope.splice import INLINE

Mask = npt.NDArray[np.bool_]
Connection = psycopg.Connection[tuple[Any, ...]]

CHUNK_BYTES_MAX = 32 << 20
"""Text of one chunk; one that is larger is given back and read in smaller ranges, down to one page."""

LOCK_TIMEOUT_S = 2
"""How long a chunk waits for a table that is being altered, before it lets others go first."""

_PAUSE_S = 0.2
_OFFSET_MAX = 2**31 - 1
_ESCAPES = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTable:
    """How one entity's table is read while its columns are those of `signature`: its binding and, in the same

    order, its columns.
    """

    signature: str
    bound: Bound
    columns: tuple[str, ...]
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A leaf is locked, and the snapshot taken; `at` is in microseconds since 1970."""

    snapshot: Snapshot
    signature: str
    filenode: int
    at: int


class Reader:
    """A few threads that read what `windows` hands out; each holds two connections of its own.

    `tables` gives the table of each entity; `bind` says, over a connection, how it is to be read now.
    """

    def __init__(
        self,
        windows: Windows,
        tables: Mapping[str, tuple[str, str]],
        origin: Origin,
        *,
        bind: Callable[[Connection, str], ReadTable],
        connect: Callable[[], Connection],
        workers: int = 2,
    ) -> None:
        self._windows, self._names, self._origin = windows, tables, origin
        self._bind, self._connect = bind, connect
        self._tables: dict[str, ReadTable] = {}
        self._stopping = threading.Event()
        self.failure: BaseException | None = None
        """Why the reading ended early."""
        self._threads = [threading.Thread(target=self._work, daemon=True, name="snapshot") for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops the threads; what was not published is read again another time."""
        self._stopping.set()
        self._windows.close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            with translated("reading a table"), self._connect() as reading, self._connect() as signalling:
                reading.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
                signalling.execute("SET synchronous_commit = local")  # a paused standby must not hold windows back
                while not self._stopping.is_set() and (found := self._windows.take(self._names)) is not None:
                    if not self._chunk(reading, signalling, *found):
                        self._stopping.wait(_PAUSE_S)
        except BaseException as error:  # noqa: BLE001 - raised again by who asks, or the reading would end in silence
            self.failure = error

    def _chunk(self, reading: Connection, signalling: Connection, nonce: str, chunk: Chunk) -> bool:
        """Reads a chunk, or gives it back; False when it is better to wait before the next."""
        smaller = False
        try:
            with reading.transaction():
                reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                begun = _begin(reading, chunk)
                if begun is None or not self._windows.reading(nonce, begun.snapshot, begun.signature, begun.filenode):
                    return False
                table = self._table(reading, chunk.entity, begun.signature)
                copied = _copy(reading, table, chunk)
                smaller = copied is None
                if copied is not None:
                    self._windows.read(nonce, ChunkRows.encode(self._origin, table.bound, copied, read_at=begun.at))
                    _signal(signalling, nonce)  # under the lock: the table stays as it was read
                return True
        finally:
            self._windows.give_back_unread(nonce, smaller=smaller)

    def _table(self, reading: Connection, entity: str, columns: str) -> ReadTable:
        """How the table is read while its signature is `columns`."""
        if entity not in self._tables or self._tables[entity].signature != columns:
            self._tables[entity] = self._bind(reading, entity)
        return self._tables[entity]


def _begin(reading: Connection, chunk: Chunk) -> _Begun | None:
    """Locks the leaf, then takes the snapshot: before the lock, a rewritten table would read as empty.

    None while it is locked otherwise. Raises ChangelogError (ALTERED) when there is no such leaf any more: it was
    dropped, or renamed with rows that are yet to be read.
    """
    leaf = chunk.taken.leaf
    try:
        with reading.transaction():
            reading.execute(f"LOCK TABLE {leaf} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.UndefinedTable as error:
        raise ChangelogError(Kind.ALTERED, f"{leaf} is gone while it is read; its table is planned anew") from error
    except psycopg.errors.LockNotAvailable:
        return None
    row = reading.execute(
        "SELECT pg_current_snapshot()::text, pg_relation_filenode(c.oid), "
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM pg_class c WHERE c.oid = to_regclass(%s)",
        [leaf],
    ).fetchone()
    assert row is not None
    return _Begun(
        snapshot=Snapshot.parse(row[0]), signature=signature(reading, chunk.table), filenode=row[1], at=row[2]
    )


def signature(connection: Connection, table: tuple[str, str]) -> str:
    """Stands for a table's columns and their types: another one when any is altered."""
    row = connection.execute(
        "SELECT md5(string_agg(a.attname || ' ' || a.atttypid || ' ' || a.atttypmod, ',' ORDER BY a.attnum)) "
        "FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped",
        [quoted(table)],
    ).fetchone()
    return "" if row is None else str(row[0])


def quoted(table: tuple[str, str]) -> str:
    """A table's name as SQL has it."""
    return sql.Identifier(*table).as_string()


def _copy(reading: Connection, table: ReadTable, chunk: Chunk) -> list[bytes] | None:
    """The chunk's rows in COPY's text format, a row each; None when they are too large to hold."""
    taken = chunk.taken
    conditions = [sql.SQL("ctid >= {}").format(sql.Literal(f"({taken.first},0)"))]
    if taken.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({taken.end},0)")))
    if table.where is not None:
        conditions.append(sql.SQL("({})").format(sql.SQL(table.where)))
    query = sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, table.columns)), sql.SQL(taken.leaf), sql.SQL(" AND ").join(conditions)
    )
    single = taken.end is not None and taken.end - taken.first <= 1
    found: list[bytes] = []
    room = CHUNK_BYTES_MAX
    with reading.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy:
            found.append(bytes(row))
            room -= len(row)
            if room < 0 and not single:
                return None
    return found


def _signal(signalling: Connection, nonce: str) -> None:
    signalling.execute("SELECT pg_logical_emit_message(true, %s, %s)", [SIGNAL_PREFIX, nonce])


def nonce() -> str:
    """A name for a window that nobody can guess."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """A chunk's rows: most as columns of texts, the few unusual ones as the server's values.

    `read_at` is the time of reading, in microseconds since 1970.
    """

    origin: Origin
    bound: Bound
    texts: Texts
    unusual: Sequence[Sequence[bytes | None]]
    unusual_keys: Sequence[str]
    read_at: int
    nbytes: int

    @classmethod
    def encode(cls, origin: Origin, bound: Bound, copied: Sequence[bytes], *, read_at: int) -> "ChunkRows":
        """The rows that COPY gave, as columns. Raises ChangelogError (MALFORMED) when they are not as asked for."""
        data, columns = parse_copy(copied, bound.binding.width)
        buffer = np.frombuffer(data, np.uint8)
        texts = bound.template.texts(Op.READ, data, buffer, None, columns, np.ones(len(copied), bool))
        unusual = [row_values(data, columns, number) for number in texts.left.tolist()]
        return cls(
            origin=origin,
            bound=bound,
            texts=texts,
            unusual=unusual,
            unusual_keys=[rows.place(bound.binding, values).key for values in unusual],
            read_at=read_at,
            nbytes=2 * len(data),
        )

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row, the unusual ones last."""
        unusual = pa.array(self.unusual_keys, pa.utf8())
        return unusual if self.texts.keys is None else pa.concat_arrays([self.texts.keys, unusual])

    def at(self, change: Change, keep: Mask) -> pa.RecordBatch:
        """The rows to keep, behind `change`, as if its transaction had held them."""
        transaction = Transaction(
            xid=change.transaction.xid,
            epoch=change.transaction.epoch,
            commit=change.transaction.commit,
            committed_at=self.read_at,
        )
        usual = self.texts.size
        texts = self.texts.numbered(np.flatnonzero(keep[:usual]))
        meta = Meta([Span(transaction=transaction, stamp=None, ordinal=change.ordinal + 1, rows=len(keep))])
        found = render(self.origin, [texts] if texts.size else [], meta)
        others = [
            rows.read(
                self.origin,
                self.bound.binding,
                values,
                Change(transaction=transaction, ordinal=change.ordinal + 1 + texts.size + number, stamp=None),
            )
            for number, values in enumerate(
                values for values, kept in zip(self.unusual, keep[usual:].tolist(), strict=True) if kept
            )
        ]
        parts = [] if found is None else [found[0]]
        if others or not parts:
            parts.append(batch.from_records(others))
        whole = parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        binding = self.bound.binding
        return batch.with_shapes(whole, {binding.entity.name: binding.shape}, relation=binding.relid)


def parse_copy(copied: Sequence[bytes], width: int) -> tuple[bytes, Columns]:
    """Rows in COPY's text format (SQL-COPY, *Text Format*) as slices of one buffer, padded for `splice`.

    Values with escapes are unescaped behind the rows' own bytes.
    """
    data = b"".join([*copied, bytes(INLINE)])
    buffer = np.frombuffer(data, np.uint8)[: len(data) - INLINE]
    ends = np.flatnonzero((buffer == ord("\t")) | (buffer == ord("\n")))
    if len(ends) != width * len(copied):
        raise ChangelogError(Kind.MALFORMED, f"COPY gave {len(ends)} values where {width} columns were asked for")
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    lengths = ends - starts
    escapes = np.flatnonzero(buffer == ord("\\"))
    null = np.zeros(len(starts), bool)
    if len(escapes):
        touched = np.unique(np.searchsorted(ends, escapes))
        null[touched] = (lengths[touched] == 2) & (buffer[starts[touched] + 1] == ord("N"))
        parts, length = [data], len(data)
        for number in touched[~null[touched]].tolist():
            text = _unescaped(data[starts[number] : ends[number]])
            starts[number], lengths[number] = length, len(text)
            parts.append(text)
            length += len(text)
        data = b"".join([*parts, bytes(INLINE)])
    if len(data) > _OFFSET_MAX:
        what = f"the rows of one page hold {len(data)} bytes of text, and {_OFFSET_MAX} can be read at once"
        raise ChangelogError(Kind.LIMIT, what, hint="spread these rows: UPDATE some of them, then VACUUM the table")
    lengths[null] = 0
    shape = (len(copied), width)
    columns = Columns(
        starts=starts.astype(np.int32).reshape(shape).T,
        lengths=lengths.astype(np.int32).reshape(shape).T,
        null=null.reshape(shape).T,
    )
    return data, columns


def _unescaped(text: bytes) -> bytes:
    return _ESCAPES.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def row_values(data: bytes, columns: Columns, number: int) -> list[bytes | None]:
    """The values of one row as the server prints them."""
    return [
        None if null else data[start : start + length]
        for start, length, null in zip(
            columns.starts[:, number].tolist(),
            columns.lengths[:, number].tolist(),
            columns.null[:, number].tolist(),
            strict=True,
        )
    ]
