"""Chooses the changes that `tail` and `history` show: by time, by service, by column."""

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from changelog.connectors import show
from changelog.connectors.moments import moment
from changelog.envelope.model import Record, position_of
from changelog.envelope.position import Position

Choice = Callable[[Record], bool]
"""A function that tells whether to show a change."""

_UNITS: Mapping[str, timedelta] = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that filter changes."""
    moment_form = "a position, a time such as 2026-11-21T03:10:00Z, or an age such as 90s, 15m, 6h or 2d"
    parser.add_argument("--since", type=when, metavar="WHEN", help=f"only changes since WHEN: {moment_form}")
    parser.add_argument("--until", type=when, metavar="WHEN", help="only changes up to WHEN, in the same forms")
    parser.add_argument(
        "--service", action="append", metavar="NAME", help="only changes by this service; may be repeated"
    )
    parser.add_argument(
        "--column", action="append", metavar="NAME", help="only changes of this column; may be repeated"
    )


def choice_of(arguments: argparse.Namespace) -> Choice | None:
    """Returns the filter that the arguments describe; None if they let every change pass."""
    choices = [
        *([] if arguments.since is None else [_from(arguments.since)]),
        *([] if arguments.until is None else [_up_to(arguments.until)]),
        *([_by(frozenset(arguments.service))] if arguments.service else []),
        *([_of(frozenset(arguments.column))] if arguments.column else []),
    ]
    return (lambda record: all(choice(record) for choice in choices)) if choices else None


def when(text: str) -> Position | datetime:
    """Parses a position, a time with a zone, or an age such as 15m."""
    if text[-1:] in _UNITS and text[:-1].isdecimal():
        try:
            return datetime.now(UTC) - int(text[:-1]) * _UNITS[text[-1]]
        except OverflowError:
            raise argparse.ArgumentTypeError(f"{text!r} is before the year 1") from None
    parsed = moment(text)
    if parsed is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a position, a time with a zone, or an age such as 15m")
    return parsed


def _from(begin: Position | datetime) -> Choice:
    if isinstance(begin, Position):
        return lambda record: position_of(record) >= begin
    return lambda record: record.envelope.provenance.source.committed_at >= begin


def _up_to(end: Position | datetime) -> Choice:
    if isinstance(end, Position):
        return lambda record: position_of(record) <= end
    return lambda record: record.envelope.provenance.source.committed_at <= end


def _by(services: frozenset[str]) -> Choice:
    return lambda record: record.envelope.provenance.stamp.service_name in services


def _of(columns: frozenset[str]) -> Choice:
    return lambda record: not columns.isdisjoint(change.name for change in show.changes(record.envelope))
