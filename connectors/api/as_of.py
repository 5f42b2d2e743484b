"""Finds the position that the changelog had reached at a moment."""

from dataclasses import replace

import pyarrow.compute as pc

from changelog.connectors.history.moments import Moment
from changelog.connectors.history.refusals import moment_text
from changelog.connectors.sinks import Log
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position


def position_at(log: Log, at: Moment) -> Position:
    """Returns the position that the changelog had reached at a moment.

    If `at` is a position, returns it unchanged. If `at` is a time, reads all changes, and returns the last position
    before the first transaction that committed after that time; if there is none, the position of the last change. The
    Spark jobs treat times in the same way. Raises ChangelogError: USAGE for a position past the end of the changelog,
    and for a time before the first change; PRECONDITION for a time if the changelog is empty.
    """
    if isinstance(at, Position):
        _refuse_past_end(log, at)
        return at
    first: str | None = None
    last: str | None = None
    first_later: str | None = None
    for rows in log.read_together():
        positions = rows.column("position")
        bounds = pc.min_max(positions).as_py()
        later = pc.min(positions.filter(pc.greater(rows.column("committed_at"), at))).as_py()
        first = min(first or bounds["min"], bounds["min"])
        last = max(last or bounds["max"], bounds["max"])
        first_later = min(filter(None, (first_later, later)), default=None)
    if first is None or last is None:
        raise ChangelogError(Kind.PRECONDITION, f"{log.where} is empty", hint="`changelog run` fills it")
    end = Position.parse(last) if first_later is None else replace(Position.parse(first_later), ordinal=0).previous()
    if end is None or end < Position.parse(first):
        raise ChangelogError(Kind.USAGE, f"{moment_text(at)} is before the first transaction of {log.where}")
    return end


def _refuse_past_end(log: Log, position: Position) -> None:
    checkpoint = log.checkpoint()
    if checkpoint is not None and position > checkpoint.reached:
        raise ChangelogError(
            Kind.USAGE, f"the position {position} is past the end: {log.where} ends at {checkpoint.reached}"
        )
