"""`changelog tail`: changes as they come."""

import argparse
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from connectors import config, show
from connectors.sinks.filelayout import NotWholeError, log_file, read_checkpoint_of, sequences
from connectors.sinks.filelog import follow, read_log
from envelope import batch
from envelope.codec import json_codec
from envelope.model import Place, Record
from envelope.position import Position

POLL_S = 0.2
"""Seconds between looks at the log."""

DEFAULT_LAST = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog tail` takes."""
    parser.add_argument("entity", nargs="?", metavar="ENTITY", help="only this entity")
    parser.add_argument("--key", metavar="KEY", help="only this key")
    parser.add_argument(
        "-n",
        "--last",
        type=_count,
        default=DEFAULT_LAST,
        metavar="N",
        help=f"begin with the last N; default: {DEFAULT_LAST}",
    )
    parser.add_argument("--no-follow", action="store_true", help="end after those")
    parser.add_argument("--json", action="store_true", help="print each message as a line of JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the last changes, then new ones until interrupted."""
    path = config.load(arguments.config, os.environ).sink.path
    output = printer(as_json=arguments.json)
    after = before_last(path, arguments.last, entity=arguments.entity, key=arguments.key)

    def wait() -> bool:
        time.sleep(0 if arguments.no_follow else POLL_S)
        return not arguments.no_follow

    try:
        for rows in follow(path, entity=arguments.entity, key=arguments.key, after=after, wait=wait):
            for record in batch.records(rows):
                output(record)
    except KeyboardInterrupt:
        pass  # how one leaves
    return 0


def before_last(path: Path, count: int, *, entity: str | None, key: str | None) -> Position | None:
    """The position behind which the last `count` wanted rows stand, None when these are all.

    Looks at the newest file, then at twice as many, and so on.
    """
    files = sequences(path)
    back = 1
    while True:
        begin = _position(log_file(path, files[-back - 1])) if back < len(files) else None
        newest: deque[str] = deque(maxlen=count + 1)
        for rows in read_log(path, entity=entity, key=key, after=begin):
            newest.extend(rows.column("position").to_pylist())
        if len(newest) > count:
            return Position.parse(newest[0])
        if begin is None:
            return None
        back *= 2


def printer(*, as_json: bool) -> Callable[[Record], None]:
    """What prints one record: readable, or as a line of JSON."""
    if as_json:
        return lambda record: print(message_line(record), flush=True)
    console = show.console()
    return lambda record: console.print(show.record(record))


def message_line(record: Record) -> str:
    """`{"entity", "key", "partition", "movedTo", "movedFrom", "value"}`; the moves only where there are any."""
    line: dict[str, object] = {"entity": record.entity, "key": record.place.key, "partition": record.place.partition}
    for name, place in (("movedTo", record.moved_to), ("movedFrom", record.moved_from)):
        if place is not None:
            line[name] = _place(place)
    line["value"] = msgspec.Raw(json_codec.encode(record.envelope))
    return msgspec.json.encode(line).decode()


def _place(place: Place) -> dict[str, object]:
    return {"key": place.key, "partition": place.partition}


def _position(file: Path) -> Position | None:
    try:
        return read_checkpoint_of(file).position
    except NotWholeError as damage:
        raise damage.error("restore it from a copy") from damage


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of changes")
    return int(text)
