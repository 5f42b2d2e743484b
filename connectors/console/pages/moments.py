"""Reads a moment from the query of an address."""

from datetime import UTC, datetime
from http import HTTPStatus

from changelog.connectors.console.rendering import Page, problem
from changelog.connectors.moments import moment
from changelog.envelope.position import Position


def moment_of(text: str) -> Position | datetime | None:
    """Returns the position or the time in `text`, None if it is neither.

    A time without a zone, as the field of a form sends it, is in UTC.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return moment(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else moment(text)


def not_a_moment() -> Page:
    """Returns the page for a text that is not a moment."""
    hint = "Give a position, or a time such as 2026-11-21T03:10:00Z."
    return problem(HTTPStatus.BAD_REQUEST, "The moment is neither a position nor a time.", hint)
