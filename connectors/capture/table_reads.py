"""Reads tables while a source is open, for every kind of database: runs the threads and records the progress.

    plan ──▶ windows ──▶ threads that read chunks ──▶ rows, between those of the stream
                 └─────▶ a thread that sweeps the changelog

A *window* reads one chunk: a range of a table, or the rows of some keys. A *sweep* searches the changelog for *ghosts*:
keys that the changelog has, and that may be gone from their table. It then reads these keys from the table, and
publishes a delete for each key that is not there.

A source provides the functions that read a chunk and take a snapshot. This module does the rest: it decides what is
read, runs the threads, stores the progress in the checkpoint, and passes the error of a thread to the source.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import structlog

from changelog.connectors.capture.checkpointing import Checkpointing
from changelog.connectors.capture.tables import survivors, sweeper
from changelog.connectors.capture.tables.chunk_threads import ChunkThreads, ReadChunk
from changelog.connectors.capture.tables.planned_reads import PlannedReads
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.capture.tables.sweeper import Snapshots, Sweeper
from changelog.connectors.capture.tables.windows import TableTask, Windows
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

FAIL_POINTS = (
    "signal:heard",
    "reading:planned",
    "window:begun",
    "window:read",
    "window:marked",
    *sweeper.FAIL_POINTS,
    "reading:complete",
)
"""The fail points of a table read (see `changelog.connectors.failpoints`).

Every window reaches the three fail points whose names begin with `window`.
"""

_log = structlog.get_logger("source")


class TableReads:
    """Holds the windows of a source that is open, and the threads that read their chunks.

    `tables` has, by entity, the progress of each table that the plan says to read. `Windows` explains `horizon` and
    `nonces`. `reach` is called at each of `FAIL_POINTS`.
    """

    def __init__(
        self,
        plan: PlannedReads,
        tables: Mapping[str, TableTask],
        *,
        horizon: int,
        nonces: Callable[[], str],
        reach: Callable[[str], None],
    ) -> None:
        self._plan, self._reach = plan, reach
        self.windows = Windows(tables, horizon=horizon, nonces=nonces, lookups=plan.lookups)
        self._threads: ChunkThreads | None = None
        self._sweeper: Sweeper | None = None
        self._recorded: tuple[tuple[int, int], Repairs | None, Mapping[str, Any] | None] = (-1, -1), None, None
        names: Collection[str] = {*tables, *(lookup.entity for lookup in plan.lookups)}
        if names:
            _log.info("reading tables", entities=sorted(names), swept=sorted(plan.sweeps))

    def start(
        self,
        entities: Sequence[Entity],
        sessions: Callable[[], AbstractContextManager[ReadChunk]],
        snapshots: Snapshots,
        *,
        workers: int,
        changelog: survivors.Read | None,
    ) -> None:
        """Starts the threads if there is something to read.

        `entities` are all configured entities. Each of the `workers` threads calls `sessions` once, and the thread that
        sweeps calls `snapshots`. `changelog` reads the stored rows of entities; it may be None if the plan has no
        sweep.
        """
        if self.windows.complete:
            return
        self._reach("reading:planned")
        by_name = {entity.name: entity for entity in entities}
        tables = {name: entity.table for name, entity in by_name.items()}
        self._threads = ChunkThreads(self.windows, tables, sessions, workers=workers)
        if self._plan.sweeps:
            assert changelog is not None
            self._sweeper = Sweeper(
                self.windows, by_name, self._plan.sweeps, self._plan.repairs, changelog, snapshots, reach=self._reach
            )

    @property
    def running(self) -> bool:
        """Whether the reading threads are running."""
        return self._threads is not None

    def check(self, state: Checkpointing) -> None:
        """Stops the threads if all tables are read.

        Raises the error that ended the reading early, if any. Raises ChangelogError (ALTERED) if the stored plan is no
        longer the plan of this opening; the service then opens the source again and reads by the new plan.
        """
        for part in (self._sweeper, self._threads):
            if part is not None and part.failure is not None:
                raise part.failure
        if self.running and self.windows.complete:
            self._reach("reading:complete")
            self.close()
            _log.info("all tables are read")
        # A running sweep would start again from the beginning, so only a pause or a cancellation interrupts it.
        if state.is_outdated(sweeping=self._plan.sweeping):
            raise ChangelogError(Kind.ALTERED, "the plan of the table reads has changed; the source is opened again")

    def record(self, state: Checkpointing) -> None:
        """Stores the progress of the table reads in the checkpoint, if the progress or the plan has changed."""
        recorded_changes, repairs, progress = self._recorded
        changes = self.windows.changes, len(state.replanned)
        if changes == recorded_changes and state.repairs is repairs and state.checkpoint.windows is progress:
            return
        state.progress(self.windows.progress(), self._plan.reached(state.replanned, idle=self.windows.complete))
        self._recorded = changes, state.repairs, state.checkpoint.windows

    def close(self) -> None:
        """Stops the threads. A later opening reads the unpublished chunks again."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if self._sweeper is not None:
            self._sweeper.close()
            self._sweeper = None
