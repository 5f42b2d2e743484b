"""Searches the changelog for ghosts, in a thread, and hands them to `Windows`, which looks them up in the tables.

A *ghost* is a key that the changelog has and its table may lack (`survivors`). This search is called a *sweep*. The
sweep of an entity ends when all its ghosts are handled. A sweep that is interrupted starts again from the beginning, at
the next opening of the source.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic

import pyarrow as pa
import structlog

from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.key_lookup import Ghost, Lookup
from changelog.connectors.capture.tables.repairs import Repair
from changelog.connectors.capture.tables.windows import Visibility, Windows
from changelog.envelope.entity import Entity
from changelog.envelope.errors import RETRIED, ChangelogError

FAIL_POINTS = ("sweep:read", "sweep:found", "sweep:published")
"""The fail points of a sweep (see `changelog.connectors.failpoints`)."""

SNAPSHOT_INTERVAL_S = 5.0
"""While a sweep reads the changelog, it takes a snapshot of the database every so many seconds. Each snapshot lets
`Windows` forget keys that it no longer needs.
"""

Snapshots = Callable[[], AbstractContextManager[Callable[[], Visibility]]]
"""Opens a connection to the database, and yields a function that takes a snapshot over this connection."""

_log = structlog.get_logger("source")


class Sweeper:
    """Runs, in a thread of its own, the sweeps that were planned when the source opened.

    `sweeps` has the lookup of each entity to sweep, and `repairs` the repairs that ask for these sweeps. `read` reads
    the stored rows of entities. `reach` is called at each of `FAIL_POINTS`.
    """

    def __init__(
        self,
        windows: Windows,
        entities: Mapping[str, Entity],
        sweeps: Mapping[str, Lookup],
        repairs: Mapping[str, Repair],
        read: survivors.Read,
        snapshots: Snapshots,
        *,
        reach: Callable[[str], None],
    ) -> None:
        self._windows, self._entities, self._sweeps, self._repairs = windows, entities, sweeps, repairs
        self._read, self._snapshots, self._reach = read, snapshots, reach
        self._stopping = threading.Event()
        self.failure: BaseException | None = None
        """The error that ended the sweeps early, if any."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="sweep")
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._snapshots() as snapshot:
                self._sweep_all(_Stored(self, snapshot).rows)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - the source raises it; otherwise the sweep would end silently
            self.failure = error

    def _sweep_all(self, read: survivors.Read) -> None:
        starts = {}
        for name in self._sweeps:
            entity, repair = self._entities[name], self._repairs[name]
            if entity.immutable and entity.on_change_of_immutable == "ignore":
                self._end([name])  # this entity's policy: the changelog keeps deleted rows
            elif repair.sweep:
                starts[name] = repair.start
            else:
                self._sweep_keys(read, name, repair.absent)
        self._sweep_older(read, starts)

    def _sweep_keys(self, read: survivors.Read, name: str, keys: Collection[str]) -> None:
        try:
            self._hand_over({name: survivors.of_keys(read, name, keys)})
        except ChangelogError as error:
            self._fail(name, error)
        else:
            self._end([name])

    def _sweep_older(self, read: survivors.Read, starts: Mapping[str, str]) -> None:
        """Sweeps several entities in one pass over the changelog.

        `starts` gives for each entity the position where the reading of its table began: a key whose last row is older
        may be a ghost. If the rows of an entity cannot be read, only the sweep of this entity fails. To find it, the
        entities that are left are swept again, in two halves.
        """
        pending, with_ghosts = {*starts}, set[str]()
        try:
            absent_keys = {name: self._repairs[name].absent for name in starts}
            for portion in survivors.older_than(read, starts, absent_keys):
                self._hand_over(portion.ghosts)
                self._end(portion.whole)
                self._end(portion.cut, more=True)
                with_ghosts |= portion.ghosts.keys()
                pending -= portion.whole | portion.cut
        except ChangelogError as error:
            if error.kind in RETRIED:
                raise
            # When several entities are read together, one portion has all their ghosts, and none of them is pending
            # afterwards. So if an entity has yielded ghosts and is still pending, it was read alone, and its rows
            # caused the error. This entity is not read again: its deletes may still be waiting to be committed, so
            # the same ghosts would be found once more.
            unreadable = {*pending} if len(pending) == 1 else with_ghosts & pending
            for name in unreadable:
                self._fail(name, error)
            others = [name for name in starts if name in pending - unreadable]
            middle = (len(others) + 1) // 2
            for names in filter(None, (others[:middle], others[middle:])):
                self._sweep_older(read, {name: starts[name] for name in names})

    def _fail(self, name: str, error: ChangelogError) -> None:
        """Ends the sweep of an entity whose rows in the changelog cannot be read; the service continues.

        If the service tries again after errors of this kind, raises the error instead: the next opening may succeed.
        """
        if error.kind in RETRIED:
            raise error
        _log.error("the sweep cannot read the changelog", entity=name, error=str(error))
        self._end([name], failed=True)

    def _end(self, names: Collection[str], *, more: bool = False, failed: bool = False) -> None:
        def end() -> None:
            for name in names:
                self._sweeps[name].end(more=more, failed=failed)

        self._windows.offered(end)

    def _hand_over(self, ghosts: Mapping[str, Sequence[Ghost]]) -> None:
        """Offers the ghosts to `Windows` and waits until they are handled, so that only these ghosts are in memory."""

        def offer() -> None:
            for name, rows in ghosts.items():
                self._sweeps[name].offer(rows)

        for name, rows in ghosts.items():
            _log.info("looking up rows of the changelog in their table", entity=name, rows=len(rows))
        self._reach("sweep:found")
        self._windows.offered(offer)
        while not all(self._sweeps[name].idle for name in ghosts):
            if self._stopping.wait(0.1):
                raise _StoppedError
        self._reach("sweep:published")


class _StoppedError(Exception):
    """The sweeper was closed."""


class _Stored:
    """Reads rows of the changelog. Takes a snapshot now and then, so that `Windows` can forget ended transactions."""

    def __init__(self, sweeper: Sweeper, snapshot: Callable[[], Visibility]) -> None:
        self._sweeper, self._snapshot = sweeper, snapshot
        self._due = 0.0

    def rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        sweeper = self._sweeper
        for rows in sweeper._read(entities, key):
            if sweeper._stopping.is_set():
                raise _StoppedError
            if monotonic() >= self._due:
                self._due = monotonic() + SNAPSHOT_INTERVAL_S
                sweeper._windows.record_snapshot(self._snapshot())
            sweeper._reach("sweep:read")
            yield rows
