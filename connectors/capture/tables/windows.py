"""Windows: rows of tables are read beside the stream, and published at one place in it.

A chunk is read under a snapshot. Then a message is written into the database's log. When that message arrives in the
stream, the chunk's rows are published at its place:

                     the chunk's rows are published here
                                    │
    stream    ──c1────c2──────c3────m───────c4──▶     c: a change    m: the chunk's message
                                    ▲
    snapshot         └─ the chunk ──┘
                        is read       then the message is written

**What stays true.** A published row is the state of its key at its place: every change delivered before is in it, and
every later one follows. So a row is left out if its key was touched by a transaction that was delivered before the
message and that the snapshot does not see (`_untouched`): the row lacks that change. A transaction that the snapshot
sees was committed before the message was written, so it is delivered before the message, and the row has its change.

**Why visibility, and not log positions.** A database may deliver a commit before it makes it visible, as PostgreSQL and
MySQL do. By positions, such a change would count as older than the snapshot, and the row without it would overwrite it.
(The idea of reading between marks is from DBLog, arXiv:2010.12597; its marks by position would lose updates here.)

**Deletes.** A key that the changelog has and the table lacks is deleted under the same rule, and only if no transaction
touched it since the search of the changelog began (`_unmentioned`). Otherwise its last row came from the stream, and
the key is no ghost.

**The horizon.** A transaction below `horizon` (the ids given out before touched keys were tracked) may have been
delivered earlier, when nobody recorded its keys; or only in part, if its table joined the publication while it ran. A
chunk whose snapshot does not see such a transaction is read again later. Its commit in the stream would rule out only
the first case: in the second, not all of its changes come with it.

**Memory.** Touched keys are forgotten once every snapshot in use sees their transactions, because every later snapshot
then sees them, too. For entities that are swept, the keys alone are remembered to the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.capture.tables.key_lookup import Lookup
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KEPT_ROWS_MAX = 200_000
"""How many touched keys are kept before those that every snapshot shows are searched for and forgotten."""


class Visibility(Protocol):
    """Which transactions a snapshot of the database shows. One that has ended is shown, unless it changed nothing."""

    def misses(self, ids: Ints) -> Mask:
        """A mask of the transactions that it does not show."""

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        """The transactions below `horizon` that it does not show yet, as far as they can be named."""


class Rows(Protocol):
    """A chunk's rows, complete except for their place in the stream."""

    @property
    def nbytes(self) -> int:
        """What they hold in memory."""

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row."""

    @property
    def gone(self) -> pa.StringArray:
        """The keys that were looked up and not found."""

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        """The rows to keep, and those of `gone` to delete, as changelog rows, counted on from `change`."""


class Task(Protocol):
    """What is left to read of one entity, handed out part by part.

    Only the task knows what a part is. The same holds for the fingerprint, which stands for the columns and the storage
    that a part is read from.
    """

    generation: int

    @property
    def entity(self) -> str:
        """The entity's name."""

    @property
    def complete(self) -> bool:
        """Whether all is published."""

    def next_range(self) -> Any:
        """Hands out the next part; None while all remaining parts are handed out."""

    def admit(self, taken: Any, fingerprint: Any) -> bool:
        """Whether the part may be read from a table of this fingerprint."""

    def give_back(self, taken: Any) -> None:
        """The part is to be read again."""

    def divide(self, taken: Any) -> None:
        """The part is to be read again in smaller parts, because it is too large to be read at once."""

    def publish(self, taken: Any, gone: Sequence[str]) -> None:
        """The part is published; the table lacks these keys."""

    def withdraw(self, taken: Any) -> None:
        """Undoes `publish`: the part was not published after all."""


class TableTask(Task, Protocol):
    """A table that is read completely."""

    def to_json(self) -> dict[str, Any]:
        """The entry that a checkpoint stores: see `table_progress`."""


@dataclass(slots=True, kw_only=True)
class Chunk:
    """A part of a table, or some keys of it, that is handed out, being read, or waiting for its message."""

    task: Task
    entity: str
    table: tuple[str, str]
    taken: Any
    generation: int
    discarded: bool = False
    snapshot: Visibility | None = None
    rows: Rows | None = None

    @property
    def nbytes(self) -> int:
        """What the rows hold in memory."""
        return 0 if self.rows is None else self.rows.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Touched:
    entities: pa.StringArray
    keys: pa.StringArray
    xids: Ints

    def where(self, chosen: Mask) -> "_Touched":
        picked = pa.array(chosen)
        return _Touched(entities=self.entities.filter(picked), keys=self.keys.filter(picked), xids=self.xids[chosen])


class Windows:
    """The table reads that are under way; the `Listener` of an assembler, shared with reader threads."""

    def __init__(
        self,
        tables: Mapping[str, TableTask],
        *,
        horizon: int,
        nonces: Callable[[], str],
        lookups: Sequence[Lookup] = (),
        bytes_max: int = 32 << 20,
    ) -> None:
        self._tables = dict(tables)
        self._tasks: Sequence[Task] = [*tables.values(), *lookups]
        self._swept = pa.array([lookup.entity for lookup in lookups if lookup.sweeping], pa.utf8())
        self._since: dict[str, pa.StringArray] = {}
        self._horizon, self._bytes_max = horizon, bytes_max
        self._nonces = nonces
        self._changed = Condition()
        self._chunks: dict[str, Chunk] = {}
        self._touched: list[_Touched] = []
        self._kept = 0
        self._kept_max = _KEPT_ROWS_MAX
        self._latest: Visibility | None = None
        self._last: tuple[Task, Any] | None = None
        self.changes = 0
        """Counts events that may change a task, and so `progress`, `complete` and the keys left to look up."""
        self._waiting: tuple[int, ...] = ()
        self._closed = False

    # For the assembler, in the order of the stream.

    def touched(self, rows: pa.RecordBatch, xids: Ints) -> None:
        """Records the keys that transactions touched."""
        with self._changed:
            if self.complete:
                return
            self._touched.append(_Touched(entities=rows.column("entity"), keys=rows.column("key"), xids=xids))
            self._kept += len(xids)
            if self._kept > self._kept_max:
                self._forget()

    def discard(self, table: tuple[str, str]) -> None:
        """Chunks of the table that are under way are read again."""
        with self._changed:
            for chunk in self._chunks.values():
                chunk.discarded |= chunk.table == table

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        """The rows of the chunk whose message this is; None for a foreign message or a chunk to read again."""
        with self._changed:
            chunk = self._chunks.pop(payload.decode(errors="replace"), None)
            self.changes += 1
            self._changed.notify_all()
            if chunk is None or chunk.rows is None or chunk.snapshot is None:
                return None
            task, rows, chunk.rows = chunk.task, chunk.rows, None  # its reader may keep the chunk for long
            if chunk.generation != task.generation:
                return None
            if chunk.discarded:
                task.give_back(chunk.taken)
                return None
            task.publish(chunk.taken, rows.gone.to_pylist())
            self._last = task, chunk.taken
            keep = self._untouched(chunk.entity, chunk.snapshot, rows.keys)
            delete = self._unmentioned(chunk.entity, rows.gone)
            if self.complete:
                self._touched.clear()
        try:
            return rows.at(change, keep, delete)
        except ChangelogError:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """The rows that `signal` returned last are not published after all: the changelog stops before them."""
        with self._changed:
            assert self._last is not None
            self.changes += 1
            task, taken = self._last
            task.withdraw(taken)

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        """A mask of the keys that no transaction touched, except transactions that the snapshot sees."""
        return _others(
            keys,
            [
                block.keys.filter(pc.and_(pa.array(unseen), pc.equal(block.entities, entity)))
                for block in self._touched
                if (unseen := snapshot.misses(block.xids)).any()
            ],
        )

    def _unmentioned(self, entity: str, keys: pa.StringArray) -> Mask:
        """A mask of the keys that no transaction touched since recording began; for an entity that is swept.

        No key is in it after a published TRUNCATE, which removed all keys that the changelog had before.
        """
        if not len(keys):
            return np.ones(0, bool)
        touched = [block.keys.filter(pc.equal(block.entities, entity)) for block in self._touched]
        touched.append(self._since.get(entity, keys[:0]))
        if any(pc.any(pc.equal(part, TRUNCATE_KEY)).as_py() for part in touched):
            return np.zeros(len(keys), bool)
        return _others(keys, touched)

    def _forget(self) -> None:
        """Drops the transactions that every snapshot in use sees, because every later one sees them, too."""
        if self._latest is None or any(chunk.snapshot is None for chunk in self._chunks.values()):
            return
        in_use = [self._latest, *(chunk.snapshot for chunk in self._chunks.values() if chunk.snapshot)]
        blocks, swept = [], []
        for block in self._touched:
            needed = np.logical_or.reduce([snapshot.misses(block.xids) for snapshot in in_use])
            if needed.any():
                blocks.append(block if needed.all() else block.where(needed))
            if len(self._swept):
                is_swept = pc.is_in(block.entities, self._swept).to_numpy(zero_copy_only=False)
                swept.append(block.where(is_swept & ~needed))
        self._remember(swept)
        self._touched = blocks
        self._kept = sum(len(block.xids) for block in blocks)
        self._kept_max = max(_KEPT_ROWS_MAX, 2 * self._kept)

    def _remember(self, swept: Sequence[_Touched]) -> None:
        """Keeps each of these keys, which are of entities that are swept, once, to the end."""
        if not swept:
            return
        columns = {
            "entity": pa.chunked_array([block.entities for block in swept]),
            "key": pa.chunked_array([block.keys for block in swept]),
        }
        by_entity = pa.table(columns).group_by("entity").aggregate([("key", "distinct")])
        for entity, keys in zip(by_entity.column("entity"), by_entity.column("key_distinct"), strict=True):
            name = entity.as_py()
            self._since[name] = pa.concat_arrays([self._since.get(name, keys.values[:0]), keys.values]).unique()

    # For the reader threads.

    def glance(self, snapshot: Visibility) -> None:
        """Takes a present snapshot, so that touched keys can be forgotten even if no chunk is read."""
        with self._changed:
            self._latest = snapshot

    def offered(self, change: Callable[[], None]) -> None:
        """Runs a change of a task that gives it more to hand out, or completes it."""
        with self._changed:
            change()
            self.changes += 1
            self._changed.notify_all()

    def take(self, tables: Mapping[str, tuple[str, str]]) -> tuple[str, Chunk] | None:
        """Waits for memory and for work, and returns the next chunk with its nonce; None if there is no more.

        `tables` has the table of each entity. A chunk under way may be given back, so the wait ends only when every
        task is complete, or at `close`.
        """
        with self._changed:
            while not self._closed and not self.complete:
                handed_out = self._hand_out(tables) if self._has_room() else None
                if handed_out is not None:
                    return handed_out
                self._changed.wait(timeout=1.0)
            return None

    def _has_room(self) -> bool:
        return sum(chunk.nbytes for chunk in self._chunks.values()) < self._bytes_max

    def _hand_out(self, tables: Mapping[str, tuple[str, str]]) -> tuple[str, Chunk] | None:
        for task in self._tasks:
            taken = task.next_range()
            if taken is not None:
                entity, nonce = task.entity, self._nonces()
                chunk = Chunk(task=task, entity=entity, table=tables[entity], taken=taken, generation=task.generation)
                self._chunks[nonce] = chunk
                return nonce, chunk
        return None

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Any) -> bool:
        """Records the snapshot and the table that the chunk is read from; returns False if it must not be read now."""
        with self._changed:
            self.changes += 1
            chunk = self._chunks[nonce]
            chunk.snapshot = self._latest = snapshot
            task = chunk.task
            if chunk.generation != task.generation or not task.admit(chunk.taken, fingerprint):
                return False
            self._waiting = snapshot.unseen_before(self._horizon)
            return not self._waiting

    def read(self, nonce: str, rows: Rows) -> None:
        """Adds the chunk's rows, before its message is written."""
        with self._changed:
            self._chunks[nonce].rows = rows

    def give_back_unread(self, nonce: str, *, smaller: bool = False) -> None:
        """Gives the chunk back unless it has its rows; `smaller` says that it was too large."""
        with self._changed:
            chunk = self._chunks.get(nonce)
            if chunk is None or chunk.rows is not None:
                return
            del self._chunks[nonce]
            self.changes += 1
            if chunk.generation == chunk.task.generation:
                (chunk.task.divide if smaller else chunk.task.give_back)(chunk.taken)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the readers' waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the source and for people.

    @property
    def complete(self) -> bool:
        """Whether every table and every requested key is published."""
        return all(task.complete for task in self._tasks)

    @property
    def open(self) -> int:
        """The number of chunks that are handed out and not published yet."""
        return len(self._chunks)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The transactions that must end before the last chunk can be read."""
        return self._waiting

    def progress(self) -> dict[str, Any]:
        """The entries of the tables that a checkpoint stores, by entity."""
        with self._changed:
            return {entity: table.to_json() for entity, table in self._tables.items()}


def _others(keys: pa.StringArray, touched: Sequence[pa.StringArray]) -> Mask:
    """A mask of the keys that are not among the touched ones."""
    if not touched:
        return np.ones(len(keys), bool)
    is_touched: Mask = pc.is_in(keys, pa.concat_arrays(touched)).to_numpy(zero_copy_only=False)
    return ~is_touched
