"""Defines the input of a check, and a function that builds findings."""

from collections.abc import Sequence
from dataclasses import dataclass

from changelog.connectors.findings import Finding
from changelog.envelope.entity import Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What the service needs from the database.

    `through_lsn` is the log position at which the changelog ends; None if the changelog has not begun. `keeps_state`
    has the same meaning as in `changelog.connectors.sources.postgres.settings.Settings`.
    """

    slot: str
    publication: str
    failover: bool
    entities: Sequence[Entity]
    through_lsn: int | None = None
    keeps_state: bool = False


def mend(name: str, message: str, statement: str) -> Finding:
    """Returns the finding for a failure that one SQL statement fixes without losing anything."""
    return Finding(name=name, status="fail", message=message, hint=statement, fix=(statement,))
