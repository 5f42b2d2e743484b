"""Makes a request wait until the states are as new as the request demands."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple

from starlette.responses import Response

from changelog.connectors.views.http.answers import RefusalError, headers_of, staleness
from changelog.connectors.views.http.questions import Freshness
from changelog.connectors.views.served import Completeness
from changelog.connectors.views.shown import ShownMoment, ShownView
from changelog.envelope.errors import ChangelogError

WAIT_S: Final = 5.0
"""How many seconds a request waits at most until states are new enough."""

QUICK_S: Final = 0.002
"""If readings in the event loop take longer than this on average, in seconds, threads read instead for `THREADS_S`."""

THREADS_S: Final = 5.0
"""How long threads read after readings in the event loop were slow, in seconds."""

_READINGS = 64
"""The average time of readings is a moving one, in which a new reading has the weight 1 / _READINGS."""

POLL_S: Final = 0.02
"""How many seconds a waiting request pauses before it reads the changelog again."""


Answer = Callable[[ShownMoment], Response]
"""Makes an answer from the rows as they are now."""


class Question(NamedTuple):
    """What a request asks a view for: the row of `key`, or several rows if `key` is None. `freshness` says how new the
    rows have to be. `answer` makes the answer from them.
    """

    view: ShownView
    key: str | None
    freshness: Freshness
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reading of the changelog found: the `answer`, or why the states are not new enough (`shortfall`). The
    states are complete as far as `reached` says.
    """

    reached: Completeness
    shortfall: str | None = None
    answer: Response | None = None


class ReadingPace:
    """Decides whether the event loop reads rows itself, or threads do. All calls come from the event loop.

    Finding a row that is at hand takes less time than passing the request to a thread and back. If the cores are busy,
    a request also waits for a core: once if the event loop answers it, three times if a thread does. But while the
    event loop reads, all other requests wait. So if readings are slow, for example because rows come from a slow disk,
    threads read for a while. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._mean_s, self._threads_until_s = clock, 0.0, 0.0

    def is_quick(self) -> bool:
        """Returns whether the event loop may read."""
        return self._clock() >= self._threads_until_s

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Adds the time that the block takes, as the time of one reading, to the average."""
        began_s = self._clock()
        try:
            yield
        finally:
            self._mean_s += (self._clock() - began_s - self._mean_s) / _READINGS
            if self._mean_s > QUICK_S:
                self._mean_s, self._threads_until_s = 0.0, self._clock() + THREADS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Makes requests wait: for at most `wait_s` seconds, and no longer once `stopping` returns True.

    `stopping` returns True when the server is about to end. `readers` are the threads that read. `pace` says when the
    event loop may read instead; if `pace` is None, only threads read.
    """

    readers: Executor
    stopping: Callable[[], bool]
    pace: ReadingPace | None
    wait_s: float = WAIT_S

    async def answer(self, ask: Callable[[], Question]) -> tuple[Response, Completeness]:
        """Waits until the states are new enough. Then returns the answer to the question that `ask` returns, and how
        far these states are complete.

        `ask` is called before each reading, in the thread that reads. Asking and reading are one call in that thread,
        because it is expensive to pass work to a thread. Raises RefusalError (503) if the states do not become new
        enough in time, and the errors of `ask` and of `read_now`.
        """
        deadline = time.monotonic() + self.wait_s
        reading = self._read_at_hand(ask)
        while True:
            if reading is None:
                reading = await asyncio.get_running_loop().run_in_executor(self.readers, lambda: read_now(ask()))
            if reading.answer is not None:
                return reading.answer, reading.reached
            if self.stopping():
                raise RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", "send the request again")
            if time.monotonic() >= deadline:
                raise RefusalError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"the changelog {reading.shortfall}",
                    f"the request waited {self.wait_s:g} s: try again, or see `changelog status` for the service's lag",
                    headers_of(reading.reached, time.time()),
                )
            await asyncio.sleep(POLL_S)
            reading = None

    def _read_at_hand(self, ask: Callable[[], Question]) -> Reading | None:
        """Reads the row of a key in the event loop. Returns None if a thread should read it."""
        if self.pace is None or not self.pace.is_quick():
            return None
        question = ask()
        if question.key is None or question.freshness.allows_stale:
            return None
        with suppress(ChangelogError):  # a thread meets the error again, or waits until it is gone
            moment = question.view.at_hand(question.key)
            if moment is not None:
                with self.pace.measured():
                    return read_moment(question, moment)
        return None


def read_now(question: Question) -> Reading:
    """Reads the rows of a question as they are now. Raises the errors of `ShownView.now` and `read_moment`."""
    return read_moment(question, question.view.now(question.key, allows_stale=question.freshness.allows_stale))


def read_moment(question: Question, moment: ShownMoment) -> Reading:
    """Makes the answer to a question from the rows of `moment`. If they are not new enough, returns the reason instead.

    Raises RefusalError (503) if rows were then read from a copy that is not new enough, and the errors of `moment`.
    """
    shortfall = question.freshness.shortfall(moment.reached, age_s(moment.reached, time.time()))
    if shortfall is not None:
        return Reading(reached=moment.reached, shortfall=shortfall)
    response = question.answer(moment)
    refuse_stale(moment, question.freshness)
    return Reading(reached=moment.reached, answer=response)


def refuse_stale(moment: ShownMoment, freshness: Freshness) -> None:
    """Raises RefusalError (503) if the rows that were read came from a copy that is not new enough."""
    now_s = time.time()
    shortfall = freshness.shortfall(moment.reached, age_s(moment.reached, now_s)) if freshness.allows_stale else None
    if shortfall is not None:
        raise RefusalError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the instance that has these rows is gone, and their copy {shortfall}",
            "try again in a moment, or allow more staleness",
            headers_of(moment.reached, now_s),
        )


def age_s(reached: Completeness, now_s: float) -> float | None:
    """Returns the staleness of states, in seconds; None if it is unknown."""
    return None if reached.at_s is None else staleness(reached.at_s, now_s)
