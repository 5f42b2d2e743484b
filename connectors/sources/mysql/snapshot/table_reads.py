"""The table reads of one opening of the source: ranges of tables, rows of requested keys, and sweeps.

A *window* reads one chunk: a range of keys, or the rows of some keys. A *sweep* searches the changelog for *ghosts*:
the last rows of keys that their table may no longer have. It then reads these keys from the table, and publishes a
delete for each key that is not there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.capture.tables import survivors, sweeper
from changelog.connectors.capture.tables.chunk_threads import ChunkThreads
from changelog.connectors.capture.tables.planned_reads import PlannedReads
from changelog.connectors.capture.tables.repairs import Reached, Repairs
from changelog.connectors.capture.tables.sweeper import Sweeper
from changelog.connectors.capture.tables.windows import Visibility, Windows
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.sources.mysql.admin.catalog import Table, TableName
from changelog.connectors.sources.mysql.admin.columns import ColumnCatalog
from changelog.connectors.sources.mysql.decode.rows.binder import Binder
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot.chunk_reader import ChunkReader, ReadChunks, nonce, take_snapshot
from changelog.connectors.sources.mysql.snapshot.key_progress import KeyProgress
from changelog.connectors.sources.mysql.snapshot.read_table import ReadTable, read_table, signature
from changelog.connectors.sources.mysql.snapshot.visibility import Delivered
from changelog.envelope.entity import Entity

FAIL_POINTS = (
    "signal:heard",
    "reading:planned",
    "window:begun",
    "window:read",
    "window:marked",
    *sweeper.FAIL_POINTS,
    "reading:complete",
)
"""The fail points between two steps of a table read, at which tests can crash the process.

Every window passes the three that begin with `window`.
"""

_log = structlog.get_logger("mysql")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What the table reads of one opening need.

    `workers` threads read over sessions that `connect` opens, at first in chunks of `chunk_rows` rows. `tables`
    describes the tables, as the catalogue has them. `horizon` is the coordinate at which the stream begins. `changelog`
    reads the stored rows of entities; it is None if the sink cannot be read. `reach` is called at each of
    `FAIL_POINTS`.
    """

    origin: Origin
    connect: Callable[[], Connection]
    binder: Binder
    workers: int
    chunk_rows: int
    horizon: int
    delivered: Delivered
    tables: Mapping[TableName, Table]
    changelog: survivors.Read | None
    reach: Reach = nowhere


class TableReads:
    """Holds the windows of one opening, and the threads that read for them.

    `entities` are all configured entities. `windows` and `repairs` are the stored progress and the stored repairs.
    """

    def __init__(
        self,
        catalog: ColumnCatalog,
        context: ReadContext,
        entities: Sequence[Entity],
        windows: Mapping[str, Any],
        repairs: Repairs,
    ) -> None:
        self._catalog, self._context, self._entities = catalog, context, {entity.name: entity for entity in entities}
        self._plan = PlannedReads(entities, windows, repairs, can_sweep=context.changelog is not None)
        unread, lookups = self._plan.unread, self._plan.lookups
        columns = catalog.all_rows([entity.table for entity in unread])
        tables = {
            entity.name: self._progress(entity, signature(columns.get(entity.table, ())), windows.get(entity.name))
            for entity in unread
        }
        self.windows = Windows(tables, horizon=context.horizon, nonces=nonce, lookups=lookups)
        self.chunks = ReadChunks.none()
        self._threads: ChunkThreads | None = None
        self._sweeper: Sweeper | None = None
        if tables or lookups:
            names = [*tables, *(lookup.entity for lookup in lookups)]
            _log.info("reading tables", entities=sorted(set(names)), swept=sorted(self._plan.sweeps))

    def start(self) -> None:
        """Starts the threads if there is something to read."""
        if self.windows.complete:
            return
        context = self._context
        context.reach("reading:planned")
        reader = ChunkReader(
            self.windows,
            context.origin,
            self.chunks,
            context.delivered,
            bind=self._bind,
            connect=context.connect,
            reach=context.reach,
        )
        tables = {name: entity.table for name, entity in self._entities.items()}
        self._threads = ChunkThreads(self.windows, tables, reader.session, workers=context.workers)
        if self._plan.sweeps:
            assert context.changelog is not None
            self._sweeper = Sweeper(
                self.windows,
                self._entities,
                self._plan.sweeps,
                self._plan.repairs,
                context.changelog,
                self._snapshots,
                reach=context.reach,
            )

    def _bind(self, connection: Connection, entity: str) -> ReadTable:
        return read_table(self._catalog.through(connection.query), self._context.binder, self._entities[entity])

    @contextmanager
    def _snapshots(self) -> Iterator[Callable[[], Visibility]]:
        """Opens connections with which the sweeper takes snapshots."""
        with self._context.connect() as reading, self._context.connect() as asking:

            def snapshot() -> Visibility:
                visibility = take_snapshot(reading, asking, self._context.delivered)
                reading.execute("ROLLBACK")
                return visibility

            yield snapshot

    def _progress(self, entity: Entity, signature: str, stored: Mapping[str, Any] | None) -> KeyProgress:
        table = self._context.tables.get(entity.table)
        rows = 0 if table is None else table.rows_estimate
        chunk_rows = self._context.chunk_rows
        return KeyProgress.resume(
            entity.name, signature, chunks=rows // chunk_rows + 1, chunk_rows=chunk_rows, stored=stored
        )

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the reading early, if any."""
        return next((part.failure for part in (self._sweeper, self._threads) if part and part.failure), None)

    @property
    def running(self) -> bool:
        """Whether the reading threads are running."""
        return self._threads is not None

    @property
    def sweeping(self) -> bool:
        """Whether a sweep is reading the changelog; an interrupted sweep starts again from the beginning."""
        return self._plan.sweeping

    def reached(self, changed: Collection[str]) -> Reached:
        """Returns the progress of lookups and sweeps, without the entities `changed`, whose plan is out of date."""
        return self._plan.reached(changed, idle=self.windows.complete)

    def close(self) -> None:
        """Stops the threads. A later opening reads the unpublished chunks again."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if self._sweeper is not None:
            self._sweeper.close()
            self._sweeper = None
