"""Reads tables in *windows* while changes stream, and publishes the rows at the right places of the stream.

A window reads one chunk: a part of a table, or the rows of some keys. The chunk is read under a snapshot of the
database. Then a message is written into the database's log. When that message arrives in the stream, the chunk's rows
are published there:

                     the chunk's rows are published here
                                    │
    stream    ──c1────c2──────c3────m───────c4──▶     c: a change    m: the chunk's message
                                    ▲
    snapshot         └─ the chunk ──┘
                        is read       then the message is written

**The guarantee.** A published row is the state of its key at the place of the message: the row has every change that
was delivered before the message, and every other change follows in the stream. A transaction that the snapshot sees was
committed before the message was written. So its changes are delivered before the message, and the row has them. But a
transaction can be delivered before the message although the snapshot does not see it. If such a transaction touched a
key, the row of this key lacks a change, and is left out (`_untouched`).

**Without messages.** The service may be unable to write into the log, or may not be allowed to. Then the source reads
the chunk, and notes where the log ends after that. The rows are published at the first place after this end that lies
between two transactions (`AssemblyRun.between`). The same guarantee holds for this place as for a message, because
every transaction that the snapshot sees is in the log before this place.

**Why visibility, and not log positions.** A database may deliver a commit before it makes the commit visible, as
PostgreSQL and MySQL do. By its position, such a change would count as older than the snapshot. But the row was read
without the change. If the row were published after the change, it would undo the change. (The idea of reading between
marks is from DBLog, arXiv:2010.12597. But DBLog compares positions in the log, and that would lose updates here.)

**Deletes.** A sweep searches the changelog for ghosts: keys that the changelog has and the table may lack. Ghosts are
looked up in the table, in chunks. For each ghost that the table lacks, a delete is published at the message of the
chunk, but only if no transaction has touched the key since the search began (`_unmentioned`). If a transaction has
touched the key, the key's last row came from the stream, and is not outdated.

**The horizon.** `horizon` is the next unused transaction id at the moment when the recording of touched keys begins. A
transaction with a lower id may have been delivered earlier, when nobody recorded its keys. Or the stream has only a
part of it, because a table joined the publication while the transaction ran. So if the snapshot of a chunk does not see
such a transaction, the chunk is read again later. In the second case, it would not help to wait for the commit of the
transaction in the stream, because the stream lacks some of its changes.

**Memory.** Touched keys are forgotten when every snapshot in use sees their transactions, because then every later
snapshot sees these transactions too. For entities that are swept, only the transactions are forgotten, and the keys are
kept.
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

_TOUCHED_ROWS_MAX = 200_000
"""With more touched keys than this in memory, the keys of transactions that every snapshot sees are forgotten."""


class Visibility(Protocol):
    """The transactions that a snapshot of the database sees.

    A transaction that has ended counts as seen, even if it was rolled back, because then it changed nothing.
    """

    def misses(self, ids: Ints) -> Mask:
        """Returns a mask of the transactions that the snapshot does not see."""

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        """Returns the known ids below `horizon` of transactions that the snapshot does not see."""


class WindowRows(Protocol):
    """The rows of a chunk, complete except for their positions in the stream."""

    @property
    def nbytes(self) -> int:
        """The memory that the rows take, in bytes."""

    @property
    def keys(self) -> pa.StringArray:
        """The entity key of each row."""

    @property
    def gone(self) -> pa.StringArray:
        """The keys that were looked up in the table and not found."""

    def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
        """Returns rows of the changelog: the rows that `keep` selects, and deletes of the keys that `delete` selects.

        `delete` is a mask of `gone`. The rows follow `change`, as if its transaction had written them.
        """


class Task(Protocol):
    """The remaining work of reading one entity. It is handed out in parts.

    A fingerprint identifies the columns and the storage from which a part is read. Each kind of task has its own types
    of parts and fingerprints.
    """

    generation: int
    """The number of times that the task started over. Parts of an earlier generation are not published."""

    @property
    def entity(self) -> str:
        """The entity's name."""

    @property
    def complete(self) -> bool:
        """Whether all parts are published."""

    def next_range(self) -> Any:
        """Hands out the next part; returns None while all remaining parts are handed out."""

    def admit(self, part: Any, fingerprint: Any) -> bool:
        """Returns whether the part may be read from a table with this fingerprint."""

    def give_back(self, part: Any) -> None:
        """Takes the part back, so that it is handed out once more."""

    def divide(self, part: Any) -> None:
        """Takes the part back, to hand it out as smaller parts, because it is too large to be read at once."""

    def publish(self, part: Any, absent_keys: Sequence[str]) -> None:
        """Records that the part is published, and that the table lacks the keys in `absent_keys`."""

    def withdraw(self, part: Any) -> None:
        """Undoes `publish`: the part was not published after all."""


class TableTask(Task, Protocol):
    """A table that is read completely."""

    def to_json(self) -> dict[str, Any]:
        """Returns the entry that a checkpoint stores, as `table_progress` describes it."""


@dataclass(slots=True, kw_only=True)
class Chunk:
    """A part of a task that was handed out: it is being read, or waits until its message arrives.

    `generation` is the task's generation when `part` was handed out. `discarded` says that the table has changed since
    then, and the rows must not be published. `snapshot` and `rows` are None until they are known.
    """

    task: Task
    entity: str
    table: tuple[str, str]
    part: Any
    generation: int
    discarded: bool = False
    snapshot: Visibility | None = None
    rows: WindowRows | None = None

    @property
    def nbytes(self) -> int:
        """The memory that the rows take, in bytes."""
        return 0 if self.rows is None else self.rows.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Touched:
    """Keys that were touched: the entity of each, the key, and the id of the transaction that touched it."""

    entities: pa.StringArray
    keys: pa.StringArray
    xids: Ints

    def where(self, mask: Mask) -> "_Touched":
        entities, keys = (column.filter(pa.array(mask)) for column in (self.entities, self.keys))
        return _Touched(entities=entities, keys=keys, xids=self.xids[mask])


class Windows:
    """The table reads that are under way. The assembler of the stream reports events here; reader threads take chunks.

    `tables` has the tables to read, by entity, and `lookups` the keys to look up. `nonces` returns a new text for the
    message of each chunk. `bytes_max` limits the rows in memory: no chunk is handed out while they take more.
    """

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
        self._touched_before: dict[str, pa.StringArray] = {}
        """For each entity that is swept, the touched keys that are no longer in `_touched`."""
        self._horizon, self._bytes_max = horizon, bytes_max
        self._nonces = nonces
        self._changed = Condition()
        self._chunks: dict[str, Chunk] = {}
        self._touched: list[_Touched] = []
        self._xid_count = 0
        self._xids_max = _TOUCHED_ROWS_MAX
        self._latest: Visibility | None = None
        self._last: tuple[Task, Any] | None = None
        self.changes = 0
        """Counts the events after which `progress`, `complete` or the keys left to look up may differ."""
        self._waiting: tuple[int, ...] = ()
        self._closed = False

    # For the assembler, in the order of the stream.

    def touched(self, rows: pa.RecordBatch, xids: Ints) -> None:
        """Records the keys that transactions touched."""
        with self._changed:
            if self.complete:
                return
            self._touched.append(_Touched(entities=rows.column("entity"), keys=rows.column("key"), xids=xids))
            self._xid_count += len(xids)
            if self._xid_count > self._xids_max:
                self._forget()

    def discard(self, table: tuple[str, str]) -> None:
        """Marks the chunks of the table that were handed out: their rows are not published, and they are read again."""
        with self._changed:
            for chunk in self._chunks.values():
                chunk.discarded |= chunk.table == table

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        """Returns the rows of the chunk whose nonce is `payload`, to be published at `change`.

        Returns None if the message belongs to no chunk of this process, or if the chunk has to be read again.
        """
        with self._changed:
            chunk = self._chunks.pop(payload.decode(errors="replace"), None)
            self.changes += 1
            self._changed.notify_all()
            if chunk is None or chunk.rows is None or chunk.snapshot is None:
                return None
            task, rows, chunk.rows = chunk.task, chunk.rows, None  # frees the rows, even if a reader holds the chunk
            if chunk.generation != task.generation:
                return None
            if chunk.discarded:
                task.give_back(chunk.part)
                return None
            task.publish(chunk.part, rows.gone.to_pylist())
            self._last = task, chunk.part
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
        """Undoes the last `signal`: its rows are not published, because an error stops the changelog before them."""
        with self._changed:
            assert self._last is not None
            self.changes += 1
            task, part = self._last
            task.withdraw(part)

    def _untouched(self, entity: str, snapshot: Visibility, keys: pa.StringArray) -> Mask:
        """Returns a mask of the keys that were touched only by transactions that the snapshot sees, or by none."""
        return _others(
            keys,
            [
                block.keys.filter(pc.and_(pa.array(unseen), pc.equal(block.entities, entity)))
                for block in self._touched
                if (unseen := snapshot.misses(block.xids)).any()
            ],
        )

    def _unmentioned(self, entity: str, keys: pa.StringArray) -> Mask:
        """Returns a mask of the keys that no transaction has touched since recording began.

        For an entity that is not swept, touched keys may be forgotten, and the mask then has them, too. After a
        published TRUNCATE, the mask has no key: the TRUNCATE removed all keys that the changelog had before.
        """
        if not len(keys):
            return np.ones(0, bool)
        touched = [block.keys.filter(pc.equal(block.entities, entity)) for block in self._touched]
        touched.append(self._touched_before.get(entity, keys[:0]))
        if any(pc.any(pc.equal(part, TRUNCATE_KEY)).as_py() for part in touched):
            return np.zeros(len(keys), bool)
        return _others(keys, touched)

    def _forget(self) -> None:
        """Drops the touched keys of transactions that every snapshot in use sees, and so also every later one."""
        if self._latest is None or any(chunk.snapshot is None for chunk in self._chunks.values()):
            return
        in_use = [self._latest, *(chunk.snapshot for chunk in self._chunks.values() if chunk.snapshot)]
        blocks, swept = [], []
        for block in self._touched:
            is_needed = np.logical_or.reduce([snapshot.misses(block.xids) for snapshot in in_use])
            if is_needed.any():
                blocks.append(block if is_needed.all() else block.where(is_needed))
            if len(self._swept):
                is_swept = pc.is_in(block.entities, self._swept).to_numpy(zero_copy_only=False)
                swept.append(block.where(is_swept & ~is_needed))
        self._remember(swept)
        self._touched = blocks
        self._xid_count = sum(len(block.xids) for block in blocks)
        self._xids_max = max(_TOUCHED_ROWS_MAX, 2 * self._xid_count)

    def _remember(self, swept: Sequence[_Touched]) -> None:
        """Adds keys of swept entities, without repeats, to `_touched_before`, where they stay."""
        if not swept:
            return
        columns = {
            "entity": pa.chunked_array([block.entities for block in swept]),
            "key": pa.chunked_array([block.keys for block in swept]),
        }
        by_entity = pa.table(columns).group_by("entity").aggregate([("key", "distinct")])
        for entity, keys in zip(by_entity.column("entity"), by_entity.column("key_distinct"), strict=True):
            name = entity.as_py()
            self._touched_before[name] = pa.concat_arrays(
                [self._touched_before.get(name, keys.values[:0]), keys.values]
            ).unique()

    # For the reader threads.

    def record_snapshot(self, snapshot: Visibility) -> None:
        """Records a new snapshot, so that touched keys can be forgotten even if no chunk is read."""
        with self._changed:
            self._latest = snapshot

    def offered(self, change: Callable[[], None]) -> None:
        """Calls `change`, which adds parts to a task or completes it; then wakes the readers."""
        with self._changed:
            change()
            self.changes += 1
            self._changed.notify_all()

    def take(self, tables: Mapping[str, tuple[str, str]]) -> tuple[str, Chunk] | None:
        """Waits for memory and for work, and returns the next chunk with its nonce; None if there is no more.

        `tables` has the table of each entity. Returns None only when every task is complete, or after `close`: even if
        all chunks are handed out, another reader may still give its chunk back.
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
            part = task.next_range()
            if part is not None:
                entity, nonce = task.entity, self._nonces()
                chunk = Chunk(task=task, entity=entity, table=tables[entity], part=part, generation=task.generation)
                self._chunks[nonce] = chunk
                return nonce, chunk
        return None

    def reading(self, nonce: str, snapshot: Visibility, fingerprint: Any) -> bool:
        """Records the snapshot under which the chunk will be read. Returns whether the chunk may be read now."""
        with self._changed:
            self.changes += 1
            chunk = self._chunks[nonce]
            chunk.snapshot = self._latest = snapshot
            task = chunk.task
            if chunk.generation != task.generation or not task.admit(chunk.part, fingerprint):
                return False
            self._waiting = snapshot.unseen_before(self._horizon)
            return not self._waiting

    def narrow(self, nonce: str, part: Any, divide: Callable[[Any, Any], None]) -> bool:
        """Replaces the part of a chunk by `part`, a smaller part inside it.

        `divide` receives the old and the new part, and makes the task hand out the rest. If the task has started over,
        the method changes nothing and returns False.
        """
        with self._changed:
            chunk = self._chunks[nonce]
            if chunk.generation != chunk.task.generation:
                return False
            divide(chunk.part, part)
            chunk.part = part
            self._changed.notify_all()
            return True

    def read(self, nonce: str, rows: WindowRows) -> None:
        """Adds the chunk's rows, before its message is written."""
        with self._changed:
            self._chunks[nonce].rows = rows

    def give_back_unread(self, nonce: str, *, smaller: bool = False) -> None:
        """Gives the chunk back if its rows were not read. With `smaller`, it is handed out again in smaller parts."""
        with self._changed:
            chunk = self._chunks.get(nonce)
            if chunk is None or chunk.rows is not None:
                return
            del self._chunks[nonce]
            self.changes += 1
            if chunk.generation == chunk.task.generation:
                (chunk.task.divide if smaller else chunk.task.give_back)(chunk.part)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the waits of the readers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the source, and for people who watch the progress.

    @property
    def complete(self) -> bool:
        """Whether all tables and all keys to look up are published."""
        return all(task.complete for task in self._tasks)

    @property
    def open(self) -> int:
        """The number of chunks that are handed out and not published yet."""
        return len(self._chunks)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The transactions that must end before the service can read the chunk that it tried last."""
        return self._waiting

    def progress(self) -> dict[str, Any]:
        """Returns, by entity, the entry that a checkpoint stores for each table."""
        with self._changed:
            return {entity: table.to_json() for entity, table in self._tables.items()}


def _others(keys: pa.StringArray, touched: Sequence[pa.StringArray]) -> Mask:
    """Returns a mask of the keys that are in none of the arrays `touched`."""
    if not touched:
        return np.ones(len(keys), bool)
    is_touched: Mask = pc.is_in(keys, pa.concat_arrays(touched)).to_numpy(zero_copy_only=False)
    return ~is_touched
