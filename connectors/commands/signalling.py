"""What the commands share that ask something of the running service: a signal sent, and what became of it."""

import argparse
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from rich.console import Console

from changelog.connectors.capture.tables.repairs import Repairs, absent_of
from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.config import Config
from changelog.connectors.sinks import Log, unknown_entity
from changelog.connectors.sources import Database
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import open_log
from changelog.connectors.wiring.sources import database
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Do, Signal

POLL_S = 0.3
"""Seconds between looks at the changelog's checkpoint."""

LOOK_FOR_SERVICE_S = 5.0
"""Seconds between looks whether a service reads the slot."""

REOPENING_S = 6.0
"""How long nobody may read the slot before the service is said to be away. It opens its source again when tables are to
be read, which takes some seconds where there are many of them, or where the machine is busy."""

LOOK_AGAIN_S = 0.5
"""Seconds until the next look where nobody read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOutcome:
    """What became of a signal, and how many of the asked keys the table lacks."""

    word: Literal["done", "cancelled", "sent"] = "sent"
    absent: int = 0


SENT = SignalOutcome()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A signal that is in the database's log; `through` is where it ends, `place` how the database spells that."""

    signal: Signal
    through: str
    place: str

    @classmethod
    def of(cls, source: Database, signal: Signal) -> "Sent":
        """Sends it."""
        through = source.send_signals([signal])
        return cls(signal=signal, through=through, place=source.spell(through))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What these commands take."""
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until the service is done; without waiting, the repair goes on all the same",
    )
    parser.add_argument("--json", action="store_true", help="print what became of it as a JSON object")


def ask(
    settings: Config,
    arguments: argparse.Namespace,
    do: Do,
    entity: str | None,
    keys: tuple[str, ...] | None = None,
    *,
    unread: Callable[[Signal], None] | None = None,
) -> int:
    """Sends a signal, waits for its end where that is wanted, and says what came of it; the exit code.

    `unread` is called with a signal that no service reads for now.
    """
    log = open_log(settings)
    checkpoint = known(log, entity)
    signal = Signal(do=do, id=secrets.token_hex(8), entity=entity, keys=keys, service=settings.name)
    sent = Sent.of(database(settings), signal)
    quiet = bool(arguments.json)
    outcome = SENT
    if not _is_read(settings):
        _say(f"no service reads the slot {settings.slot}: it handles the signal when it starts", quiet=quiet)
        if unread is not None:
            unread(signal)
    elif entity in Repairs.parse(checkpoint.repairs).paused and do in ("republish", "rebuild"):
        _say(f"the table of {entity} is not read until `changelog signal resume {entity}`", quiet=quiet)
    elif arguments.wait:
        outcome = _wait(settings, log, sent, quiet=quiet)
    if quiet:
        request = {"id": signal.id, "do": do, "entity": entity, "keys": None if keys is None else len(keys)}
        ended = {"outcome": outcome.word, "absent": outcome.absent}
        print(msgspec.json.encode({**request, "lsn": sent.place, **ended}).decode())
    elif outcome != SENT:
        lacking = f"; {outcome.absent:,} of {len(keys):,} keys are not in the table" if keys and outcome.absent else ""
        say(f"{_subject(signal)}: {outcome.word}{lacking}")
    elif not arguments.wait:
        say(f"{_subject(signal)}: the service is told; `changelog status` shows how far it is")
    return 1 if outcome.word == "cancelled" else 0


def known(log: Log, entity: str | None) -> Checkpoint:
    """The changelog's checkpoint; raises ChangelogError (USAGE) for an entity that it does not have."""
    checkpoint = log.checkpoint()
    if checkpoint is None:
        raise ChangelogError(Kind.USAGE, f"{log.where} is empty", hint="start the service first: `changelog run`")
    if entity is not None and entity not in checkpoint.windows:
        raise unknown_entity(log, entity, checkpoint.windows)
    return checkpoint


def progress(checkpoint: Checkpoint, entity: str) -> str:
    """How far the repair of an entity is, for people."""
    repairs = Repairs.parse(checkpoint.repairs)
    repair = repairs.open.get(entity)
    if entity in repairs.paused:
        return "paused"
    match None if repair is None else repair.stage:
        case "table":
            done, total = pages_read(checkpoint.windows[entity])
            return f"the table is read: {100 * done // total} %"
        case "keys":
            assert repair is not None
            return f"{len(repair.keys):,} keys are looked up"
        case "sweep":
            return "the changelog is looked through for what the table lacks"
    return "done"


def _wait(settings: Config, log: Log, sent: Sent, *, quiet: bool) -> SignalOutcome:
    """Until the signal ended; a service that ends meanwhile is said, and what it was told waits for its next start."""
    look_at = 0.0
    try:
        with _shown(quiet=quiet) as tell:
            while True:
                outcome = _outcome(log, sent, tell)
                if outcome is not None:
                    return outcome
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_FOR_SERVICE_S
                    if not _is_read(settings):
                        _say(f"the service has ended; it goes on when it starts ({_subject(sent.signal)})", quiet=quiet)
                        return SENT
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        _say(
            f"the service goes on without you ({_subject(sent.signal)}); `changelog signal cancel` ends it", quiet=quiet
        )
        raise


def _outcome(log: Log, sent: Sent, tell: Callable[[str], None]) -> SignalOutcome | None:
    checkpoint = log.checkpoint()
    if checkpoint is None:
        return None
    repairs = Repairs.parse(checkpoint.repairs)
    ended = repairs.ended.get(sent.signal.id)
    if ended == "failed":
        raise ChangelogError(
            Kind.PRECONDITION,
            f"{_subject(sent.signal)}: the table was read, but what it lacks could not be looked for in the changelog",
            hint="the service's log says why",
        )
    if ended is not None:
        return (
            SignalOutcome(word="cancelled")
            if ended == "cancelled"
            else SignalOutcome(word="done", absent=absent_of(ended))
        )
    if not repairs.knows(sent.signal.id):
        if checkpoint.through > sent.through:
            raise ChangelogError(
                Kind.ACCESS,
                f"the service passed the signal at {sent.place} and did not obey it",
                hint="its log says why: is [signals] secret here the one that it has?",
            )
        tell("the service has not read that far yet")
        return None
    assert sent.signal.entity is not None
    tell(f"{sent.signal.entity}: {progress(checkpoint, sent.signal.entity)}")
    return None


def _is_read(settings: Config) -> bool:
    """Whether somebody reads the slot, now or within `REOPENING_S`. No service waits for a slot that is not there."""
    source = database(settings)
    deadline = time.monotonic() + REOPENING_S
    while (hold := source.hold()) is not None:
        if hold.reader is not None:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_AGAIN_S)
    return False


@contextlib.contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """What tells how far it is: on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True, highlight=False, markup=False, emoji=False).status("") as status:
        yield status.update


def _say(text: str, *, quiet: bool) -> None:
    say(f"changelog: {text}", file=sys.stderr if quiet else sys.stdout)


def _subject(signal: Signal) -> str:
    return f"{signal.do} {signal.entity or 'all'}"


def as_json(checkpoint: Checkpoint | None) -> dict[str, Any]:
    """The repairs by entity, as `changelog status` tells them: what is left, and the ids of who asked."""
    if checkpoint is None:
        return {"open": {}, "paused": []}
    repairs = Repairs.parse(checkpoint.repairs)
    open_repairs = {}
    for entity, repair in sorted(repairs.open.items()):
        done, total = pages_read(checkpoint.windows[entity])
        open_repairs[entity] = {
            "stage": repair.stage,
            "rebuild": repair.sweep,
            "since": repair.start,
            "pages_done": done,
            "pages": total,
            "keys_left": len(repair.keys),
            "keys_absent": len(repair.absent),
            "ids": list(repair.ids),
            "progress": progress(checkpoint, entity),
        }
    return {"open": open_repairs, "paused": sorted(repairs.paused)}
