"""Reads chunks of tables. A *window* lasts from the reading of a chunk until the chunk's rows are published.

A chunk is copied under a snapshot. Then a message with the window's name (its nonce) is written into the database's
log. The chunk's rows are published where the stream delivers this message.
"""

import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psycopg
import structlog
from psycopg import sql

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import ChunkRows, KeyedRows
from changelog.connectors.capture.tables.chunk_threads import ReadChunk
from changelog.connectors.capture.tables.key_lookup import LookupKeys
from changelog.connectors.capture.tables.windows import Chunk, Windows
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.postgres.session.connection import Connection, translated
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.snapshot.copyout import CHUNK_BYTES_MAX, ChunkTooLargeError, copy_rows
from changelog.connectors.sources.postgres.snapshot.key_rows import read_keys
from changelog.connectors.sources.postgres.snapshot.page_progress import PAGE_SLOTS, Fingerprint, Range
from changelog.connectors.sources.postgres.snapshot.read_table import ReadTable, encode_copied
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import PREFIX

LOCK_TIMEOUT_S = 2
"""How many seconds a thread waits for the lock on a table. If the table is being altered for longer, the thread gives
the chunk back."""

_log = structlog.get_logger("postgres")

# The hash covers the columns of the table, and then the attributes of the composite types that these columns contain.
_SIGNATURES = """
SELECT signed.signature FROM unnest(%s::text[]) WITH ORDINALITY AS asked(name, number) CROSS JOIN LATERAL (
  WITH RECURSIVE used(type) AS (
    SELECT atttypid FROM pg_attribute WHERE attrelid = to_regclass(asked.name) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT part.type FROM used JOIN pg_type t ON t.oid = used.type CROSS JOIN LATERAL (
      VALUES (t.typelem), (t.typbasetype)
      UNION ALL SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)
      UNION ALL SELECT atttypid FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped
    ) AS part(type)
  ), described AS (
    SELECT 0 AS part, attrelid, attnum, attname, atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = to_regclass(asked.name) AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT 1, attrelid, attnum, attname, atttypid, atttypmod
    FROM used JOIN pg_type t ON t.oid = used.type JOIN pg_attribute a ON a.attrelid = t.typrelid
    WHERE a.attnum > 0 AND NOT a.attisdropped
  )
  SELECT md5(string_agg(attname || ' ' || atttypid || ' ' || atttypmod, ',' ORDER BY part, attrelid, attnum))
  FROM described
) AS signed(signature) ORDER BY asked.number
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChunkSnapshot:
    """The snapshot under which a locked leaf is read; `at` is its time in microseconds since 1970."""

    snapshot: Snapshot
    fingerprint: Fingerprint
    at: int


class ChunkReader:
    """Reads the chunks that `windows` hands out.

    `bind` finds out, over a connection, how to read an entity's table now.
    """

    def __init__(
        self,
        windows: Windows,
        origin: Origin,
        *,
        bind: Callable[[Connection, str], ReadTable],
        connect: Callable[[], Connection],
        reach: Reach = nowhere,
    ) -> None:
        self._windows, self._origin = windows, origin
        self._bind, self._connect, self._reach = bind, connect, reach
        self._tables: dict[str, ReadTable] = {}

    @contextmanager
    def session(self) -> Iterator[ReadChunk]:
        """Opens the connections of a thread, one to read and one to write messages; see `ChunkThreads`."""
        with translated("reading a table"), self._connect() as signalling, closing(_Renewed(self._connect)) as renewed:
            signalling.execute("SET synchronous_commit = local")  # a paused standby must not delay windows
            yield lambda nonce, chunk: self._chunk(renewed.connection(), signalling, nonce, chunk)

    def _chunk(self, reader: Connection, signalling: Connection, nonce: str, chunk: Chunk) -> bool:
        """Reads a chunk, or gives it back, so that it is handed out again later. Returns False if the thread should
        pause before the next chunk.

        Closes the connection after large rows, because libpq never frees the memory that its largest row needed.
        """
        smaller = False
        try:
            with reader.transaction():
                reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                start = _begin(reader, chunk)
                if start is None or not self._windows.reading(nonce, start.snapshot, start.fingerprint):
                    return False
                self._reach("window:begun")
                table = self._table(reader, chunk.entity, start.fingerprint.signature)
                rows = self._rows(reader, table, chunk, start.at)
                if signature(signalling, chunk.table) != start.fingerprint.signature:
                    return False  # a type was altered, which the lock on the table does not prevent
                large = rows.nbytes > 2 * CHUNK_BYTES_MAX
                self._windows.read(nonce, rows)
                self._reach("window:read")
                _signal(signalling, nonce)  # the lock is still held, so the table is as it was read
                self._reach("window:marked")
            if large:
                reader.close()
        except ChunkTooLargeError:
            smaller = True
        finally:
            self._windows.give_back_unread(nonce, smaller=smaller)
        return True

    def _rows(self, reader: Connection, table: ReadTable, chunk: Chunk, at: int) -> ChunkRows | KeyedRows:
        """Reads and returns the chunk's rows. Raises ChunkTooLargeError."""
        if isinstance(chunk.part, LookupKeys):
            rows = read_keys(reader, self._origin, table, identifier(*chunk.table), chunk.part, read_at=at)
            if len(rows.gone) and not chunk.part.ghosts:
                _log.warning("requested keys are not in the table", entity=chunk.entity, keys=len(rows.gone))
            return rows
        return encode_copied(self._origin, table.bound, _copy(reader, table, chunk.part), read_at=at)

    def _table(self, reader: Connection, entity: str, table_signature: str) -> ReadTable:
        """Returns how to read the table. Queries the catalogue only if the table's signature has changed."""
        if entity not in self._tables or self._tables[entity].signature != table_signature:
            self._tables[entity] = self._bind(reader, entity)
        return self._tables[entity]


class _Renewed:
    """A connection for reading tables. After it has been closed, the next use opens another one."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
            self._connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'".encode())
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _begin(reader: Connection, chunk: Chunk) -> _ChunkSnapshot | None:
    """Locks the leaf (the plain table or partition that stores the rows), then takes the snapshot.

    If keys are looked up, locks the whole table instead. The lock must come first: if the table were rewritten between
    the snapshot and the lock, it would look empty under the snapshot.

    Returns None if another session holds a conflicting lock. Raises ChangelogError (ALTERED) if the leaf no longer
    exists: it was dropped, or renamed while some of its rows were still unread.
    """
    leaf = identifier(*chunk.table) if isinstance(chunk.part, LookupKeys) else chunk.part.leaf
    try:
        with reader.transaction():
            reader.execute(f"LOCK TABLE {leaf} IN ACCESS SHARE MODE".encode())
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise ChangelogError(
            Kind.ALTERED,
            f"the table {leaf} disappeared while it was being read; the service makes a new plan for the reading",
        ) from error
    except psycopg.errors.LockNotAvailable:
        return None
    row = reader.execute(
        "SELECT pg_current_snapshot()::text, coalesce(pg_relation_filenode(c.oid), 0), "
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM pg_class c WHERE c.oid = to_regclass(%s)",
        [leaf],
    ).fetchone()
    assert row is not None
    fingerprint = Fingerprint(signature(reader, chunk.table), row[1])
    return _ChunkSnapshot(snapshot=Snapshot.parse(row[0]), fingerprint=fingerprint, at=row[2])


def signature(connection: Connection, table: tuple[str, str]) -> str:
    """Returns a hash of a table's columns and their types.

    Altering a column, or a composite type that a column contains, changes the hash.
    """
    return signatures(connection, [table])[table]


def signatures(connection: Connection, tables: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Returns the `signature` of each table."""
    rows = connection.execute(_SIGNATURES.encode(), [[identifier(*table) for table in tables]]).fetchall()
    return {table: str(row[0]) for table, row in zip(tables, rows, strict=True)}


def _copy(reader: Connection, table: ReadTable, range_: Range) -> bytearray:
    """Copies the rows of a range, in COPY's text format. Raises ChunkTooLargeError."""
    conditions = [sql.SQL("ctid >= {}").format(_tid(range_.first))]
    if range_.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(_tid(range_.end)))
    if table.where is not None:
        conditions.append(sql.SQL("({})").format(sql.SQL(table.where)))
    query = sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, table.columns)), sql.SQL(range_.leaf), sql.SQL(" AND ").join(conditions)
    )
    return copy_rows(reader, query)


def _tid(bound: int) -> sql.Literal:
    return sql.Literal("({},{})".format(*divmod(bound, PAGE_SLOTS)))


def _signal(signalling: Connection, nonce: str) -> None:
    signalling.execute("SELECT pg_logical_emit_message(true, %s, %s)", [PREFIX, nonce])


def nonce() -> str:
    """Returns an unguessable name for a window, so that no other role can write the window's message."""
    return secrets.token_hex(16)
