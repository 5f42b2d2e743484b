"""Writes random changes of the entities `order` and `guest`, and notes in which views each change counts.

Some changes of orders have the service name `BATCH` in their provenance. The view `WITHOUT_BATCH` ignores them.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition
from changelog.envelope.model import Op, Record
from changelog.envelope.position import Position, commit_text
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import Primitive, Struct
from tests.campaigns._background import Background
from tests.campaigns._view_history import History
from tests.integration.kafka.served_views import WITHOUT_BATCH
from tests.integration.kafka.topics import entity
from tests.patience import until
from tests.unit.records import record
from tests.unit.views.story import BATCH

PARTITIONS = 3
KEYS = [f"key-{number}" for number in range(40)]
ORDER = entity("order", PARTITIONS)
GUEST = replace(entity("guest", PARTITIONS), partition_by=("place",))

ENTITIES = {"order": "order", "guest": "guest", WITHOUT_BATCH: "order"}
"""The entity of each view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """Changes that are committed together. `last` is the position of the last one."""

    changes: Sequence[Record]
    last: Position


class Writer(Background):
    """Writes random changes until it is stopped. Some changes move a guest to another partition.

    If the writer loses its connection, it connects again. It then stores its last commit again, unless the changelog
    has it.
    """

    def __init__(self, settings: KafkaSettings, history: History, rng: random.Random) -> None:
        super().__init__()
        self._settings, self._history, self._rng = settings, history, rng
        self._places: dict[str, int] = {}
        self._number = 0
        self._unfinished: _Commit | None = None
        self.changes, self.connections = 0, 0
        self.running, self.idle = threading.Event(), threading.Event()

    def work(self) -> None:
        while not self.stopping.is_set():
            try:
                self.connections += 1
                self._write()
            except ChangelogError as error:
                if error.kind is not Kind.CONNECTION:
                    raise

    def _write(self) -> None:
        with closing(KafkaSink(self._settings, JSON)) as sink:
            sink.prepare([ORDER, GUEST])
            self._finish(sink)
            while not self.stopping.is_set():
                if not self.running.wait(0.05):
                    self.idle.set()
                    continue
                self.idle.clear()
                self._store(sink, self._commit([change for _ in range(5) for change in self._changes()]))
                time.sleep(0.05)

    def _finish(self, sink: KafkaSink) -> None:
        """If the connection was lost during a commit, and the changelog lacks this commit, stores it again. On the
        first connection, stores a commit that announces the columns of `order`.
        """
        checkpoint, unfinished = sink.recover(), self._unfinished
        if not self._number:
            table = TableColumns(columns=Struct(fields=(("id", Primitive.STRING),)))
            versions = Versions([], accepted={}, filled=lambda *_: ())
            columns = versions.announce(ORDER, table, record(Op.CREATE, "{}").envelope.provenance).record
            unfinished = self._commit([columns])
        if unfinished is None:
            return
        if checkpoint is None or checkpoint.position is None or checkpoint.position < unfinished.last:
            self._store(sink, unfinished)
        else:
            self._stored(unfinished)

    def pause(self) -> None:
        """Pauses the writer. Returns when its last change is stored."""
        self.running.clear()
        self.idle.clear()
        until(lambda: self.idle.is_set() or not self.is_alive(), "the writer does not pause")
        self.check()

    def _changes(self) -> Iterator[Record]:
        key, op = self._rng.choice(KEYS), self._rng.choice((Op.UPDATE, Op.UPDATE, Op.UPDATE, Op.DELETE))
        current = None if op is Op.DELETE else "{}"
        service = self._rng.choice((BATCH, "order-api", "order-api"))
        yield record(op, current, key=key, partition=partition(key.encode(), PARTITIONS), service=service)
        key = self._rng.choice(KEYS)
        place, before = self._rng.randrange(PARTITIONS), self._places.get(key)
        if before is not None and before != place:
            yield record(Op.DELETE, None, key=key, entity="guest", partition=before)
        self._places[key] = place
        yield record(Op.UPDATE, "{}", key=key, entity="guest", partition=place)

    def _commit(self, changes: Sequence[Record]) -> _Commit:
        """Gives changes their positions, and notes that readers can see them from now on."""
        self._number += 1
        placed = []
        for number, change in enumerate(changes, 1):
            position = Position(1, self._number, 2 * number)
            provenance = change.envelope.provenance
            source = replace(provenance.source, position=position)
            envelope = replace(change.envelope, provenance=replace(provenance, source=source))
            placed.append(replace(change, envelope=envelope))
            is_alive = change.envelope.current is not None
            for view in _views_of(change):
                self._history.sending(view, change.place.key, str(position), is_alive=is_alive)
        return _Commit(changes=placed, last=Position(1, self._number, 2 * len(changes)))

    def _store(self, sink: KafkaSink, commit: _Commit) -> None:
        self._unfinished = commit
        sink.add([batch.from_records(commit.changes)])
        shapes = {served.name: served.shape() for served in (ORDER, GUEST)}
        through = commit_text(commit.last.commit)
        sink.commit(Checkpoint(position=commit.last, through=through, epoch=1, settings=shapes))
        self._stored(commit)

    def _stored(self, commit: _Commit) -> None:
        self._unfinished = None
        self.changes += len(commit.changes)
        self._history.stored(time.time(), str(commit.last))


def _views_of(change: Record) -> Sequence[str]:
    """Returns the views in which a change counts."""
    is_by_batch = change.envelope.provenance.stamp.service_name == BATCH
    ignoring = {WITHOUT_BATCH} if is_by_batch else set()
    return [view for view, entity_name in ENTITIES.items() if entity_name == change.entity and view not in ignoring]
