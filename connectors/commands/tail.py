"""`changelog tail`: prints the last changes, and then new ones as they are published."""

import argparse
import os
import select
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec
from msgspec import Raw

from changelog.connectors import config, show
from changelog.connectors.commands import choosing
from changelog.connectors.terminal import safe
from changelog.connectors.wiring.sinks import open_log, refuse_other_envelope
from changelog.envelope.codec import json_codec
from changelog.envelope.codec.json_codec import members
from changelog.envelope.columnar import batch
from changelog.envelope.entity import OF_CHANGELOG
from changelog.envelope.model import Envelope, Place, Record

POLL_S = 0.2
"""Seconds between two searches for new changes."""

DEFAULT_LAST = 10

_BLANKS = str.maketrans("\t\n\r", "   ")  # in JSON, these characters occur only between tokens


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

    # With a filter, we know which matching changes are the last ones only after we have read everything.
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

    This is checked here because a closed pipe gives an error only when something is written to it.
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
    """Returns a record as one line of JSON: an object with `entity`, `key`, `partition`, `value`.

    The object also has `movedTo` or `movedFrom` if the row moved to or from another key or partition. Characters that
    act on a terminal are escaped, which does not change the meaning of the JSON; white space between tokens becomes
    spaces.
    """
    line: dict[str, object] = {"entity": record.entity, "key": record.place.key, "partition": record.place.partition}
    for name, place in (("movedTo", record.moved_to), ("movedFrom", record.moved_from)):
        if place is not None:
            line[name] = _place(place)
    line["value"] = Raw(json_codec.encode(_in_json(record.envelope)))
    return safe(msgspec.json.encode(line).decode().translate(_BLANKS))


def _in_json(envelope: Envelope) -> Envelope:
    """Returns the envelope in a form that can be printed as JSON: `current` and `original` are objects or strings.

    An older version of the service may have stored a state that is not a JSON object. The text of such a state becomes
    a JSON string.
    """
    if isinstance(envelope.current, Raw) and not _is_object(envelope.current):
        envelope = replace(envelope, current=_string(envelope.current))
    if isinstance(envelope.original, Raw) and not _is_object(envelope.original):
        envelope = replace(envelope, original=_string(envelope.original))
    return envelope


def _is_object(state: Raw) -> bool:
    try:
        members(bytes(state))
    except ValueError:
        return False
    return True


def _string(state: Raw) -> Raw:
    return Raw(msgspec.json.encode(bytes(state).decode()))


def _place(place: Place) -> dict[str, object]:
    return {"key": place.key, "partition": place.partition}


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of changes, 0 or more")
    return int(text)
