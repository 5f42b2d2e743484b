"""Waits until the changelog holds all that a fence shows: only then can the two be compared exactly."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from connectors.capture.tables.repairs import Repairs
from connectors.capture.tables.table_progress import is_complete
from connectors.sinks import Log
from envelope.checkpoint import Checkpoint, lsn_text
from envelope.errors import ChangelogError, Kind
from spark_jobs.drift.fenced.fence import Fence

NOT_CAUGHT_UP: Final = "not caught up"
REFUSED: Final = "refused"

LOOK_S: Final = 0.2
"""Between two looks at what is waited for."""


class NotComparedError(ChangelogError):
    """Nothing can be compared now; `verdict` says in a word why."""

    def __init__(self, verdict: Literal["not caught up", "refused"], message: str, *, hint: str | None = None) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The changelog is behind the fence, as its `checkpoint` says; that took `waited_s`."""

    checkpoint: Checkpoint
    at: datetime
    waited_s: float


def until_read(log: Log, names: Sequence[str], *, deadline: float, wait: Callable[[float], object]) -> Checkpoint:
    """The checkpoint of a changelog that has read these entities' tables to their ends, and repairs none of them.

    What was read before the fence is visible in it: of a key without a visible row it is known then that the changelog
    did not have it. Raises NotComparedError (NOT_CAUGHT_UP).
    """
    while True:
        checkpoint = log.checkpoint()
        missing = unread(checkpoint, names)
        if checkpoint is not None and missing is None:
            return checkpoint
        if time.monotonic() > deadline:
            hint = "`changelog status` shows how far it is; is the service running?"
            raise NotComparedError(NOT_CAUGHT_UP, f"{log.where}: {missing}", hint=hint)
        wait(LOOK_S)


def unread(checkpoint: Checkpoint | None, names: Sequence[str]) -> str | None:
    """Why these entities cannot be compared yet; None when their tables are read, and not repaired."""
    if checkpoint is None:
        return "it has not begun"
    for name in names:
        if not is_complete(checkpoint.windows.get(name)):
            return f"the table of {name} is not read to its end"
    repairs = Repairs.parse(checkpoint.repairs)
    repaired = sorted(repairs.open.keys() & set(names) - repairs.paused)
    return f"a repair of {repaired[0]} is under way" if repaired else None


def until_caught_up(log: Log, fence: Fence, *, deadline: float, wait: Callable[[float], object]) -> CaughtUp:
    """Waits until the changelog holds every transaction that the fence shows.

    A transaction that is half published is behind those. Raises NotComparedError: NOT_CAUGHT_UP, or REFUSED where the
    changelog is of another cluster.
    """
    began = time.monotonic()
    while True:
        checkpoint = log.checkpoint()
        if checkpoint is not None and checkpoint.system_identifier != fence.system_identifier:
            hint = "is [source] dsn the database that the service reads? see `changelog check`"
            raise NotComparedError(REFUSED, f"{log.where} is of another database cluster", hint=hint)
        if checkpoint is not None and _is_caught_up(checkpoint, fence):
            return CaughtUp(checkpoint=checkpoint, at=datetime.now(UTC), waited_s=time.monotonic() - began)
        if time.monotonic() > deadline:
            raise _late(log, checkpoint, fence)
        wait(LOOK_S)


def _is_caught_up(checkpoint: Checkpoint, fence: Fence) -> bool:
    """After a promotion, positions of the former primary say nothing of those of the new one."""
    return checkpoint.timeline == fence.timeline and checkpoint.through_lsn >= fence.lsn


def _late(log: Log, checkpoint: Checkpoint | None, fence: Fence) -> NotComparedError:
    hint = "is the service running (`changelog status`)? or wait longer (--wait)"
    if checkpoint is None:
        return NotComparedError(NOT_CAUGHT_UP, f"{log.where}: it has not begun", hint=hint)
    reached = f"it goes up to {lsn_text(checkpoint.through_lsn)}, the snapshot to {lsn_text(fence.lsn)}"
    if checkpoint.timeline != fence.timeline:
        reached = f"it is on timeline {checkpoint.timeline}, the server on {fence.timeline}"
    return NotComparedError(NOT_CAUGHT_UP, f"{log.where}: {reached}", hint=hint)
