"""Reads the arguments by which callers choose changes: moments, services, identifiers."""

from dataclasses import dataclass
from datetime import datetime

from changelog.connectors.history.moments import Moment, is_since, is_until
from changelog.connectors.moments import in_utc, moment
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Record
from changelog.envelope.position import Position

When = Position | datetime | str
"""A moment as callers give it: a position, or a time with a time zone, or the text of one of them, such as
`00000001/0000000001781838/00000006` or `2026-11-21T03:10:00Z`."""


def moment_of(name: str, value: When | None) -> Moment | None:
    """Returns the position or the time that a caller gave as the argument `name`; None if the caller gave None.

    Raises ChangelogError (USAGE) if `value` is neither a position nor a time, if the time has no zone, or if the time
    in UTC is not in the years 1 to 9999.
    """
    at = moment(value) if isinstance(value, str) else in_utc(value) if isinstance(value, datetime) else value
    if value is None or isinstance(at, Position):
        return at
    if not isinstance(at, datetime):
        value_text = value if isinstance(value, str) else repr(value)
        raise ChangelogError(
            Kind.USAGE,
            f"{name}={value_text} is neither a position nor a time with a zone",
            hint='give a Position, a datetime with tzinfo, or a text such as "2026-11-21T03:10:00Z"',
        )
    return at


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeChoice:
    """Which changes to return: those that meet all conditions that are not None.

    Changes at `since` and at `until` are included.
    """

    since: Moment | None = None
    until: Moment | None = None
    service: str | None = None
    identifier: str | None = None

    def includes(self, record: Record) -> bool:
        """Returns whether the change is chosen."""
        stamp = record.envelope.provenance.stamp
        return (
            (self.since is None or is_since(record, self.since))
            and (self.until is None or is_until(record, self.until))
            and self.service in (None, stamp.service_name)
            and self.identifier in (None, stamp.identifier)
        )
