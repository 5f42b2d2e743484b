"""What several jobs take on their command lines; each raises argparse's own error for a text that is none."""

import argparse
from datetime import UTC, datetime

from envelope.position import Position


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
