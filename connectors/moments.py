"""Parses a moment of a changelog from a command line: a position or a time."""

from datetime import UTC, datetime

from changelog.envelope.position import Position


def moment(text: str) -> Position | datetime | None:
    """Returns the position in `text`, or else the time in it, converted to UTC.

    Returns None if `text` is neither a position nor an ISO 8601 time with a time zone.
    """
    try:
        return Position.parse(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo is not None else None
