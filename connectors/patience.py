"""Limits how long we wait for a PostgreSQL server. The client enforces the limits, because a server that hangs cannot.

PostgreSQL's own limits do not suffice. `statement_timeout` is a timer of the server process, so it does not fire while
that process is suspended. `tcp_user_timeout` only notices a machine whose kernel no longer acknowledges packets, and
the kernel still acknowledges them while a server process is suspended.
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
"""How many seconds a catalogue query may take. Such queries are quick: if one takes longer, the server hangs."""

_POLL_S = 0.1
_STOPPING = "the service is stopping and no longer waits for an answer"


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection waits for its server.

    `silence_s` is how many seconds may pass without a byte from the server (None: no limit). After that time, the
    connection calls `excused`, which returns whether the server has a good reason to be silent. If so, the time starts
    again. Once `stopping` returns true, the limit is `stopping_s`.
    """

    silence_s: float | None = ANSWER_S
    excused: Callable[[], bool] = _never
    stopping: Callable[[], bool] = _never
    stopping_s: float = 2.0


NO_LIMIT = Patience(silence_s=None)
"""For statements that may take hours. A person runs these statements and can interrupt them, so there is no limit."""


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself and raises OperationalError if its server exceeds the limits of `patience`.

    Later calls, such as those at the end of a transaction or a cursor, find the connection closed and do not wait.
    """

    patience = Patience()

    @classmethod
    def open(cls, parameters: dict[str, Any], patience: Patience) -> "PatientConnection":
        """Connects in a thread, because libpq cannot interrupt a slow host name lookup. Raises psycopg.Error."""
        attempt: Future[PatientConnection] = Future()
        threading.Thread(target=_connect, args=(attempt, parameters), daemon=True, name="connect").start()
        try:
            while not patience.stopping():
                with contextlib.suppress(TimeoutError):
                    connection = attempt.result(_POLL_S)
                    connection.patience = patience
                    return connection
            raise psycopg.OperationalError(_STOPPING)
        except BaseException:
            attempt.add_done_callback(_discard)
            raise

    def wait(self, gen: PQGen[RV], *limits: Any, **keywords: Any) -> RV:
        """Runs one of psycopg's generators; every wait for the socket goes through this method."""
        try:
            state = next(gen)
        except StopIteration as stop:  # nothing to wait for: most rows of a COPY are already in libpq's buffer
            result: RV = stop.value
            return result
        return super().wait(self._watched(gen, state), *limits, **keywords)

    def _watched(self, gen: PQGen[RV], state: Any) -> PQGen[RV]:
        """Enforces the limits on `gen`, which waits for `state`.

        psycopg resumes this generator at least once per waiting interval, even if nothing has arrived.
        """
        received_at = monotonic()
        try:
            while True:
                ready = yield state
                if ready:
                    received_at = monotonic()
                received_at = self._checked(received_at)
                state = gen.send(ready)
        except StopIteration as stop:
            result: RV = stop.value
            return result

    def _checked(self, received_at: float) -> float:
        """Returns the time from which the server's silence counts: `received_at`, or now if a long silence was just
        excused.

        Closes the connection and raises OperationalError if the server has been silent for too long.
        """
        patience, now = self.patience, monotonic()
        silent_s = now - received_at
        if patience.stopping():
            if silent_s >= patience.stopping_s:
                self._give_up(_STOPPING)
        elif patience.silence_s is not None and silent_s >= patience.silence_s:
            if not patience.excused():
                self._give_up(f"no answer for {patience.silence_s:g} s")
            return now
        return received_at

    def _give_up(self, why: str) -> None:
        self.pgconn.finish()
        raise psycopg.OperationalError(why)


def _connect(attempt: "Future[PatientConnection]", parameters: dict[str, Any]) -> None:
    try:
        attempt.set_result(PatientConnection.connect(**parameters))
    except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
        attempt.set_exception(error)


def _discard(attempt: "Future[PatientConnection]") -> None:
    if attempt.exception() is None:
        attempt.result().close()
