"""Makes the errors with which the service stops at the current place in the log."""

from changelog.connectors.capture.assembly.assembly import AssemblyRun
from changelog.connectors.capture.rows.row_records import Origin
from changelog.connectors.sources.mysql.decode.log_state import LogState
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

SKIP = "changelog accept POSITION --as skip"
"""The command by which an operator lets the service continue after a stop. POSITION is the position of the stop."""


class Stops:
    """Makes the errors for one block of log events; `run` assembles that block. `origin` has the decisions of
    operators.
    """

    def __init__(self, state: LogState, run: AssemblyRun, origin: Origin) -> None:
        self._state, self._run, self._origin = state, run, origin

    def unless_skipped(self, message: str, hint: str) -> None:
        """Raises an error that stops the service at this place, unless an operator has decided to skip what is here."""
        stop = self.error(message, hint)
        if stop.position is None or self._origin.decisions.at(stop.position) != "skip":
            raise stop

    def error(self, message: str, hint: str, *, kind: Kind = Kind.STOP) -> ChangelogError:
        """Encodes the rows before this place, and returns an error that has the position of this place. In `hint`, this
        position replaces the word POSITION. If `hint` has the command `SKIP`, the error offers the choice `skip`.
        """
        self._run.flush()
        position = self.here()
        choices = ("skip",) if SKIP in hint else ()
        hint = hint.replace("POSITION", str(position))
        return ChangelogError(kind, message, hint=hint, position=position, choices=choices)

    def here(self) -> Position:
        """Returns the position of the next row of the open transaction; if none is open, that of the present place in
        the log.
        """
        return self._run.here() if self._run.is_open else Position(self._state.epoch, self._state.here, 0)
