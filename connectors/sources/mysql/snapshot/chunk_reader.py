"""Reads chunks of tables, and finds out where in the stream of changes their rows can be published.

The service writes nothing to the server. A chunk is read in three steps:

1. Find out which transactions the snapshot sees.
2. Read the rows.
3. Find out where the log ends.

The rows are published when the stream is between two transactions and has reached the end of the log that step 3 found;
see "Without messages" in `capture.tables.windows`. For step 1, MariaDB says exactly what a snapshot sees. MySQL cannot
say this. So the reader first queries which transactions were executed, and then takes the snapshot. The snapshot sees
at least these transactions. What a server says can be wrong while it executes an XA COMMIT; see `xa_commits`.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Lock

import structlog

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables.chunk_rows import ChunkRows, KeyedRows
from changelog.connectors.capture.tables.chunk_threads import ReadChunk
from changelog.connectors.capture.tables.key_lookup import LookupKeys
from changelog.connectors.capture.tables.windows import Chunk, Visibility, Windows
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.mysql.admin.server_log import end_coordinate, log_end, snapshot_place
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.session.results import ResultTooLargeError
from changelog.connectors.sources.mysql.snapshot.key_columns import range_condition
from changelog.connectors.sources.mysql.snapshot.key_progress import ChunkRange, KeyProgress
from changelog.connectors.sources.mysql.snapshot.key_rows import read_keys
from changelog.connectors.sources.mysql.snapshot.read_table import ReadTable
from changelog.connectors.sources.mysql.snapshot.visibility import Deliveries, GtidSnapshot, PlaceSnapshot
from changelog.connectors.sources.mysql.snapshot.xa_commits import prepared_transactions
from changelog.connectors.sources.mysql.values.positions.gtids import parse_gtids
from changelog.envelope.errors import ChangelogError, Kind

LOCK_WAIT_S = 2
"""How many seconds a thread waits for a table that is being altered, before it reads another chunk."""

SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}",
)
"""The statements that a session executes before it reads chunks, in addition to `selected.SETTINGS`."""

BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

_log = structlog.get_logger("mysql")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunks:
    """The chunks that have been read, and that wait until the stream reaches their place.

    For each chunk, the list has the nonce (the name of the chunk's window), and the place where the log ended when the
    chunk was read.
    """

    _lock: Lock
    _waiting: list[tuple[int, str]]

    @classmethod
    def none(cls) -> "ReadChunks":
        """Returns an empty list."""
        return cls(_lock=Lock(), _waiting=[])

    def add(self, end: int, nonce: str) -> None:
        """Adds a chunk."""
        with self._lock:
            self._waiting.append((end, nonce))

    def next_due(self) -> int | None:
        """Returns the first coordinate at which a chunk may be published; None if no chunk waits."""
        with self._lock:
            return min((end for end, _ in self._waiting), default=None)

    def due(self, end: int) -> list[bytes]:
        """Removes and returns the nonces of the chunks that may be published at the coordinate `end`."""
        if not self._waiting:
            return []
        with self._lock:
            nonces = [nonce.encode() for coordinate, nonce in self._waiting if coordinate <= end]
            self._waiting[:] = [(coordinate, nonce) for coordinate, nonce in self._waiting if coordinate > end]
        return nonces


class ChunkReader:
    """Reads the chunks that `windows` hands out, and adds them to `chunks`.

    `bind` looks up the present columns of an entity's table over a connection, and returns how to read the table.
    """

    def __init__(
        self,
        windows: Windows,
        origin: Origin,
        chunks: ReadChunks,
        deliveries: Deliveries,
        *,
        bind: Callable[[Connection, str], ReadTable],
        connect: Callable[[], Connection],
        reach: Reach = nowhere,
    ) -> None:
        self._windows, self._origin, self._chunks, self._deliveries = windows, origin, chunks, deliveries
        self._bind, self._connect, self._reach = bind, connect, reach

    @contextmanager
    def session(self) -> Iterator[ReadChunk]:
        """Opens a thread's two connections: one reads, the other queries where the log ends. See `ChunkThreads`."""
        with self._connect() as control, closing(_Renewed(self._connect)) as renewed:
            yield lambda nonce, chunk: self._chunk(renewed.connection(), control, nonce, chunk)

    def _chunk(self, reader: Connection, control: Connection, nonce: str, chunk: Chunk) -> bool:
        """Reads a chunk, or gives it back to `windows`. Returns False if the thread should pause before the next."""
        smaller = False
        try:
            rows = self._rows(reader, control, nonce, chunk)
            if rows is None:
                return False
            self._windows.read(nonce, rows)
            self._reach("window:read")
            self._chunks.add(end_coordinate(control.query, control.version), nonce)
            self._reach("window:marked")
        except ResultTooLargeError:
            smaller = True
        except ChangelogError as error:
            if error.kind is not Kind.CONNECTION or reader.closed or control.closed:
                raise
            return False  # the table is locked
        finally:
            if not reader.closed:
                reader.execute("ROLLBACK")
            self._windows.give_back_unread(nonce, smaller=smaller)
        return True

    def _rows(self, reader: Connection, control: Connection, nonce: str, chunk: Chunk) -> ChunkRows | KeyedRows | None:
        snapshot = take_snapshot(reader, control, self._deliveries)
        [(read_at,)] = reader.query("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")
        table = self._bind(reader, chunk.entity)
        if not self._windows.reading(nonce, snapshot, table.signature):
            return None
        self._reach("window:begun")
        if isinstance(chunk.part, LookupKeys):
            rows = read_keys(reader, self._origin, table, chunk.part, read_at=int(read_at))
            if len(rows.gone) and not chunk.part.ghosts:
                _log.warning("requested keys are not in the table", entity=chunk.entity, keys=len(rows.gone))
            return rows
        range_ = self._narrowed(reader, table, nonce, chunk)
        condition = _condition(table, range_)
        return table.rows(reader, self._origin, condition, read_at=int(read_at))

    def _narrowed(self, reader: Connection, table: ReadTable, nonce: str, chunk: Chunk) -> ChunkRange:
        """Narrows the range of a chunk to its first rows; the windows hand out the rest."""
        range_, task = chunk.part, chunk.task
        assert isinstance(range_, ChunkRange)
        assert isinstance(task, KeyProgress)
        columns = ", ".join(column.compared for column in table.key)
        literals = ", ".join(column.literal for column in table.key)
        rows = reader.query(
            f"SELECT {literals} FROM {table.name} WHERE {_condition(table, range_)} ORDER BY {columns}"
            f" LIMIT 1 OFFSET {task.chunk_rows - 1}"
        )
        if not rows:
            return range_
        narrowed = range_.upto(tuple(str(literal) for literal in rows[0]))
        return narrowed if self._windows.narrow(nonce, narrowed, task.narrow) else range_


def _condition(table: ReadTable, range_: ChunkRange) -> str:
    first, end = (None if bound is None else bound.key for bound in (range_.first, range_.end))
    return range_condition(table.key, first, end)


def take_snapshot(reader: Connection, control: Connection, deliveries: Deliveries) -> Visibility:
    """Begins a transaction of `reader` with a snapshot, and returns what the snapshot sees."""
    if reader.flavour is Flavour.MARIADB:
        seen_before = _seen_before(control, deliveries, end_coordinate(control.query, control.version))
        reader.execute(BEGIN)
        return _place_snapshot(reader, deliveries, seen_before)
    if control.version.logs_xa_commits_first:
        snapshot = _gtid_snapshot(control, deliveries)
    else:
        [(executed,)] = control.query("SELECT @@global.gtid_executed")
        snapshot = deliveries.snapshot(parse_gtids(reader.flavour, executed))
    reader.execute(BEGIN)
    return snapshot


def _gtid_snapshot(control: Connection, deliveries: Deliveries) -> GtidSnapshot:
    """Returns the transactions that a snapshot taken after this call surely sees. It may see more.

    This is for versions of MySQL with `logs_xa_commits_first`.
    """
    end = log_end(control.query, control.version)
    seen_before = _seen_before(control, deliveries, end.coordinate)
    if deliveries.covered is None and deliveries.received.is_subset(end.gtids):
        deliveries.covered = end.coordinate
    return deliveries.snapshot(end.gtids, seen_before, deliveries.xa_commits.settled(end.gtids))


def _seen_before(control: Connection, deliveries: Deliveries, end: int) -> int:
    """Returns a coordinate: a snapshot that is taken after this call sees every XA COMMIT before it.

    `end` is the end of the log before this call.
    """
    xa_commits = deliveries.xa_commits
    seen_before = xa_commits.seen_before(end, prepared_transactions(control))
    if seen_before == 0:
        xa_commits.prepared_before(end_coordinate(control.query, control.version))
    return seen_before


def _place_snapshot(reader: Connection, deliveries: Deliveries, seen_before: int) -> PlaceSnapshot:
    """Returns what the snapshot of MariaDB sees. It sees the XA COMMITs before the coordinate `seen_before`.

    In two cases, places alone do not say whether the snapshot misses a delivered transaction, so the GTIDs decide:

    - The snapshot ends before the place where the stream begins. Even then, it may see all delivered transactions. The
      log can end with events of the server itself, such as a checkpoint, and snapshots end before these events until
      the next commit.
    - The server has taken the place of another one. Then it is not known where the delivered transactions end in the
      log of the new server.
    """
    place = snapshot_place(reader.query)
    if seen_before < place.coordinate:
        place = place.moved(seen_before)
    if deliveries.covered is None or place.coordinate < deliveries.covered:
        if not deliveries.received.is_subset(place.gtids(reader.query)):
            return PlaceSnapshot(end=place.coordinate, sees_received=False)
        deliveries.covered = place.coordinate
    return PlaceSnapshot(end=place.coordinate)


def nonce() -> str:
    """Returns a new name for a window."""
    return secrets.token_hex(16)


class _Renewed:
    """A connection that reads tables. A chunk that is too large closes it; then a new connection takes its place."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
