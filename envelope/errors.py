"""The one error type, and the one table that says what a running service does with it."""

from collections.abc import Sequence
from enum import StrEnum

from envelope.position import Position


class Kind(StrEnum):
    """What went wrong, as far as anyone who handles it needs to know."""

    USAGE = "usage"  # the command line or the configuration is wrong
    ACCESS = "access"  # a password, a right or a role is missing
    PRECONDITION = "precondition"  # the source or the sink is not set up for the job
    CONNECTION = "connection"  # the other side cannot be reached, now
    ALTERED = "altered"  # the source changed under us; opened again, it is seen as it is now
    IN_USE = "in use"  # another service holds the slot or the log
    GAP = "gap"  # the log no longer reaches back to what was published
    DIVERGED = "diverged"  # more was published than the source's history now holds
    SETTINGS = "settings"  # what shapes the changelog changed since it was begun
    STOP = "stop"  # a change that cannot be published as it is, or that a policy will not; an operator passes it
    MALFORMED = "malformed"  # bytes that no peer of ours should have sent or stored
    STORAGE = "storage"  # the sink cannot store, for lack of room or rights
    LIMIT = "limit"  # a bound was reached
    IN_DOUBT = "in doubt"  # whether a batch was stored is not known; the same again, by its ids, does no harm


RETRIED = frozenset({Kind.CONNECTION, Kind.ALTERED})
"""The kinds that a running service waits out; every other kind stops it."""

OVER_GAP = "`changelog run --over-gap` shows what is known of the gap, and the way on"
"""The one way on from a GAP, or a DIVERGED that no other server can end: nothing is dropped for it."""

EXIT_CODES = {Kind.USAGE: 2}
"""Exit codes that differ from 3, *failed*."""


class ChangelogError(Exception):
    """What happened (`message`), what to do about it (`hint`), and where in the log (`position`).

    Neither text holds a row value or a secret; each is one line. Of a STOP, `choices` are the decisions by which
    `changelog accept` passes it; where `changelog schemas accept` does, `altered` is the entity.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        hint: str | None = None,
        position: Position | None = None,
        choices: Sequence[str] = (),
        altered: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.position = position
        self.choices = tuple(choices)
        self.altered = altered

    def __str__(self) -> str:
        where = f" at {self.position}" if self.position else ""
        remedy = f"; {self.hint}" if self.hint else ""
        return f"{self.message}{where}{remedy}"
