"""Windows on a simulated database: whatever happens in whatever order, no reader ever sees a state go back.

The simulation has what makes this hard in PostgreSQL: a commit is in the log before it is visible, rows move between
pages, transactions run when the service starts, and the service starts again. A *version* is a number that grows with
each write; a published state that is older than one published before it for the same key is the fault looked for.
"""

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.connectors.capture.tables import windows as windows_module
from changelog.connectors.capture.tables.key_lookup import Lookup
from changelog.connectors.capture.tables.windows import Chunk, Visibility, Windows
from changelog.connectors.sources.postgres.snapshot.page_progress import (
    PAGE_SLOTS,
    Fingerprint,
    LeafProgress,
    Range,
    TableProgress,
)
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.envelope.errors import ChangelogError, Kind

ENTITY, TABLE, LEAF = "order", ("public", "orders"), "public.orders"
KEYS = range(8)
PAGES = 6
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def _change(xid: int = 1) -> Change:
    return Change(transaction=Transaction(xid=xid, epoch=1, commit=1, committed_at=0), ordinal=0, stamp=None)


def _rows(keys: Sequence[int], versions: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "entity": pa.array([ENTITY] * len(keys), pa.utf8()),
            "key": pa.array([str(key) for key in keys], pa.utf8()),
            "version": pa.array(versions, pa.int64()),
        }
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A chunk's rows, as `windows.Rows` asks for them."""

    found: pa.RecordBatch
    nbytes: int = 1

    @property
    def keys(self) -> pa.StringArray:
        return self.found.column("key")

    @property
    def gone(self) -> pa.StringArray:
        return pa.array([], pa.utf8())

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        return self.found.filter(pa.array(keep))


# The simulated database


@dataclass(slots=True)
class _Tuple:
    """A row version at a place in the file; `ended_by` is the transaction that replaced or deleted it."""

    key: int
    version: int
    place: int
    made_by: int
    ended_by: int | None = None


@dataclass(slots=True)
class _Writer:
    """A transaction that runs: its changes as (key, version, deleted), and the tuples that it holds."""

    xid: int
    changes: list[tuple[int, int, bool]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Logged:
    """An entry of the log: a committed transaction, or the message of a window."""

    xid: int
    changes: Sequence[tuple[int, int, bool]] = ()
    nonce: str | None = None
    altered: bool = False


class _Database:
    """One table under multi-version concurrency control, and its log in commit order."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.log: list[_Logged] = []
        self.writers: list[_Writer] = []
        self.logged: list[_Writer] = []  # committed in the log, not yet visible
        self.over: set[int] = {0}  # visible, or rolled back
        self.rolled_back: set[int] = set()
        self.filenode = 1
        self.locks = 0
        self._xids, self._versions = count(1), count(1)
        self.next_xid = 1
        self.heap = [_Tuple(key, next(self._versions), self._place(), 0) for key in KEYS if dice.random() < 0.7]

    def _place(self) -> int:
        """One of a few rows of a page."""
        return self.dice.randrange(PAGES) * PAGE_SLOTS + self.dice.randrange(1, 4)

    def begin(self) -> None:
        self.writers.append(_Writer(self.new_xid()))

    def new_xid(self) -> int:
        xid = next(self._xids)
        self.next_xid = xid + 1
        return xid

    def write(self) -> None:
        """Inserts, updates or deletes a key that nobody else holds; or moves it to another key."""
        writer = self.dice.choice(self.writers)
        held = {key for other in (*self.writers, *self.logged) if other is not writer for key in other.held}
        key = self.dice.choice([key for key in KEYS if key not in held] or [-1])
        if key < 0:
            return
        live = self._live(key)
        if live is not None:
            live.ended_by = writer.xid
            if self.dice.random() < 0.3:
                writer.changes.append((key, next(self._versions), True))
                key = self.dice.choice([other for other in KEYS if other not in held])
                if self._live(key) is not None or self.dice.random() < 0.5:
                    writer.held |= {key, live.key}
                    return
                writer.held.add(live.key)
        made = _Tuple(key, next(self._versions), self._place(), writer.xid)
        self.heap.append(made)
        writer.changes.append((key, made.version, False))
        writer.held.add(key)

    def _live(self, key: int) -> _Tuple | None:
        """The newest version of a key, as its writer sees it."""
        return next(
            (
                each
                for each in self.heap
                if each.key == key and each.ended_by is None and each.made_by not in self.rolled_back
            ),
            None,
        )

    def commit(self) -> None:
        """Into the log; others do not see it yet."""
        writer = self._pop(self.writers)
        self.log.append(_Logged(writer.xid, tuple(writer.changes)))
        self.logged.append(writer)

    def show(self) -> None:
        self.over.add(self._pop(self.logged).xid)

    def roll_back(self) -> None:
        writer = self._pop(self.writers)
        self.over.add(writer.xid)
        self.rolled_back.add(writer.xid)
        for each in self.heap:
            if each.ended_by == writer.xid:
                each.ended_by = None

    def _pop(self, writers: list[_Writer]) -> _Writer:
        return writers.pop(self.dice.randrange(len(writers)))

    def snapshot(self) -> Snapshot:
        running = [writer.xid for writer in (*self.writers, *self.logged)]
        return Snapshot(
            xmin=min([*running, self.next_xid]), xmax=self.next_xid, running=np.array(sorted(running), np.int64)
        )

    def read(self, snapshot: Snapshot, taken: Range) -> pa.RecordBatch:
        found = [each for each in self.heap if self._sees(snapshot, each) and _within(each.place, taken)]
        return _rows([each.key for each in found], [each.version for each in found])

    def _sees(self, snapshot: Snapshot, each: _Tuple) -> bool:
        def seen(xid: int) -> bool:
            return xid not in self.rolled_back and not snapshot.misses(np.array([xid]))[0]

        return seen(each.made_by) and (each.ended_by is None or not seen(each.ended_by))

    def rewrite(self) -> None:
        """VACUUM FULL: every row on another page, in another file."""
        self.filenode += 1
        for each in self.heap:
            each.place = self._place()

    def state(self) -> dict[int, int]:
        """Once every transaction is over."""
        return {
            each.key: each.version
            for each in self.heap
            if each.ended_by is None and each.made_by not in self.rolled_back
        }


def _within(place: int, taken: Range) -> bool:
    return taken.first <= place and (taken.end is None or place < taken.end)


# The simulated service


class _StaleError(AssertionError):
    """A state was published that is older than one published before it."""


class _Service:
    """A reader of the log and of the table around the real `Windows`, one step at a time."""

    def __init__(self, database: _Database, make: Callable[..., Windows]) -> None:
        self.database, self.make = database, make
        self.read_to = database.dice.randint(0, len(database.log))
        self.published: dict[int, int] = {}
        self.gone: set[int] = set()
        self.signature = 0
        self._nonces = count()
        self.stored: dict[str, object] | None = None
        self.start()

    def start(self) -> None:
        """A new process: what was read and not published is forgotten."""
        database = self.database
        leaves = {LEAF: LeafProgress(filenode=database.filenode, pages=PAGES - 1, left=[(0, None)])}
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
            found = self.windows.take({ENTITY: TABLE})
            assert found is not None
            self.taken.append(found)

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
            assert isinstance(chunk.taken, Range)
            self.windows.read(nonce, _Read(self.database.read(snapshot, chunk.taken)))
            self.windows.give_back_unread(nonce)
            self.unsent.append(nonce)

    def send(self) -> None:
        """The message is in the log; then the lock goes."""
        if self.unsent:
            nonce = self.unsent.pop()
            xid = self.database.new_xid()
            self.database.log.append(_Logged(xid, nonce=nonce))
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
            found = self.windows.signal(entry.nonce.encode(), _change(entry.xid))
            if found is not None:
                keys = [int(key) for key in found.column("key").to_pylist()]
                for key, version in zip(keys, found.column("version").to_pylist(), strict=True):
                    self._publish(key, version, deleted=False, read=True)
        elif entry.changes:
            for key, version, deleted in entry.changes:
                self._publish(key, version, deleted=deleted, read=False)
            keys = [key for key, _, _ in entry.changes]
            self.windows.touched(_rows(keys, [0] * len(keys)), np.full(len(keys), entry.xid))
        self.stored = self.windows.progress()[ENTITY]

    def _publish(self, key: int, version: int, *, deleted: bool, read: bool) -> None:
        last = self.published.get(key, 0)
        if version < last or (read and key in self.gone):
            raise _StaleError(f"key {key}: version {version} behind {last}")
        self.published[key] = version
        (self.gone.add if deleted else self.gone.discard)(key)

    def state(self) -> dict[int, int]:
        return {key: version for key, version in self.published.items() if key not in self.gone}


def progress_of(windows: Windows) -> list[object]:
    """All that a source makes of windows for its checkpoint."""
    lookups = [task for task in windows._tasks if isinstance(task, Lookup)]
    return [
        windows.progress(),
        windows.complete,
        *((each.left, each.absent, each.complete, each.more, each.failed) for each in lookups),
    ]


def check_counted(windows: Windows, before: Windows, changes: int, progress: Sequence[object]) -> None:
    """A step that changed the progress was counted: a source looks at the progress only then."""
    assert windows is not before or changes != windows.changes or progress_of(windows) == progress


def _run(seed: int, make: Callable[..., Windows], steps: int = 250) -> None:
    """Random steps; then everything ends, and the changelog must say what the table says."""
    dice = random.Random(seed)
    database = _Database(dice)
    for _ in range(dice.randrange(12)):
        _of_the_database(database, dice)
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
        raise _StaleError(f"the changelog says {service.state()} and the table {database.state()}")


def _step(service: _Service, database: _Database, dice: random.Random) -> None:
    reader = (service.take, service.take, service.lock, service.lock, service.copy, service.send)
    match dice.random():
        case chance if chance < 0.45:
            _of_the_database(database, dice)
        case chance if chance < 0.65:
            service.deliver()
        case chance if chance < 0.98:
            dice.choice(reader)()
        case chance if chance < 0.985:
            service.start()
        case _ if not database.locks:
            _altered(service, dice)


def _of_the_database(database: _Database, dice: random.Random) -> None:
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


def _altered(service: _Service, dice: random.Random) -> None:
    """What needs the table alone: it is rewritten, or has other columns from here on."""
    if dice.random() < 0.5:
        service.database.rewrite()
    else:
        service.signature += 1
        service.database.log.append(_Logged(service.database.new_xid(), altered=True))
        service.database.over.add(service.database.next_xid - 1)


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Touched keys are looked through for what may be forgotten all the time."""
    monkeypatch.setattr(windows_module, "_KEPT_ROWS_MAX", 2)


def test_no_state_goes_back_and_the_changelog_ends_as_the_table(seed: int) -> None:
    for number in range(150):
        _run(seed + number, Windows)


# The same with a rule broken: the simulation must tell


class _KeepsEverything(Windows):
    """Publishes a chunk's rows whatever was delivered in the meantime."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        return np.ones(len(keys), bool)


class _ByLogPosition(Windows):
    """DBLog's rule: drops what was delivered since the chunk was read, whatever the snapshot saw."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._touched.clear()
        return super().reading(nonce, snapshot, fingerprint)

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        everything = Snapshot(xmin=0, xmax=0, running=np.array([], np.int64))
        return super()._untouched(entity, everything, keys)


class _ByXmaxAlone(Windows):
    """Takes every transaction that began before the snapshot for visible."""

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        assert isinstance(snapshot, Snapshot)
        plain = Snapshot(xmin=snapshot.xmin, xmax=snapshot.xmax, running=np.array([], np.int64))
        return super()._untouched(entity, plain, keys)


class _DoesNotWait(Windows):
    """Reads although transactions run that may have been delivered to the service before this one."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        self._horizon = 0
        return super().reading(nonce, snapshot, fingerprint)


class _ForgetsTooMuch(Windows):
    """Forgets what the latest snapshot shows, though older ones wait for their message."""

    def _forget(self) -> None:
        waiting = [chunk for chunk in self._chunks.values() if chunk.rows is not None]
        snapshots = [chunk.snapshot for chunk in waiting]
        for chunk in waiting:
            chunk.snapshot = self._latest
        super()._forget()
        for chunk, snapshot in zip(waiting, snapshots, strict=True):
            chunk.snapshot = snapshot


class _KeepsOldFiles(Windows):
    """Goes on with page numbers of a table that was rewritten."""

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Fingerprint) -> bool:
        progress = self._tables[ENTITY]
        assert isinstance(progress, TableProgress)
        stored = Fingerprint(fingerprint.signature, progress.leaves[LEAF].filenode)
        return super().reading(nonce, snapshot, stored)


@pytest.mark.parametrize(
    "broken", [_KeepsEverything, _ByLogPosition, _ByXmaxAlone, _DoesNotWait, _ForgetsTooMuch, _KeepsOldFiles]
)
def test_a_broken_rule_is_caught(broken: type[Windows], seed: int) -> None:
    def runs() -> None:
        for number in range(2000):
            _run(seed + number, broken)

    with pytest.raises(_StaleError):
        runs()


# Paths of their own


def _windows(pages: int = 10, bytes_max: int = 32 << 20) -> tuple[Windows, TableProgress]:
    """Over one leaf of so many pages, in chunks of 4; nonces are 0, 1, 2, …"""
    leaves = {LEAF: LeafProgress(filenode=1, pages=pages, left=[(0, None)])}
    progress = TableProgress(entity=ENTITY, signature="columns", leaves=leaves, chunk_pages=4)
    nonces = map(str, count())
    return Windows({ENTITY: progress}, horizon=100, nonces=lambda: next(nonces), bytes_max=bytes_max), progress


def _pages(first: int, end: int | None) -> Range:
    return Range(leaf=LEAF, first=first * PAGE_SLOTS, end=None if end is None else end * PAGE_SLOTS)


def _take(windows: Windows) -> tuple[str, Range]:
    found = windows.take({ENTITY: TABLE})
    assert found is not None
    assert isinstance(found[1].taken, Range)
    return found[0], found[1].taken


def _snapshot(*running: int, xmax: int = 200) -> Snapshot:
    return Snapshot(xmin=min(running, default=xmax), xmax=xmax, running=np.array(running, np.int64))


def _read(windows: Windows, nonce: str, *keys: int, snapshot: Snapshot | None = None) -> None:
    assert windows.reading(nonce, snapshot or _snapshot(), Fingerprint("columns", 1))
    windows.read(nonce, _Read(_rows(keys, [0] * len(keys))))


def _signalled(windows: Windows, nonce: str) -> list[str] | None:
    found = windows.signal(nonce.encode(), _change())
    return None if found is None else found.column("key").to_pylist()


def test_a_table_is_handed_out_to_its_end_and_published_piece_by_piece() -> None:
    windows, progress = _windows()
    taken = [_take(windows) for _ in range(3)]
    assert [each for _, each in taken] == [_pages(0, 4), _pages(4, 8), _pages(8, None)]
    assert progress.next_range() is None
    assert windows.open == 3
    _read(windows, "1", 5, 6)
    assert _signalled(windows, "1") == ["5", "6"]
    assert progress.to_json()["leaves"][LEAF]["left"] == [[0, 4], [8, None]]
    for nonce in ("0", "2"):
        assert not windows.complete
        _read(windows, nonce)
        assert _signalled(windows, nonce) == []
    assert windows.complete
    assert windows.progress() == {ENTITY: {"complete": True}}
    assert windows.take({ENTITY: TABLE}) is None


def test_rows_that_were_touched_unseen_are_left_out_and_those_touched_in_sight_are_not() -> None:
    windows, _ = _windows()
    windows.touched(_rows([1, 2, 3], [0, 0, 0]), np.array([150, 160, 210]))
    nonce, _ = _take(windows)
    _read(windows, nonce, 1, 2, 3, 4, snapshot=_snapshot(150))
    windows.touched(_rows([4], [0]), np.array([140]))
    assert _signalled(windows, nonce) == ["2", "4"]


def test_the_rows_of_another_entity_touch_nothing() -> None:
    windows, _ = _windows()
    other = _rows([1], [0]).set_column(0, "entity", pa.array(["guest"]))
    windows.touched(other, np.array([300]))
    nonce, _ = _take(windows)
    _read(windows, nonce, 1)
    assert _signalled(windows, nonce) == ["1"]


def test_a_message_that_is_not_ours_or_comes_twice_brings_nothing() -> None:
    windows, _ = _windows()
    nonce, _ = _take(windows)
    assert _signalled(windows, "someone else's") is None
    assert windows.signal(b"\xff\xfe", _change()) is None
    _read(windows, nonce, 1)
    assert _signalled(windows, nonce) == ["1"]
    assert _signalled(windows, nonce) is None


def test_a_chunk_waits_for_transactions_that_ran_when_keeping_began() -> None:
    windows, progress = _windows()
    nonce, taken = _take(windows)
    assert not windows.reading(nonce, _snapshot(90, 99, 100, 150), Fingerprint("columns", 1))
    assert windows.waiting == (90, 99)
    windows.give_back_unread(nonce)
    again, same = _take(windows)
    assert (same, progress.generation) == (taken, 0)
    assert windows.reading(again, _snapshot(100, 150), Fingerprint("columns", 1))
    assert not windows.waiting


@pytest.mark.parametrize("pages", [10, 3])  # whether it is the last of its table or not
def test_rows_that_are_not_published_after_all_are_left_to_read(pages: int) -> None:
    windows, progress = _windows(pages)
    nonce, _ = _take(windows)
    before = progress.to_json()
    _read(windows, nonce, 1)
    assert _signalled(windows, nonce) == ["1"]
    assert progress.to_json() != before
    windows.withdraw()
    assert progress.to_json() == before
    assert not windows.complete


def test_a_chunk_that_was_discarded_is_read_again() -> None:
    windows, _ = _windows()
    nonce, taken = _take(windows)
    _read(windows, nonce, 1)
    windows.discard(("public", "guests"))
    windows.discard(TABLE)
    assert _signalled(windows, nonce) is None
    assert _take(windows)[1] == taken


@pytest.mark.parametrize(("columns", "filenode"), [("other columns", 1), ("columns", 2)])
def test_another_file_or_other_columns_begin_the_table_anew(columns: str, filenode: int) -> None:
    windows, progress = _windows()
    first, second, third = (_take(windows)[0] for _ in range(3))
    _read(windows, first, 1)
    assert _signalled(windows, first) == ["1"]
    _read(windows, second, 2)
    assert not windows.reading(third, _snapshot(), Fingerprint(columns, filenode))
    windows.give_back_unread(third)
    assert (progress.generation, progress.signature) == (1, columns)
    assert _signalled(windows, second) is None
    assert progress.leaves[LEAF].left == [(0, None)]
    assert _take(windows)[1] == _pages(0, 4)


def test_a_chunk_of_an_earlier_beginning_is_not_read() -> None:
    windows, _ = _windows()
    old, other = _take(windows)[0], _take(windows)[0]
    assert not windows.reading(other, _snapshot(), Fingerprint("columns", 2))
    assert not windows.reading(old, _snapshot(), Fingerprint("columns", 2))
    windows.give_back_unread(old)
    windows.give_back_unread(other)
    assert windows.open == 0


def test_what_has_its_rows_is_not_given_back() -> None:
    windows, _ = _windows()
    nonce, _ = _take(windows)
    _read(windows, nonce, 1)
    windows.give_back_unread(nonce)
    assert _signalled(windows, nonce) == ["1"]


def test_rows_that_cannot_be_published_are_left_to_read() -> None:
    class Unpublishable(_Read):
        def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
            raise ChangelogError(Kind.LIMIT, "too large")

    windows, progress = _windows()
    nonce, _ = _take(windows)
    assert windows.reading(nonce, _snapshot(), Fingerprint("columns", 1))
    windows.read(nonce, Unpublishable(_rows([1], [0])))
    with pytest.raises(ChangelogError):
        windows.signal(nonce.encode(), _change())
    assert progress.to_json()["leaves"][LEAF]["left"] == [[0, None]]


def test_a_chunk_that_is_too_large_comes_back_in_parts() -> None:
    """Down to the place of a single row, which is as large as it is."""
    windows, progress = _windows()
    for size in (4 * PAGE_SLOTS, PAGE_SLOTS, 512, 128, 32, 8, 2, 1):
        nonce, taken = _take(windows)
        assert taken == Range(leaf=LEAF, first=0, end=size)
        if size > 1:
            windows.give_back_unread(nonce, smaller=True)
    assert progress.to_json()["leaves"][LEAF]["left"] == [[0, None]]
    parts = [taken]
    while parts[-1].end is not None:
        parts.append(_take(windows)[1])
    assert all(before.end == after.first for before, after in pairwise(parts))
    assert len(parts) == 1 + 1 + 6 * 3 + 2


def test_a_table_that_grew_behind_its_planned_end_is_cut_there_too() -> None:
    """Filled by a transaction that ran when the table was planned, say."""
    windows, _ = _windows(pages=1)
    for first in (0, 1536, 1920, 2016, 2040, 2046, 2047):
        while (part := _take(windows))[1].end is not None:
            pass
        assert part[1].first == first
        windows.give_back_unread(part[0], smaller=True)
    ends: list[int | None] = []
    while not ends or ends[-1] is not None:
        ends.append(_take(windows)[1].end)
    assert ends == [*range(4 * PAGE_SLOTS, 64 * PAGE_SLOTS, 4 * PAGE_SLOTS), None]


def test_no_chunk_is_handed_out_while_the_rows_read_fill_the_memory() -> None:
    windows, _ = _windows(bytes_max=1)
    nonce, _ = _take(windows)
    _read(windows, nonce, 1)
    windows.close()
    assert windows.take({ENTITY: TABLE}) is None


@pytest.mark.parametrize(
    ("text", "unseen"),
    [("104:104:", [104]), ("100:104:100,102", [100, 102, 104]), ("100:100:", [100, 101, 102, 104])],
)
def test_a_snapshot_says_whom_it_does_not_see(text: str, unseen: list[int]) -> None:
    xids = np.array([3, 100, 101, 102, 104])
    assert xids[Snapshot.parse(text).misses(xids)].tolist() == unseen


def test_progress_goes_on_where_the_table_is_as_it_was() -> None:
    windows, progress = _windows()
    nonces = [_take(windows)[0] for _ in range(3)]
    _read(windows, nonces[1])
    _signalled(windows, nonces[1])
    stored = progress.to_json()

    assert stored["leaves"][LEAF]["left"] == [[0, 4], [8, None]]
    assert _resumed("columns", 1, stored) == [(0, 4 * PAGE_SLOTS), (8 * PAGE_SLOTS, None)]
    assert _resumed("columns", 2, stored) == [(0, None)]
    assert _resumed("others", 1, stored) == [(0, None)]


def test_progress_inside_a_page_goes_on_there() -> None:
    windows, progress = _windows()
    for _ in range(3):
        windows.give_back_unread(_take(windows)[0], smaller=True)
    first, second = _take(windows)[0], _take(windows)[0]
    _read(windows, second)
    _signalled(windows, second)
    stored = json.loads(json.dumps(progress.to_json()))
    assert stored["leaves"][LEAF]["left"] == [[0, [0, 128]], [[0, 256], None]]
    assert _resumed("columns", 1, stored) == [(0, 128), (256, None)]
    _read(windows, first)
    _signalled(windows, first)
    assert progress.to_json()["leaves"][LEAF]["left"] == [[[0, 256], None]]


def _resumed(signature: str, filenode: int, stored: dict[str, Any]) -> list[tuple[int, int | None]]:
    leaves = {LEAF: LeafProgress(filenode=filenode, pages=10, left=[(0, None)])}
    return TableProgress.resume(ENTITY, signature, leaves, stored).leaves[LEAF].left
