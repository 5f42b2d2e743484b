"""Holds a fence (a snapshot of the database), and waits until the changelog has every transaction that the fence shows.

Without this wait, a comparison would report changes that are not published yet as drift.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.sinks import Log
from changelog.connectors.sources import Database
from changelog.connectors.sources.fences import Fence, NoFenceError
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

Verdict = Literal["not caught up", "refused"]

NOT_CAUGHT_UP: Final = "not caught up"
REFUSED: Final = "refused"

POLL_S: Final = 0.2
"""The pause between two looks at the checkpoint, in seconds."""


class NotComparedError(ChangelogError):
    """Raised if nothing can be compared now. `verdict` becomes the verdict of the report."""

    def __init__(self, verdict: Verdict, message: str, *, hint: str | None = None) -> None:
        super().__init__(Kind.PRECONDITION, message, hint=hint)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Says that the changelog has caught up with the fence. `checkpoint` shows this. It was read at the time `at`,
    after a wait of `waited_s` seconds.
    """

    checkpoint: Checkpoint
    at: datetime
    waited_s: float


def until_read(log: Log, names: Sequence[str], *, deadline: float, wait: Callable[[float], object]) -> Checkpoint:
    """Waits until the service has read the whole tables of these entities and is not repairing any of them.

    Returns the checkpoint that says so. Raises NotComparedError (NOT_CAUGHT_UP) when the deadline, a time of
    `time.monotonic`, has passed.

    The fence must be taken after this wait, for the following reason. A row of the changelog counts if the fence shows
    the row's transaction. The rows that the service read from these tables name transactions that have ended when this
    wait ends, so a later fence shows all of them. If no row of a key counts then, the changelog really lacked the key
    at the fence.
    """
    while True:
        checkpoint = log.checkpoint()
        reason = unread(checkpoint, names)
        if checkpoint is not None and reason is None:
            return checkpoint
        if time.monotonic() > deadline:
            hint = "check that the service runs; `changelog status` shows its progress"
            raise NotComparedError(NOT_CAUGHT_UP, f"{log.where}: {reason}", hint=hint)
        wait(POLL_S)


def unread(checkpoint: Checkpoint | None, names: Sequence[str]) -> str | None:
    """Returns why these entities cannot be compared yet; None if all their tables have been read completely, and no
    repair of them is under way. A paused repair does not count.
    """
    if checkpoint is None:
        return "the changelog is empty"
    for name in names:
        if not is_complete(checkpoint.windows.get(name)):
            return f"the table of the entity {name} is not read completely yet"
    repairs = Repairs.parse(checkpoint.repairs)
    repaired = sorted(repairs.open.keys() & set(names) - repairs.paused)
    return f"a repair of the entity {repaired[0]} is under way" if repaired else None


def until_caught_up(log: Log, fence: Fence, *, deadline: float, wait: Callable[[float], object]) -> CaughtUp:
    """Waits until the changelog has every transaction that the fence shows.

    Raises NotComparedError: NOT_CAUGHT_UP if the deadline has passed, REFUSED if the changelog belongs to another
    database cluster.
    """
    began = time.monotonic()
    while True:
        checkpoint = log.checkpoint()
        if checkpoint is not None and not fence.is_of(checkpoint):
            hint = "set `dsn` in [source] to the database that the service reads; see `changelog check`"
            raise NotComparedError(REFUSED, f"{log.where} belongs to another database cluster", hint=hint)
        reason = "the changelog is empty" if checkpoint is None else fence.missing(checkpoint)
        if checkpoint is not None and reason is None:
            return CaughtUp(checkpoint=checkpoint, at=datetime.now(UTC), waited_s=time.monotonic() - began)
        if time.monotonic() > deadline:
            hint = "check that the service runs (`changelog status`), or wait longer (--wait)"
            raise NotComparedError(NOT_CAUGHT_UP, f"{log.where}: {reason}", hint=hint)
        wait(POLL_S)


@contextlib.contextmanager
def held(source: Database, entities: Sequence[Entity], *, deadline: float) -> Iterator[Fence]:
    """Yields a fence for the tables of these entities, and holds it until the block ends.

    Raises NotComparedError: REFUSED if the database cannot give a fence, NOT_CAUGHT_UP if a table stays locked until
    the deadline.
    """
    with contextlib.ExitStack() as fences:
        try:
            fence = fences.enter_context(source.fence(entities, deadline=deadline))
        except NoFenceError as error:
            verdict: Verdict = NOT_CAUGHT_UP if error.later else REFUSED
            raise NotComparedError(verdict, error.message, hint=error.hint) from error
        yield fence
