"""Deletes the rows that an aborted snapshot published and that the repeated snapshot did not send.

Debezium cannot continue a snapshot: after a stop or a crash, it begins the snapshot again. Rows that were deleted
between the two snapshots are in the changelog, and no event says that they are gone (`place` is the `commit` in the
positions of rows):

    place      1 ─────────── 40 ─────────────── 90 ────────▶
    first      a, b, c                             b was deleted while Debezium was stopped
    second                   a, c, …, z  last
    sweep                                       b is deleted

The second snapshot has sent every row that its tables had. So a key is gone if the first snapshot published it, and the
key's last row in the changelog is older than the beginning of the second snapshot. The search for such keys is the
*sweep*. After the second snapshot, the source opens again and makes the sweep before it reads further events. At that
time, the changelog has all rows of both snapshots, and no event can change a key before the sweep deletes it.

A connector that has no offset begins with a snapshot. Only this snapshot is followed by a sweep, because it covers all
tables, and no other events come before its end. There is no sweep in two cases:
- The connector's properties changed between the two snapshots, so the snapshots may have read different rows.
- Several threads read the snapshot, or it covers several databases. Then the event that Debezium marks as `last` may
  come before other rows of the snapshot.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread

import pyarrow as pa
import structlog

from changelog.connectors.capture.rows.codec import Codec, Shape
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.capture.tables import survivors
from changelog.connectors.capture.tables.ghost_rows import deleted
from changelog.connectors.capture.tables.key_lookup import Ghost
from changelog.connectors.sources.debezium.assembling.binder import Binder
from changelog.connectors.sources.debezium.assembling.merging import Item
from changelog.connectors.sources.debezium.decode.events import Changed, EventColumn, EventTable
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.versions import Version

_BLOCKING = "BLOCKING"
"""A word in the offsets of snapshots that were requested by a signal. Such a snapshot may cover only some of the rows.
"""

_log = structlog.get_logger("debezium")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """Which keys to delete: those whose last row is at or after the position `since`, and before `start`."""

    since: str
    start: str

    def to_json(self) -> dict[str, str]:
        """Returns the form that a checkpoint stores."""
        return {"since": self.since, "start": self.start}


class FirstSnapshot:
    """Finds out whether Debezium repeats its first snapshot, and when the repeated snapshot has ended.

    The argument `progress` is what the property of this name returned for the last checkpoint. `opened_at` is a
    position before all events that the source reads once it is open. `fresh` says whether the connector begins
    without an offset. `properties` identifies the connector's properties; it is empty if no sweep is to be made.
    """

    def __init__(self, progress: Mapping[str, str] | None, opened_at: str, properties: str, *, fresh: bool) -> None:
        self._opened_at, self._properties = opened_at, properties
        self._since = (progress or {}).get("since", opened_at if fresh else "")
        self._same = (progress or {}).get("properties", properties) == properties
        self._may_come = bool(properties) and (fresh or progress is not None)
        self._has_rows = False
        self.due: Sweeping | None = None
        """The sweep to make; None until a repeated snapshot has ended."""

    @property
    def progress(self) -> Mapping[str, str] | None:
        """What the next opening of the source needs to know; None if no snapshot is under way."""
        if not self._may_come or not (self._has_rows or self._since != self._opened_at):
            return None
        return {"since": self._since, "properties": self._properties if self._same else "changed"}

    def see(self, items: Sequence[Item]) -> None:
        """Updates `progress` and `due` from these events."""
        if not self._may_come:
            return
        changed = [item for item in items if isinstance(item.event, Changed)]
        kinds = {item.event.facts.snapshot for item in changed if isinstance(item.event, Changed)}
        if any(_BLOCKING in str(item.placed.after) for item in changed[:1]):
            self._may_come = False
            return
        self._has_rows |= not kinds.isdisjoint(("true", "last"))
        if kinds.isdisjoint(("last", "")):
            return
        self._may_come = False
        if not self._has_rows or self._since == self._opened_at:
            return
        if self._same:
            self.due = Sweeping(since=self._since, start=self._opened_at)
        else:
            hint = "rows that were deleted between the two snapshots may stay in the changelog"
            _log.warning("Debezium's properties changed between an aborted snapshot and the repeated one", hint=hint)


class Sweep:
    """A thread that searches the changelog for the keys to delete. `read` returns the rows of the changelog."""

    def __init__(self, sweeping: Sweeping, entities: Collection[Entity], read: survivors.Read) -> None:
        self._sweeping, self._read = sweeping, read
        self._names = [
            entity.name
            for entity in entities
            if not (entity.immutable and entity.on_change_of_immutable == "ignore")  # such entities keep deleted rows
        ]
        self._results: Queue[Mapping[str, Sequence[Ghost]] | BaseException | None] = Queue(1)
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True, name="debezium-sweep")
        self._thread.start()

    def take(self, timeout_s: float) -> Mapping[str, Sequence[Ghost]] | None:
        """Returns some of the rows to delete, by entity; an empty result if there are no more, None after the timeout.

        Raises any error of the search.
        """
        try:
            result = self._results.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(result, BaseException):
            raise result
        return result or {}

    def close(self) -> None:
        """Stops the search."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            starts = dict.fromkeys(self._names, self._sweeping.start)
            for portion in survivors.older_than(self._rows, starts, {}):
                if portion.cut:
                    _log.warning("too many rows to delete after a repeated snapshot", entities=sorted(portion.cut))
                ghosts = {name: self._own(portion.ghosts[name]) for name in portion.ghosts}
                if any(ghosts.values()):
                    self._put({name: of_entity for name, of_entity in ghosts.items() if of_entity})
            self._put(None)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            with suppress(_StoppedError):
                self._put(error)

    def _own(self, ghosts: Sequence[Ghost]) -> Sequence[Ghost]:
        return [ghost for ghost in ghosts if ghost.position >= self._sweeping.since]

    def _rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        for rows in self._read(entities, key):
            if self._stopping.is_set():
                raise _StoppedError
            yield rows

    def _put(self, result: Mapping[str, Sequence[Ghost]] | BaseException | None) -> None:
        while not self._stopping.is_set():
            with suppress(Full):
                self._results.put(result, timeout=0.1)
                return
        raise _StoppedError


class _StoppedError(Exception):
    """The sweep was closed."""


class Deletes:
    """Makes the rows that delete the keys of a sweep. `versions` has the stored versions of columns, oldest first."""

    def __init__(
        self, origin: Origin, entities: Collection[Entity], versions: Collection[Version], binder: Binder, epoch: int
    ) -> None:
        self._origin, self._binder, self._epoch = origin, binder, epoch
        self._entities = {entity.name: entity for entity in entities}
        self._columns = {version.entity: version.columns for version in versions}

    def rows(self, ghosts: Mapping[str, Sequence[Ghost]], place: int) -> list[pa.RecordBatch]:
        """Returns the deletes as one transaction, whose `commit` is `place`."""
        now = time.time_ns() // 1000
        transaction = Transaction(xid=place, name="0", epoch=self._epoch, commit=place, committed_at=now)
        batches, ordinal = [], 0
        for name, of_entity in ghosts.items():
            entity = self._entities[name]
            binding = self._binder.bind(entity, self._table(entity))
            records = []
            for ghost in of_entity:
                ordinal += 1
                change = Change(transaction=transaction, ordinal=ordinal, stamp=None)
                records.append(deleted(self._origin, binding, ghost, change))
            batches.append(batch.with_shapes(batch.from_records(records), {name: binding.shape}))
            _log.info("deleting rows that an aborted snapshot published", entity=name, rows=len(records))
        return batches

    def _table(self, entity: Entity) -> EventTable:
        """Returns the table with the columns that the changelog had last."""
        columns = tuple(
            EventColumn(name=name, codec=Codec(shape=Shape.RAW, to_json=bytes, column_type=type_), optional=True)
            for name, type_ in self._columns[entity.name].fields
        )
        return EventTable(name=entity.table, number=-1, columns=columns, key=tuple(entity.key))
