"""A moment of a changelog as command lines take it: a position, or a time."""

from datetime import UTC, datetime

from changelog.envelope.position import Position


def moment(text: str) -> Position | datetime | None:
    """The position that `text` spells, or the time with a zone, in UTC; None when it is neither."""
    try:
        return Position.parse(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo is not None else None
