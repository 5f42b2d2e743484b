"""What several jobs take on their command lines; each raises argparse's own error for a text that is none."""

import argparse
from datetime import UTC, datetime

from envelope.position import Position

SECONDS_MAX = 1e6


def moment(text: str) -> Position | datetime:
    """A position, or a time with a zone, which is then UTC."""
    try:
        return Position.parse(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no position, and no time with a zone")
    return at.astimezone(UTC)


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("should be 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return found


def place(text: str) -> str:
    """A folder or a URI; an empty one, as of a variable that is not set, would be the working directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; name a folder or a URI")
    return text
