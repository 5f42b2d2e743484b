"""Defines the error type of the whole project, and says after which errors a running service tries again."""

from collections.abc import Sequence
from enum import StrEnum

from changelog.envelope.position import Position


class Kind(StrEnum):
    """The kind of an error. Code that handles an error decides only by its kind."""

    USAGE = "usage"  # the command line or the configuration is wrong
    ACCESS = "access"  # a password, a right or a role is missing
    PRECONDITION = "precondition"  # the source or the sink is not set up for the job
    CONNECTION = "connection"  # a server, such as the database or a broker, cannot be reached at the moment
    ALTERED = "altered"  # the source changed while it was read; opening the source again picks up the change
    IN_USE = "in use"  # another service holds the replication slot or the file log
    GAP = "gap"  # the database's log no longer holds all changes after the last published one
    DIVERGED = "diverged"  # the changelog holds changes that are not, or no longer, in the database's history
    SETTINGS = "settings"  # settings that determine the changelog's content have changed since its first start
    STOP = "stop"  # a change cannot be published as it is, or a policy forbids it; an operator has to decide
    MALFORMED = "malformed"  # data that no correct program sends or stores
    STORAGE = "storage"  # the sink cannot store messages, because it lacks space or rights
    LIMIT = "limit"  # a fixed limit of this program was reached, such as the depth of JSON
    IN_DOUBT = "in doubt"  # it is unknown whether a batch was stored; sending it again with the same ids is safe


RETRIED = frozenset({Kind.CONNECTION, Kind.ALTERED})
"""After an error of one of these kinds, a running service waits and tries again. Every other kind stops the service."""

OVER_GAP = "`changelog run --over-gap` shows what is known of the gap and how to continue"
"""The hint of every GAP error, and of each DIVERGED error that cannot be solved by connecting to another server. The
command in the hint only shows the gap and changes nothing."""

EXIT_CODES = {Kind.USAGE: 2}
"""The exit codes of commands, by the kind of the error that ended them. For all other kinds, the code is 3."""


class ChangelogError(Exception):
    """An error: what happened (`message`), what to do about it (`hint`), and at which `position` it happened.

    `message` and `hint` are one line each, and contain no values of rows and no secrets. For a STOP, `choices` are the
    decisions that `changelog accept` offers. If an operator has to use `changelog schemas accept` instead, `altered` is
    the name of the entity whose columns changed.
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
