"""Defines arguments that several commands share: those that name a key, and those that select changes.

Changes are selected by time, by the service or request that made them, and by column.
"""

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from changelog.connectors import show
from changelog.connectors.history.moments import Moment, is_since, is_until
from changelog.connectors.moments import moment
from changelog.envelope.model import Record

Choice = Callable[[Record], bool]
"""A function that returns whether to show a change."""

MOMENT_FORM = "a position, a time such as 2026-11-21T03:10:00Z, or an age such as 90s, 15m, 6h or 2d"
"""What a moment looks like on the command line, for the help of options."""

_UNITS: Mapping[str, timedelta] = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that filter changes."""
    add_since(parser)
    parser.add_argument("--until", type=when, metavar="WHEN", help="only changes up to WHEN, written as for --since")
    parser.add_argument(
        "--service", type=text, action="append", metavar="NAME", help="only changes by this service; may be repeated"
    )
    parser.add_argument(
        "--identifier",
        type=text,
        action="append",
        metavar="TEXT",
        help="only changes by the request, job or user with this identifier; may be repeated",
    )
    parser.add_argument(
        "--column", action="append", metavar="NAME", help="only changes of this column; may be repeated"
    )


def add_key(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name one key of an entity."""
    parser.add_argument("entity", metavar="ENTITY", help="the entity")
    parser.add_argument(
        "key", type=text, nargs="+", metavar="KEY", help="the key: one value for each column of the key"
    )


def add_since(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that chooses the changes since a moment."""
    parser.add_argument("--since", type=when, metavar="WHEN", help=f"only changes since WHEN: {MOMENT_FORM}")


def choice_of(arguments: argparse.Namespace) -> Choice | None:
    """Returns the filter that the arguments describe; None if the arguments select all changes."""
    choices: list[Choice] = [
        *([] if arguments.since is None else [partial(is_since, begin=arguments.since)]),
        *([] if arguments.until is None else [partial(is_until, end=arguments.until)]),
        *([_by(frozenset(arguments.service))] if arguments.service else []),
        *([_under(frozenset(arguments.identifier))] if arguments.identifier else []),
        *([_of(frozenset(arguments.column))] if arguments.column else []),
    ]
    return (lambda record: all(choice(record) for choice in choices)) if choices else None


def when(text: str) -> Moment:
    """Parses a position, a time with a zone, or an age such as 15m."""
    if text[-1:] in _UNITS and text[:-1].isdecimal():
        try:
            return datetime.now(UTC) - int(text[:-1]) * _UNITS[text[-1]]
        except OverflowError:
            raise argparse.ArgumentTypeError(f"{text!r} is before the year 1") from None
    position_or_time = moment(text)
    if position_or_time is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a position, a time with a zone, or an age such as 15m")
    return position_or_time


def text(word: str) -> str:
    """Parses a key's value, a service or an identifier. Refuses text that is not UTF-8: no change has such text."""
    if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
        raise argparse.ArgumentTypeError(f"{word!r} is not UTF-8")
    return word


def _by(services: frozenset[str]) -> Choice:
    return lambda record: record.envelope.provenance.stamp.service_name in services


def _under(identifiers: frozenset[str]) -> Choice:
    return lambda record: record.envelope.provenance.stamp.identifier in identifiers


def _of(columns: frozenset[str]) -> Choice:
    return lambda record: not columns.isdisjoint(change.name for change in show.changes(record.envelope))
