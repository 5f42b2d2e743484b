"""Simulates a database, and a service that uses the real windows to read a table in chunks, one step at a time.

The simulation has everything that makes it difficult to read tables of PostgreSQL:

- A commit is in the log before it is visible.
- Rows move between pages.
- When the service starts, transactions are running.
- The service starts again at any time.

Each write to a row gives it a higher *version*. The simulation looks for two errors: an older version of a key is
published after a newer one, or the changelog differs from the table at the end.
"""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.connectors.capture.tables.key_lookup import Lookup
from changelog.connectors.capture.tables.windows import Chunk, Windows
from changelog.connectors.sources.postgres.snapshot.page_progress import (
    PAGE_SLOTS,
    Fingerprint,
    LeafProgress,
    Range,
    TableProgress,
)
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot

ENTITY, TABLE, LEAF = "order", ("public", "orders"), "public.orders"
KEYS = range(8)
PAGES = 6
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def change_of(xid: int = 1) -> Change:
    transaction = Transaction(xid=xid, name=str(xid), epoch=1, commit=1, committed_at=0)
    return Change(transaction=transaction, ordinal=0, stamp=None)


def rows_of(keys: Sequence[int], versions: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "entity": pa.array([ENTITY] * len(keys), pa.utf8()),
            "key": pa.array([str(key) for key in keys], pa.utf8()),
            "version": pa.array(versions, pa.int64()),
        }
    )


@dataclass(frozen=True, slots=True)
class Read:
    """Implements the protocol `windows.WindowRows` for the rows of a chunk."""

    rows: pa.RecordBatch
    nbytes: int = 1

    @property
    def keys(self) -> pa.StringArray:
        return self.rows.column("key")

    @property
    def gone(self) -> pa.StringArray:
        return pa.array([], pa.utf8())

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        return self.rows.filter(pa.array(keep))


# The simulated database


@dataclass(slots=True)
class _Tuple:
    """A version of a row, at a place in the file. The transaction `made_by` wrote it, and the transaction `ended_by`
    replaced or deleted it.
    """

    key: int
    version: int
    place: int
    made_by: int
    ended_by: int | None = None


@dataclass(slots=True)
class _Writer:
    """A running transaction. Each of its changes is a key, the new version, and whether the key is deleted."""

    xid: int
    changes: list[tuple[int, int, bool]] = field(default_factory=list)
    locked: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of the log: a committed transaction, or a message by which the service marks where a chunk was read."""

    xid: int
    changes: Sequence[tuple[int, int, bool]] = ()
    nonce: str | None = None
    altered: bool = False


class Database:
    """A table with several versions of each row, as PostgreSQL keeps them. The log has transactions in the order of
    their commits.
    """

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.log: list[Logged] = []
        self.writers: list[_Writer] = []
        self.logged: list[_Writer] = []  # transactions that are committed in the log, but not yet visible
        self.over: set[int] = {0}  # transactions that are visible or rolled back
        self.rolled_back: set[int] = set()
        self.filenode = 1
        self.locks = 0
        self._xids, self._versions = count(1), count(1)
        self.next_xid = 1
        self.heap = [_Tuple(key, next(self._versions), self._place(), 0) for key in KEYS if dice.random() < 0.7]

    def _place(self) -> int:
        """Returns a random place: one of the first rows of a random page."""
        return self.dice.randrange(PAGES) * PAGE_SLOTS + self.dice.randrange(1, 4)

    def begin(self) -> None:
        self.writers.append(_Writer(self.new_xid()))

    def new_xid(self) -> int:
        xid = next(self._xids)
        self.next_xid = xid + 1
        return xid

    def write(self) -> None:
        """Inserts, updates or deletes a row whose key no other transaction has locked. Or gives the row another key."""
        writer = self.dice.choice(self.writers)
        locked = {key for other in (*self.writers, *self.logged) if other is not writer for key in other.locked}
        key = self.dice.choice([key for key in KEYS if key not in locked] or [-1])
        if key < 0:
            return
        live = self._live(key)
        if live is not None:
            live.ended_by = writer.xid
            if self.dice.random() < 0.3:
                writer.changes.append((key, next(self._versions), True))
                key = self.dice.choice([other for other in KEYS if other not in locked])
                if self._live(key) is not None or self.dice.random() < 0.5:
                    writer.locked |= {key, live.key}
                    return
                writer.locked.add(live.key)
        row = _Tuple(key, next(self._versions), self._place(), writer.xid)
        self.heap.append(row)
        writer.changes.append((key, row.version, False))
        writer.locked.add(key)

    def _live(self, key: int) -> _Tuple | None:
        """The newest version of a key, as seen by a transaction that is about to write this key."""
        return next(
            (
                row
                for row in self.heap
                if row.key == key and row.ended_by is None and row.made_by not in self.rolled_back
            ),
            None,
        )

    def commit(self) -> None:
        """Puts a transaction into the log. It is not yet visible to others."""
        writer = self._pop(self.writers)
        self.log.append(Logged(writer.xid, tuple(writer.changes)))
        self.logged.append(writer)

    def show(self) -> None:
        self.over.add(self._pop(self.logged).xid)

    def roll_back(self) -> None:
        writer = self._pop(self.writers)
        self.over.add(writer.xid)
        self.rolled_back.add(writer.xid)
        for row in self.heap:
            if row.ended_by == writer.xid:
                row.ended_by = None

    def _pop(self, writers: list[_Writer]) -> _Writer:
        return writers.pop(self.dice.randrange(len(writers)))

    def snapshot(self) -> Snapshot:
        running = [writer.xid for writer in (*self.writers, *self.logged)]
        return Snapshot(
            xmin=min([*running, self.next_xid]), xmax=self.next_xid, running=np.array(sorted(running), np.int64)
        )

    def read(self, snapshot: Snapshot, pages: Range) -> pa.RecordBatch:
        rows = [row for row in self.heap if self._sees(snapshot, row) and _within(row.place, pages)]
        return rows_of([row.key for row in rows], [row.version for row in rows])

    def _sees(self, snapshot: Snapshot, row: _Tuple) -> bool:
        def seen(xid: int) -> bool:
            return xid not in self.rolled_back and not snapshot.misses(np.array([xid]))[0]

        return seen(row.made_by) and (row.ended_by is None or not seen(row.ended_by))

    def rewrite(self) -> None:
        """Does what VACUUM FULL does: moves every row to a random page of a new file."""
        self.filenode += 1
        for row in self.heap:
            row.place = self._place()

    def state(self) -> dict[int, int]:
        """The rows of the table. No transaction may be running."""
        return {
            row.key: row.version for row in self.heap if row.ended_by is None and row.made_by not in self.rolled_back
        }


def _within(place: int, pages: Range) -> bool:
    return pages.first <= place and (pages.end is None or place < pages.end)


# The simulated service


class StaleError(AssertionError):
    """The service published an older state after a newer one, or the changelog differs from the table at the end."""


class _Service:
    """A service that reads the log and the table with the real `Windows`, one step at a time."""

    def __init__(self, database: Database, make: Callable[..., Windows]) -> None:
        self.database, self.make = database, make
        self.read_to = database.dice.randint(0, len(database.log))
        self.published: dict[int, int] = {}
        self.gone: set[int] = set()
        self.signature = 0
        self._nonces = count()
        self.stored: dict[str, object] | None = None
        self.start()

    def start(self) -> None:
        """Starts a new process. Rows that were read before, but not published, are lost."""
        database = self.database
        leaves = {LEAF: LeafProgress(filenode=database.filenode, pages=PAGES - 1, ranges_left=[(0, None)])}
        self.progress = TableProgress.resume(ENTITY, str(self.signature), leaves, self.stored)
        self.progress.chunk_pages = 2
        horizon = database.new_xid()
        database.over.add(horizon)
        self.windows = self.make({ENTITY: self.progress}, horizon=horizon, nonces=lambda: str(next(self._nonces)))
        self.taken: list[tuple[str, Chunk]] = []
        self.locked: list[tuple[str, Chunk, Snapshot]] = []
        self.unsent: list[str] = []
        database.locks = 0

    # Steps of the reader threads

    def take(self) -> None:
        if not self.windows.complete and copy.deepcopy(self.progress).next_range() is not None:
            next_chunk = self.windows.take({ENTITY: TABLE})
            assert next_chunk is not None
            self.taken.append(next_chunk)

    def lock(self) -> None:
        if not self.taken:
            return
        nonce, chunk = self.taken.pop(self.database.dice.randrange(len(self.taken)))
        snapshot = self.database.snapshot()
        if self.windows.reading(nonce, snapshot, Fingerprint(str(self.signature), self.database.filenode)):
            self.database.locks += 1
            self.locked.append((nonce, chunk, snapshot))
        else:
            self.windows.give_back_unread(nonce)

    def copy(self) -> None:
        if not self.locked:
            return
        nonce, chunk, snapshot = self.locked.pop(self.database.dice.randrange(len(self.locked)))
        fate = self.database.dice.random()
        if fate < 0.1:
            self.windows.give_back_unread(nonce, smaller=True)
            self.database.locks -= 1
        else:
            assert isinstance(chunk.part, Range)
            self.windows.read(nonce, Read(self.database.read(snapshot, chunk.part)))
            self.windows.give_back_unread(nonce)
            self.unsent.append(nonce)

    def send(self) -> None:
        """Writes the message of a chunk into the log, and releases the lock with which the chunk was read."""
        if self.unsent:
            nonce = self.unsent.pop()
            xid = self.database.new_xid()
            self.database.log.append(Logged(xid, nonce=nonce))
            self.database.over.add(xid)
            self.database.locks -= 1

    # Steps of the stream

    def deliver(self) -> None:
        if self.read_to == len(self.database.log):
            return
        entry = self.database.log[self.read_to]
        self.read_to += 1
        if entry.altered:
            self.windows.discard(TABLE)
        if entry.nonce is not None:
            rows = self.windows.signal(entry.nonce.encode(), change_of(entry.xid))
            if rows is not None:
                keys = [int(key) for key in rows.column("key").to_pylist()]
                for key, version in zip(keys, rows.column("version").to_pylist(), strict=True):
                    self._publish(key, version, deleted=False, read=True)
        elif entry.changes:
            for key, version, deleted in entry.changes:
                self._publish(key, version, deleted=deleted, read=False)
            keys = [key for key, _, _ in entry.changes]
            self.windows.touched(rows_of(keys, [0] * len(keys)), np.full(len(keys), entry.xid))
        self.stored = self.windows.progress()[ENTITY]

    def _publish(self, key: int, version: int, *, deleted: bool, read: bool) -> None:
        last = self.published.get(key, 0)
        if version < last or (read and key in self.gone):
            raise StaleError(f"key {key}: version {version} was published after version {last}")
        self.published[key] = version
        (self.gone.add if deleted else self.gone.discard)(key)

    def state(self) -> dict[int, int]:
        return {key: version for key, version in self.published.items() if key not in self.gone}


def progress_of(windows: Windows) -> list[object]:
    """Returns everything that a source takes from the windows for its checkpoint."""
    lookups = [task for task in windows._tasks if isinstance(task, Lookup)]
    return [
        windows.progress(),
        windows.complete,
        *((lookup.keys_left, lookup.absent, lookup.complete, lookup.more, lookup.failed) for lookup in lookups),
    ]


def check_counted(windows: Windows, before: Windows, changes: int, progress: Sequence[object]) -> None:
    """Checks that `windows.changes` has grown if the last step changed the progress. A source reads the progress only
    if this number has grown.
    """
    assert windows is not before or changes != windows.changes or progress_of(windows) == progress


def run(seed: int, make: Callable[..., Windows], steps: int = 250) -> None:
    """Does random steps. Then ends all transactions, and lets the service read everything. Raises StaleError if the
    changelog does not equal the table at the end.
    """
    dice = random.Random(seed)
    database = Database(dice)
    for _ in range(dice.randrange(12)):
        step_of_the_database(database, dice)
    service = _Service(database, make)
    for _ in range(steps):
        before = service.windows, service.windows.changes, progress_of(service.windows)
        _step(service, database, dice)
        check_counted(service.windows, *before)
    while database.writers or database.logged:
        (database.commit if database.writers else database.show)()
    for _ in range(200):
        for step in (service.send, service.copy, service.lock, service.take, service.deliver):
            step()
        if service.windows.complete and service.read_to == len(database.log):
            break
    assert service.windows.complete
    if service.state() != database.state():
        raise StaleError(f"the changelog says {service.state()} and the table {database.state()}")


def _step(service: _Service, database: Database, dice: random.Random) -> None:
    reader = (service.take, service.take, service.lock, service.lock, service.copy, service.send)
    match dice.random():
        case chance if chance < 0.45:
            step_of_the_database(database, dice)
        case chance if chance < 0.65:
            service.deliver()
        case chance if chance < 0.98:
            dice.choice(reader)()
        case chance if chance < 0.985:
            service.start()
        case _ if not database.locks:
            _change_table(service, dice)


def step_of_the_database(database: Database, dice: random.Random) -> None:
    step = dice.choice(["begin", "write", "write", "write", "commit", "commit", "show", "show", "roll back"])
    if step == "begin" and len(database.writers) < 4:
        database.begin()
    elif step == "write" and database.writers:
        database.write()
    elif step == "commit" and database.writers:
        database.commit()
    elif step == "show" and database.logged:
        database.show()
    elif step == "roll back" and database.writers and dice.random() < 0.3:
        database.roll_back()


def _change_table(service: _Service, dice: random.Random) -> None:
    """Rewrites the table, or changes its columns. This is possible only while no reader holds a lock on the table."""
    if dice.random() < 0.5:
        service.database.rewrite()
    else:
        service.signature += 1
        service.database.log.append(Logged(service.database.new_xid(), altered=True))
        service.database.over.add(service.database.next_xid - 1)
