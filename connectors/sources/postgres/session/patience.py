"""How long we wait for the server. The client keeps these limits, because a server that hangs cannot keep its own.

`statement_timeout` is a timer of the backend, which does not run while the backend is stopped; `tcp_user_timeout` sees
only a kernel that no longer acknowledges, and that of a stopped backend does.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen

ANSWER_S = 30.0
"""How long a query of the catalogue may take: it answers at once, or the server hangs."""

_LOOK_S = 0.1
_STOPPING = "the service stops, and no longer waits for an answer"


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection waits for its server.

    `silence_s` is the longest wait without a byte, None for no limit. When it is over, `excused` says whether the
    server has a reason to be silent; if so, the wait begins again. Once `stopping` is true, the limit is `stopping_s`.
    """

    silence_s: float | None = ANSWER_S
    excused: Callable[[], bool] = _never
    stopping: Callable[[], bool] = _never
    stopping_s: float = 2.0


NO_LIMIT = Patience(silence_s=None)
"""For statements that may rightly take hours, run by a person who can interrupt them."""


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed, with an OperationalError, when its server is silent for longer than `patience`.

    Nothing that is called on it later waits: a transaction or a cursor that is left finds it closed.
    """

    patience = Patience()

    @classmethod
    def open(cls, parameters: dict[str, Any], patience: Patience) -> "PatientConnection":
        """Connects, in a thread: libpq does not say when a search for a host's address takes long.

        Raises psycopg.Error.
        """
        attempt: Future[PatientConnection] = Future()
        threading.Thread(target=_connect, args=(attempt, parameters), daemon=True, name="connect").start()
        try:
            while not patience.stopping():
                with contextlib.suppress(TimeoutError):
                    connection = attempt.result(_LOOK_S)
                    connection.patience = patience
                    return connection
            raise psycopg.OperationalError(_STOPPING)
        except BaseException:
            attempt.add_done_callback(_discard)
            raise

    def wait(self, gen: PQGen[RV], *limits: Any, **named: Any) -> RV:
        """Runs a generator of psycopg's; each wait for the socket goes through here."""
        try:
            state = next(gen)
        except StopIteration as ended:  # nothing to wait for: most rows of a COPY are in libpq's buffer already
            result: RV = ended.value
            return result
        return super().wait(self._watched(gen, state), *limits, **named)

    def _watched(self, gen: PQGen[RV], state: Any) -> PQGen[RV]:
        """`gen`, which waits for `state`, within the limits: psycopg resumes it once in each interval at least."""
        heard_at = monotonic()
        try:
            while True:
                ready = yield state
                if ready:
                    heard_at = monotonic()
                heard_at = self._checked(heard_at)
                state = gen.send(ready)
        except StopIteration as ended:
            result: RV = ended.value
            return result

    def _checked(self, heard_at: float) -> float:
        """Closes the connection if the server has been silent for too long; gives the time to count from."""
        patience, now = self.patience, monotonic()
        silent_s = now - heard_at
        if patience.stopping():
            if silent_s >= patience.stopping_s:
                self._give_up(_STOPPING)
        elif patience.silence_s is not None and silent_s >= patience.silence_s:
            if not patience.excused():
                self._give_up(f"no answer for {patience.silence_s:g} s")
            return now
        return heard_at

    def _give_up(self, why: str) -> None:
        self.pgconn.finish()
        raise psycopg.OperationalError(why)


def _connect(attempt: "Future[PatientConnection]", parameters: dict[str, Any]) -> None:
    try:
        attempt.set_result(PatientConnection.connect(**parameters))
    except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
        attempt.set_exception(error)


def _discard(attempt: "Future[PatientConnection]") -> None:
    if attempt.exception() is None:
        attempt.result().close()
