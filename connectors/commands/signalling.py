"""Sends signals to the service and waits for their outcome; the commands republish, rebuild and signal use this.

A *signal* is a message in the database's log: with it, a command tells the service what to do. The checkpoint has the
requested repairs and the outcomes of signals.
"""

import argparse
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
from rich.console import Console

from changelog.connectors.capture.tables.repairs import Repairs, absent_of
from changelog.connectors.config import Config
from changelog.connectors.sinks import Log, unknown_entity
from changelog.connectors.sources import Database
from changelog.connectors.terminal import say
from changelog.connectors.wiring.sinks import open_log
from changelog.connectors.wiring.sources import database
from changelog.connectors.wiring.status import repair_progress
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Do, Signal

POLL_S = 0.3
"""Seconds between two reads of the checkpoint, which has the outcome."""

SERVICE_CHECK_S = 5.0
"""Seconds between two checks whether a service still reads the database's log (on PostgreSQL, the replication slot)."""

REOPENING_S = 6.0
"""If no process has read the database's log for so many seconds, the service counts as stopped. A shorter pause means
nothing, because a running service closes its source and opens it again when the plan of table reads has changed. This
takes some seconds if there are many tables or if the machine is busy.
"""

RECHECK_S = 0.5
"""Seconds until the next check if no process reads the database's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOutcome:
    """The outcome of a signal. The word `sent` means that the outcome is not known.

    `absent` is the number of keys that the signal names and the table lacks.
    """

    word: Literal["done", "cancelled", "sent"] = "sent"
    absent: int = 0


SENT = SignalOutcome()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSignal:
    """A signal in the database's log.

    `through` is the place in the log at which the signal ends, as in `Checkpoint.through`. `lsn` is the same place in
    the database's own form.
    """

    signal: Signal
    through: str
    lsn: str

    @classmethod
    def of(cls, source: Database, signal: Signal) -> "LoggedSignal":
        """Sends the signal, and returns its entry in the log."""
        through = source.send_signals([signal])
        return cls(signal=signal, through=through, lsn=source.spell(through))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of every command that sends a signal."""
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until the service is done; with --no-wait, only send the signal",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as a JSON object")


def ask(
    settings: Config,
    arguments: argparse.Namespace,
    do: Do,
    entity: str | None,
    keys: tuple[str, ...] | None = None,
    *,
    unread: Callable[[Signal], None] | None = None,
) -> int:
    """Sends a signal, waits for its outcome unless `--no-wait` is given, prints the outcome and returns the exit code.

    If no service reads the log now, calls `unread` with the signal, and does not wait. Nor does it wait for a repair
    of a paused entity, whose table is not read. The exit code is 1 if the signal was cancelled, otherwise 0. Raises
    ChangelogError (USAGE) if the changelog does not have the entity.
    """
    log = open_log(settings)
    checkpoint = checkpoint_with(log, entity)
    signal = Signal(do=do, id=secrets.token_hex(8), entity=entity, keys=keys, service=settings.name)
    entry = LoggedSignal.of(database(settings), signal)
    quiet = bool(arguments.json)
    outcome = SENT
    if not _is_read(settings):
        _say("no service reads the log now: the service handles the signal when it starts", quiet=quiet)
        if unread is not None:
            unread(signal)
    elif entity in Repairs.parse(checkpoint.repairs).paused and do in ("republish", "rebuild"):
        _say(f"the table of the entity {entity} is not read until `changelog signal resume {entity}`", quiet=quiet)
    elif arguments.wait:
        outcome = _wait(settings, log, entry, quiet=quiet)
    if quiet:
        request = {"id": signal.id, "do": do, "entity": entity, "keys": None if keys is None else len(keys)}
        result = {"outcome": outcome.word, "absent": outcome.absent}
        print(msgspec.json.encode({**request, "lsn": entry.lsn, **result}).decode())
    elif outcome != SENT:
        absent_text = (
            f"; {outcome.absent:,} of {len(keys):,} keys are not in the table" if keys and outcome.absent else ""
        )
        say(f"{_subject(signal)}: {outcome.word}{absent_text}")
    elif not arguments.wait:
        say(f"{_subject(signal)}: the signal is sent; `changelog status` shows how far the service is with it")
    return 1 if outcome.word == "cancelled" else 0


def checkpoint_with(log: Log, entity: str | None) -> Checkpoint:
    """Returns the checkpoint of the changelog.

    Raises ChangelogError (USAGE) if the changelog is empty, or does not have the entity.
    """
    checkpoint = log.checkpoint()
    if checkpoint is None:
        raise ChangelogError(Kind.USAGE, f"{log.where} is empty", hint="start the service first: `changelog run`")
    if entity is not None and entity not in checkpoint.windows:
        raise unknown_entity(log, entity, checkpoint.windows)
    return checkpoint


def _wait(settings: Config, log: Log, entry: LoggedSignal, *, quiet: bool) -> SignalOutcome:
    """Waits for the outcome of the signal and returns it.

    If the service ends first, says so and returns SENT: the service will finish its work after its next start.
    """
    next_check_at = 0.0
    try:
        with _shown(quiet=quiet) as tell:
            while True:
                outcome = _outcome(log, entry, tell)
                if outcome is not None:
                    return outcome
                if time.monotonic() >= next_check_at:
                    next_check_at = time.monotonic() + SERVICE_CHECK_S
                    if not _is_read(settings):
                        _say(
                            f"the service has ended; after its next start it continues with {_subject(entry.signal)}",
                            quiet=quiet,
                        )
                        return SENT
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        _say(
            f"the service continues with {_subject(entry.signal)}; `changelog signal cancel` cancels it",
            quiet=quiet,
        )
        raise


def _outcome(log: Log, entry: LoggedSignal, tell: Callable[[str], None]) -> SignalOutcome | None:
    checkpoint = log.checkpoint()
    if checkpoint is None:
        return None
    repairs = Repairs.parse(checkpoint.repairs)
    ending = repairs.ended.get(entry.signal.id)
    if ending == "failed":
        raise ChangelogError(
            Kind.PRECONDITION,
            f"{_subject(entry.signal)}: the table was read, but "
            "the service could not search the changelog for keys that the table lacks",
            hint="the service's log says why",
        )
    if ending is not None:
        return (
            SignalOutcome(word="cancelled")
            if ending == "cancelled"
            else SignalOutcome(word="done", absent=absent_of(ending))
        )
    if not repairs.knows(entry.signal.id):
        if checkpoint.through > entry.through:
            raise ChangelogError(
                Kind.ACCESS,
                f"the service has read the signal at {entry.lsn} and did not obey it",
                hint="the service's log says why; for example, this command may use another [signals] secret",
            )
        tell("the service has not read the signal yet")
        return None
    assert entry.signal.entity is not None
    tell(f"{entry.signal.entity}: {repair_progress(checkpoint, entry.signal.entity)}")
    return None


def _is_read(settings: Config) -> bool:
    """Returns whether a service reads the database's log now, or begins to read it within `REOPENING_S`.

    Returns False at once if the database keeps no log for a service (on PostgreSQL, if there is no replication slot).
    """
    source = database(settings)
    deadline = time.monotonic() + REOPENING_S
    while (hold := source.hold()) is not None:
        if hold.reader is not None:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(RECHECK_S)
    return False


@contextlib.contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a line of progress on the terminal, or does nothing if there is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True, highlight=False, markup=False, emoji=False).status("") as status:
        yield status.update


def _say(text: str, *, quiet: bool) -> None:
    say(f"changelog: {text}", file=sys.stderr if quiet else sys.stdout)


def _subject(signal: Signal) -> str:
    return f"{signal.do} {signal.entity or 'all'}"
