"""What several jobs take on their command lines; each raises argparse's own error for a text that is none."""

import argparse
import re
from datetime import UTC, datetime
from pathlib import Path

from connectors import moments
from envelope.position import Position

COUNT_MAX = 1_000_000_000
SECONDS_MAX = 1_000_000

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/*")


def moment(text: str) -> Position | datetime:
    """A position, or a time with a zone that is not still to come."""
    at = moments.moment(text)
    if at is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no position, and no time with a zone")
    if isinstance(at, datetime) and at > datetime.now(UTC):
        raise argparse.ArgumentTypeError(f"{text} is still to come; leave it out for the newest state")
    return at


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or not 1 <= int(text) <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {COUNT_MAX}")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to {SECONDS_MAX}")
    return number


def place(text: str) -> str:
    """A path or a URI; an empty one, as a variable that is not set gives it, would be the working directory."""
    if not _SCHEME.sub("", text.strip(), count=1):
        raise argparse.ArgumentTypeError("is empty")
    return text


def folder(text: str) -> Path:
    """A `place` on this machine."""
    return Path(place(text))
