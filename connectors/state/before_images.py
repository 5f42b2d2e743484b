"""Fills in values that the database's log lacks, from a store of current rows.

This module also updates the store.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import structlog

from changelog.connectors.sinks import Log
from changelog.connectors.state.changes import Changes, StateStore
from changelog.connectors.state.fill_batches import fill_batch
from changelog.connectors.state.pending import Pending
from changelog.connectors.state.restore import ReadPlan, restore
from changelog.envelope.checkpoint import Checkpoint

_ID, _POSITION = "id", "position"

_log = structlog.get_logger("state")


class Watcher:
    """Receives events about the store. This base class ignores them."""

    def restoring(self, rows: int, /) -> None:
        """Called while the store is restored, with the number of rows that were read since the last call."""

    def folded(self, position: str, nbytes: int, /) -> None:
        """Called when the store has all rows up to `position`. `nbytes` is the size of the store.

        `position` is empty before the first row.
        """


class BeforeImages:
    """Knows the current row of every key in the changelog, and fills in the values that rows lack.

    The order of calls is:
    1. `recover`, after the sink is recovered.
    2. `fill` for each piece (batches of rows and the checkpoint after them), and `add` after the sink took these rows.
    3. `fold`, after the sink's commit.

    `open_log` opens a reader of the changelog. `stopping` says whether the service is to end, and `alive` is called
    repeatedly during a restore. Every method may raise ChangelogError.
    """

    def __init__(
        self,
        store: StateStore,
        open_log: Callable[[], Log],
        *,
        watcher: Watcher | None = None,
        stopping: Callable[[], bool] = lambda: False,
        alive: Callable[[], None] = lambda: None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._store, self._open_log, self._watcher = store, open_log, watcher or Watcher()
        self._stopping, self._alive, self._new_id = stopping, alive, new_id
        self._pending = Pending(store)
        self._id = ""

    def recover(self, checkpoint: Checkpoint | None) -> None:
        """Brings the store to the sink's last checkpoint, and drops all changes that were not committed.

        A store that is behind the checkpoint catches up from the changelog. A store that is ahead of the checkpoint, or
        was made for another changelog, is emptied and filled again. The store and the checkpoint have the id of their
        changelog; different ids show that the store was made for another changelog.
        """
        facts = self._store.facts()
        position = facts.get(_POSITION, b"").decode()
        end = "" if checkpoint is None or checkpoint.position is None else str(checkpoint.position)
        of_changelog = "" if checkpoint is None else str(checkpoint.state.get(_ID, ""))
        self._id = facts.get(_ID, b"").decode()
        if not self._id or self._id != of_changelog or position > end:
            if facts:
                _log.warning("the state does not fit the changelog, and is made again", at=position, changelog=end)
                self._store.clear()
            self._id, position = of_changelog or self._new_id(), ""
            self._restore(checkpoint, position, end)
        elif position < end:
            self._restore(checkpoint, position, end)
        self._pending.reset()
        self._watcher.folded(end, self._store.nbytes())

    def fill(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint) -> Sequence[pa.RecordBatch]:
        """Returns the rows of a piece. Fills in the values that the rows lack, as far as these values are known.

        `checkpoint` is the piece's checkpoint. The rows reach the store only if `add` is called.
        """
        self._pending.begin(checkpoint.settings)
        return [fill_batch(self._pending, batch) for batch in rows]

    def add(self) -> None:
        """Records that the sink has taken the rows of the last `fill`."""
        self._pending.add()

    def mark(self, checkpoint: Checkpoint) -> Checkpoint:
        """Returns the checkpoint with the id of the changelog, for the sink to store."""
        return replace(checkpoint, state={_ID: self._id})

    def fold(self, checkpoint: Checkpoint) -> None:
        """Writes all added rows and the checkpoint's position to the store, in one step."""
        position = "" if checkpoint.position is None else str(checkpoint.position)
        self._store.write(self._pending.commit({_ID: self._id.encode(), _POSITION: position.encode()}))
        self._pending.written()
        self._watcher.folded(position, self._store.nbytes())

    def close(self) -> None:
        """Releases the store."""
        self._store.close()

    def _restore(self, checkpoint: Checkpoint | None, after: str, end: str) -> None:
        changes = Changes()
        if checkpoint is not None and end:
            _log.info("restoring the state from the changelog", after=after or None, to=end)
            masks = {
                name: settings.get("mask_id") or ""
                for name, settings in checkpoint.settings.items()
                if not settings.get("immutable")
            }
            read_plan = ReadPlan(masks=masks, after=after, progress=self._progress, stopping=self._stopping)
            changes.facts.update(restore(self._store, self._open_log(), read_plan))
            changes.facts.update({f"mask/{name}": mask.encode() for name, mask in masks.items()})
            _log.info("the state is restored", to=end)
        changes.facts.update({_ID: self._id.encode(), _POSITION: end.encode()})
        self._store.write(changes)

    def _progress(self, rows: int) -> None:
        self._alive()
        self._watcher.restoring(rows)
