"""Tests how keys are looked up in a table. Also tests sweeps: they delete from the changelog all keys that the table
lacks.

The tests use the simulated database of `window_simulation`. Whatever the service publishes at a place in the stream is
compared with the true state of the table at this place:

- The true state is computed from the first state of the table and the changes in the stream.
- If a row was read, it must equal the row in the true state.
- If a key is deleted, the true state must not have the key, and the changelog must have had it.

The service stores what it publishes only now and then. After a crash, it continues from what it has stored.
"""

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from msgspec import Raw

from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.capture.tables import windows as windows_module
from changelog.connectors.capture.tables.key_lookup import Ghost, Lookup, LookupKeys
from changelog.connectors.capture.tables.windows import Chunk, Windows
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.envelope.entity import TRUNCATE_KEY
from tests.unit.postgres.window_simulation import (
    ENTITY,
    KEYS,
    TABLE,
    Database,
    Logged,
    change_of,
    check_counted,
    progress_of,
    rows_of,
    step_of_the_database,
)

Mask = npt.NDArray[np.bool_]
ALL_KEYS = range(len(KEYS) + 4)
"""The keys of the table, and some keys that it never has."""

DELETED = -1


@dataclass(frozen=True, slots=True)
class _KeyRows:
    """Implements the protocol `windows.WindowRows` for the rows of some keys."""

    rows: pa.RecordBatch
    taken: LookupKeys
    nbytes: int = 1

    @property
    def keys(self) -> pa.StringArray:
        return self.rows.column("key")

    @property
    def gone(self) -> pa.StringArray:
        present = set(self.keys.to_pylist())
        return pa.array([key for key in self.taken.keys if key not in present], pa.utf8())

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        deleted_keys = [
            int(key)
            for key, is_deleted in zip(self.gone.to_pylist(), delete, strict=True)
            if is_deleted and key in self.taken.ghosts
        ]
        deletes = rows_of(deleted_keys, [DELETED] * len(deleted_keys))
        return pa.concat_batches([self.rows.filter(pa.array(keep)), deletes])


class _WrongError(AssertionError):
    """The service published a row or a delete that contradicts the true state of the table."""


@dataclass(slots=True)
class _Changelog:
    """What a changelog has up to a place in the stream.

    - `read_to` is this place.
    - `alive` has the keys that exist in the changelog. Each has its version, and the number of the opening that
      published this version.
    - `truth` is the true state of the table at this place.
    """

    read_to: int
    alive: dict[int, tuple[int, int]]
    truth: dict[int, int]

    def copy(self) -> "_Changelog":
        return _Changelog(self.read_to, dict(self.alive), dict(self.truth))


class _Sweep:
    """A service whose changelog has rows that the table lacks.

    Each start of the service is an *opening*. An opening looks up all keys that earlier openings have published.
    """

    def __init__(self, database: Database, base: Mapping[int, int], make: Callable[..., Windows]) -> None:
        self.database, self.make = database, make
        dice = database.dice
        read_to = dice.randint(0, len(database.log))
        truth = dict(base)
        for entry in database.log[:read_to]:
            _apply(truth, entry)
        alive = {key: (version, 0) for key, version in truth.items()}
        for key in ALL_KEYS:
            if dice.random() < 0.4:
                alive.setdefault(key, (0, 0))
        self.durable = _Changelog(read_to, alive, truth)
        self.opening = 0
        self._nonces = count()
        self.start()

    def start(self) -> None:
        """Starts a new opening from the stored changelog."""
        self.now = self.durable.copy()
        self.opening += 1
        horizon = self.database.new_xid()
        self.database.over.add(horizon)
        self.lookup = Lookup(ENTITY, sweeping=True, keys_max=4)
        self.windows = self.make({}, horizon=horizon, nonces=lambda: str(next(self._nonces)), lookups=[self.lookup])
        self.scanned = False
        self.taken: list[tuple[str, Chunk]] = []
        self.unsent: list[str] = []

    def commit(self) -> None:
        self.durable = self.now.copy()

    def scan(self) -> None:
        """Offers ghosts to the lookup: keys that the changelog has, but perhaps not the table. These are all keys that
        earlier openings have published.
        """
        if self.scanned:
            return
        older = [key for key, (_, opening) in self.durable.alive.items() if opening < self.opening]
        self.windows.offered(lambda: self.lookup.offer([_ghost(key) for key in older]))
        self.windows.offered(lambda: self.lookup.end(more=False))
        self.scanned = True

    def take_snapshot(self) -> None:
        self.windows.record_snapshot(self.database.snapshot())

    def take(self) -> None:
        if copy.deepcopy(self.lookup).next_range() is not None:
            next_chunk = self.windows.take({ENTITY: TABLE})
            assert next_chunk is not None
            self.taken.append(next_chunk)

    def read_chunk(self) -> None:
        """Takes a snapshot, and reads the chunk immediately. (`test_windows` tests tables that are rewritten.)"""
        if not self.taken:
            return
        nonce, chunk = self.taken.pop(self.database.dice.randrange(len(self.taken)))
        snapshot = self.database.snapshot()
        if not self.windows.reading(nonce, snapshot, ("columns", 1)) or self.database.dice.random() < 0.1:
            self.windows.give_back_unread(nonce, smaller=self.database.dice.random() < 0.5)
            return
        assert isinstance(chunk.part, LookupKeys)
        self.windows.read(nonce, _KeyRows(_rows_of_keys(self.database, snapshot, chunk.part), chunk.part))
        self.unsent.append(nonce)

    def send(self) -> None:
        if self.unsent:
            xid = self.database.new_xid()
            self.database.log.append(Logged(xid, nonce=self.unsent.pop()))
            self.database.over.add(xid)

    def deliver(self) -> None:
        now = self.now
        if now.read_to == len(self.database.log):
            return
        entry = self.database.log[now.read_to]
        now.read_to += 1
        if entry.nonce is not None:
            rows = self.windows.signal(entry.nonce.encode(), change_of(entry.xid))
            for row in [] if rows is None else rows.to_pylist():
                self._publish(int(row["key"]), row["version"])
            return
        _apply(now.truth, entry)
        for key, version, deleted in entry.changes:
            if deleted:
                now.alive.pop(key, None)
            else:
                now.alive[key] = version, self.opening
        if entry.changes:
            keys = [key for key, _, _ in entry.changes]
            self.windows.touched(rows_of(keys, [0] * len(keys)), np.full(len(keys), entry.xid))

    def _publish(self, key: int, version: int) -> None:
        now = self.now
        if version == DELETED:
            if key in now.truth:
                raise _WrongError(f"key {key} is deleted, but the table has it")
            if now.alive.pop(key, None) is None:
                raise _WrongError(f"key {key} is deleted, but the changelog did not have it")
        elif now.truth.get(key) != version:
            raise _WrongError(f"key {key} is published as {version}, but is {now.truth.get(key)}")
        else:
            now.alive[key] = version, self.opening


def _apply(truth: dict[int, int], entry: Logged) -> None:
    for key, version, deleted in entry.changes:
        if deleted:
            truth.pop(key, None)
        else:
            truth[key] = version


def _ghost(key: int) -> Ghost:
    return Ghost(key=str(key), partition=0, position="", current=Raw(b"{}"), unavailable=(), json_null=(), mask=None)


def _rows_of_keys(database: Database, snapshot: Snapshot, lookup_keys: LookupKeys) -> pa.RecordBatch:
    keys = {int(key) for key in lookup_keys.keys}
    rows = [row for row in database.heap if row.key in keys and database._sees(snapshot, row)]
    return rows_of([row.key for row in rows], [row.version for row in rows])


def _run(seed: int, make: Callable[..., Windows], steps: int = 250) -> None:
    dice = random.Random(seed)
    database = Database(dice)
    base = {row.key: row.version for row in database.heap}
    for _ in range(dice.randrange(12)):
        step_of_the_database(database, dice)
    service = _Sweep(database, base, make)
    reader = (service.take, service.read_chunk, service.send)
    for _ in range(steps):
        before = service.windows, service.windows.changes, progress_of(service.windows)
        match dice.random():
            case chance if chance < 0.4:
                step_of_the_database(database, dice)
            case chance if chance < 0.6:
                service.deliver()
            case chance if chance < 0.9:
                dice.choice(reader)()
            case chance if chance < 0.99:
                dice.choice((service.commit, service.scan, service.take_snapshot))()
            case _:
                service.start()
        check_counted(service.windows, *before)
    while database.writers or database.logged:
        (database.commit if database.writers else database.show)()
    for _ in range(200):
        for step in (service.scan, service.send, service.read_chunk, service.take, service.deliver):
            step()
        if service.windows.complete and service.now.read_to == len(database.log):
            break
    assert service.windows.complete
    published = {key: version for key, (version, _) in service.now.alive.items()}
    if published != database.state():
        raise _WrongError(f"the changelog says {published} and the table {database.state()}")


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows remember which keys changed. Above a limit of such keys, they forget those that are no longer needed. The
    tests lower this limit, so that windows often forget keys.
    """
    monkeypatch.setattr(windows_module, "_TOUCHED_ROWS_MAX", 2)


def test_keys_that_the_table_lacks_are_deleted_once_and_no_other_keys(seed: int) -> None:
    for number in range(150):
        _run(seed + number, Windows)


def test_the_keys_that_changed_are_remembered_for_each_swept_entity() -> None:
    """The snapshot sees all transactions, so the windows must tell from the remembered keys what changed."""
    sweeps = [Lookup(entity, sweeping=True) for entity in ("guest", "order", "room")]
    windows = Windows({}, horizon=0, nonces=str, lookups=sweeps)
    windows.record_snapshot(Snapshot(xmin=9, xmax=9, running=np.array([], np.int64)))
    for entities, keys in (
        (["order", "guest", "hotel"], ["1", "2", "3"]),
        (["order", "order", "guest"], ["2", "1", TRUNCATE_KEY]),
    ):
        windows.touched(pa.record_batch({"entity": entities, "key": keys}), np.full(3, 5))
    assert not windows._touched
    asked_keys = pa.array(["1", "2", "3"])
    unmentioned = {sweep.entity: windows._unmentioned(sweep.entity, asked_keys).tolist() for sweep in sweeps}
    assert unmentioned == {"guest": [False] * 3, "order": [False, False, True], "room": [True] * 3}


class _Watched(Lookup):
    """A lookup that checks its attributes after each assignment. At any of these moments, a thread that does not hold
    the lock may read the attributes.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if "_offering" in self.__dict__ and self.complete:
            assert (self.more, self.failed) == (True, True)


def test_a_sweep_is_complete_only_when_it_says_how_it_ended() -> None:
    sweep = _Watched(ENTITY, sweeping=True)
    sweep.end(more=True, failed=True)
    assert sweep.complete


class _DeletesWhatIsGone(Windows):
    """Deletes every key that the table lacks, even if the stream has already delivered a delete of the key."""

    def _unmentioned(self, entity: str, keys: pa.StringArray) -> Mask:
        return np.ones(len(keys), bool)


class _ByVisibilityAlone(Windows):
    """Deletes a key unless a transaction that the latest snapshot does not see has touched the key. This rule is right
    for rows. But it repeats deletes that the changelog already has.
    """

    def _unmentioned(self, entity: str, keys: pa.StringArray) -> Mask:
        assert self._latest is not None
        return self._untouched(entity, self._latest, keys)


class _ForgetsTheSwept(Windows):
    """Forgets a changed key once every snapshot sees the change, even if a sweep still needs the key."""

    def _remember(self, swept: object) -> None:
        pass


class _DeletesNothing(Windows):
    """Looks keys up, but deletes none."""

    def _unmentioned(self, entity: str, keys: pa.StringArray) -> Mask:
        return np.zeros(len(keys), bool)


@pytest.mark.parametrize("broken", [_DeletesWhatIsGone, _ByVisibilityAlone, _ForgetsTheSwept, _DeletesNothing])
def test_the_simulation_detects_sweeps_that_break_a_rule(broken: type[Windows], seed: int) -> None:
    def runs() -> None:
        for number in range(2000):
            _run(seed + number, broken)

    with pytest.raises(_WrongError):
        runs()
