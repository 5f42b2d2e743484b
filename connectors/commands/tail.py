"""`changelog tail`: prints the last changes, and then new ones as they are published."""

import argparse
import os
import select
import sys
from collections import deque
from collections.abc import Callable

from changelog.connectors import config, show
from changelog.connectors.commands import choosing
from changelog.connectors.history import as_json
from changelog.connectors.terminal import json_line
from changelog.connectors.wiring.sinks import open_log, refuse_other_envelope
from changelog.envelope.columnar import batch
from changelog.envelope.entity import OF_CHANGELOG
from changelog.envelope.model import Record

POLL_S = 0.2
"""Seconds between two searches for new changes."""

DEFAULT_LAST = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog tail`."""
    parser.add_argument("entity", nargs="?", metavar="ENTITY", help="only this entity")
    parser.add_argument("--key", metavar="KEY", help="only this key")
    parser.add_argument(
        "-n",
        "--last",
        type=_count,
        default=DEFAULT_LAST,
        metavar="N",
        help=f"begin with the last N changes; default: {DEFAULT_LAST}",
    )
    parser.add_argument("--no-follow", action="store_true", help="do not wait for new changes")
    choosing.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print each message as one line of JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the last changes, then new ones until interrupted."""
    settings = config.load(arguments.config, os.environ)
    if arguments.entity not in OF_CHANGELOG:
        refuse_other_envelope(settings, "`changelog tail`")
    log = open_log(settings)
    output = printer(as_json=arguments.json)
    choice = choosing.choice_of(arguments)
    last_records: deque[Record] | None = None if choice is None else deque(maxlen=arguments.last)

    def wait() -> bool:
        nonlocal last_records
        for record in last_records or ():
            output(record)
        last_records = None
        if arguments.no_follow:
            return False
        wait_for_reader(POLL_S)
        return True

    # With a filter, only a read of the whole changelog shows which matching changes are the last ones.
    last = arguments.last if choice is None else None
    try:
        for rows in log.follow(entity=arguments.entity, key=arguments.key, last=last, wait=wait):
            for record in filter(choice, batch.records(rows)):
                (output if last_records is None else last_records.append)(record)
    except KeyboardInterrupt:
        pass  # Ctrl-C is the usual way to end this command
    return 0


def wait_for_reader(seconds: float) -> None:
    """Waits for `seconds`. Raises BrokenPipeError if nobody is reading our output any longer.

    Without this check, the command would notice a closed pipe only when it writes the next change.
    """
    output = select.poll()
    output.register(sys.stdout, 0)
    for _, events in output.poll(seconds * 1000):
        if events & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError


def printer(*, as_json: bool) -> Callable[[Record], None]:
    """Returns a function that prints a record: as a line of JSON, or else in a form for people."""
    if as_json:
        return lambda record: print(message_line(record), flush=True)
    console = show.console()
    return lambda record: console.print(show.record(record))


def message_line(record: Record) -> str:
    """Returns a record as one line of JSON: see `changelog.connectors.history.as_json.message`.

    Characters that act on a terminal are escaped, which does not change the meaning of the JSON.
    """
    return json_line(as_json.message(record))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of changes, 0 or more")
    return int(text)
