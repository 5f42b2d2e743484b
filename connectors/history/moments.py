"""Compares changes with moments. A moment is a position or a time. Times are compared with commit times."""

from collections.abc import Sequence
from datetime import datetime

from changelog.envelope.model import Record, position_of
from changelog.envelope.position import Position

Moment = Position | datetime


def is_since(record: Record, begin: Moment) -> bool:
    """Returns whether a change is at or after a moment."""
    if isinstance(begin, Position):
        return position_of(record) >= begin
    return record.envelope.provenance.source.committed_at >= begin


def is_until(record: Record, end: Moment) -> bool:
    """Returns whether a change is at or before a moment."""
    if isinstance(end, Position):
        return position_of(record) <= end
    return record.envelope.provenance.source.committed_at <= end


def position_before(begin: Moment | None) -> Position | None:
    """Returns the position just before a moment: changes since that moment have greater positions.

    Returns None if the moment is a time, or if there is no position before it.
    """
    return begin.previous() if isinstance(begin, Position) else None


def as_of(records: Sequence[Record], at: Moment | None) -> Sequence[Record]:
    """Returns the changes up to a moment, or all changes if `at` is None. `records` are ordered by position.

    Commit times may be in a different order than positions, because a clock may step back. So if `at` is a time, the
    result ends before the first change that was committed after that time.
    """
    if at is None:
        return records
    end = next((index for index, record in enumerate(records) if not is_until(record, at)), len(records))
    return records[:end]
