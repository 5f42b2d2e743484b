"""Adds the options that several jobs share, and parses their values. Parsers of values raise ArgumentTypeError."""

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path

from changelog.connectors import moments
from changelog.connectors.config import Config, ViewConfig
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ServiceChoice, refuse_contradiction

COUNT_MAX = 1_000_000_000
SECONDS_MAX = 1_000_000

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/*")


def moment(text: str) -> Position | datetime:
    """Parses a position, or a time with a zone. A time in the future is refused."""
    at = moments.moment(text)
    if at is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a position nor a time with a zone")
    if isinstance(at, datetime) and at > datetime.now(UTC):
        raise argparse.ArgumentTypeError(f"{text} is in the future; leave it out for the newest state")
    return at


def positive(text: str) -> int:
    """Parses a whole number of 1 or more."""
    if not text.isdecimal() or not 1 <= int(text) <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {COUNT_MAX}")
    return int(text)


def seconds(text: str) -> float:
    """Parses a number of seconds, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {SECONDS_MAX}")
    return number


def path_or_uri(text: str) -> str:
    """Returns a path or URI unchanged. Refuses an empty string: it would mean the working directory, but usually it
    comes from a shell variable that is not set.
    """
    if not _SCHEME.sub("", text.strip(), count=1):
        raise argparse.ArgumentTypeError("is empty")
    return text


def folder(text: str) -> Path:
    """Parses a path on this machine. Refuses an empty string, as `path_or_uri` does."""
    return Path(path_or_uri(text))


def add_state_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for jobs whose output shows one moment: now, or an earlier one."""
    parser.add_argument(
        "--as-of",
        type=moment,
        metavar="POSITION|TIME",
        help="show the rows as of a position, or of a time such as 2026-11-21T03:10:00Z (now)",
    )
    parser.add_argument(
        "--archive",
        type=path_or_uri,
        metavar="PATH",
        help="read the archive at PATH instead of the configured changelog",
    )


def add_choice_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose which changes count."""
    counting = parser.add_argument_group("which changes count; each option may be repeated")
    for option, help_text in (
        ("--keep-service", "count only changes by this service"),
        ("--drop-service", "count no changes by this service"),
        ("--api-version", "count only changes of this API version"),
    ):
        counting.add_argument(option, action="append", default=[], metavar="NAME", help=help_text)


def choice_of(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the values of the options that `add_choice_options` adds, as arguments for `Chosen`.

    Raises ChangelogError (USAGE) if a service is both kept and dropped.
    """
    refuse_contradiction(ServiceChoice(keep=tuple(arguments.keep_service), drop=tuple(arguments.drop_service)))
    return {
        "keep_services": arguments.keep_service,
        "drop_services": arguments.drop_service,
        "api_versions": arguments.api_version,
    }


def view_of(name: str, config: Config) -> ViewConfig:
    """Returns the view `[views.NAME]`. Raises ChangelogError (USAGE) if the configuration has no such view."""
    if name not in config.views:
        names = ", ".join(sorted(config.views)) or "none"
        raise ChangelogError(
            Kind.USAGE,
            f"the configuration has no view {name}",
            hint=f"add [views.{name}]; the configuration has: {names}",
        )
    return config.views[name]
