"""Parses a moment of a changelog from a command line: a position or a time."""

from datetime import UTC, datetime

from changelog.envelope.position import Position


def moment(text: str) -> Position | datetime | None:
    """Returns the position or the time that `text` spells. A time is converted to UTC.

    Returns None if `text` is neither a position nor an ISO 8601 time with a time zone, or if the time in UTC is not
    in the years 1 to 9999.
    """
    try:
        return Position.parse(text)
    except ValueError:
        pass
    try:
        return in_utc(datetime.fromisoformat(text))
    except ValueError:
        return None


def in_utc(time: datetime) -> datetime | None:
    """Returns the time in UTC; None if it has no zone, or if the time in UTC is not in the years 1 to 9999."""
    try:
        return None if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        return None
