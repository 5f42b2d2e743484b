"""Makes a request wait until the states are as new as it asks for."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus

from starlette.responses import Response

from changelog.connectors.views.http.answers import RefusalError, headers_of, staleness
from changelog.connectors.views.http.questions import Freshness
from changelog.connectors.views.served import Completeness
from changelog.connectors.views.shown import ShownMoment, ShownView

WAIT_S = 5.0
"""How many seconds a request waits at most until states are new enough."""

POLL_S = 0.02
"""How many seconds a waiting request pauses before it reads the changelog again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reading of the changelog found: the `answer`, or why the states are not new enough (`shortfall`). The
    states are complete as far as `reached` says.
    """

    reached: Completeness
    shortfall: str | None = None
    answer: Response | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Makes requests wait: for at most `wait_s` seconds, and no longer once `stopping` returns True.

    `stopping` returns True when the server is about to end. `readers` are the threads that read.
    """

    readers: Executor
    stopping: Callable[[], bool]
    wait_s: float = WAIT_S

    async def until(self, read: Callable[[], Reading]) -> tuple[Response, Completeness]:
        """Returns the answer of `read` once the states are new enough, and how far they are complete.

        `read` is called in a thread, because it may read files. It does everything in one call: it costs more to pass
        work to a thread than to find a row in memory. Raises RefusalError (503) if the states do not become new enough
        in time, and the errors of `read`.
        """
        deadline = time.monotonic() + self.wait_s
        while True:
            reading = await asyncio.get_running_loop().run_in_executor(self.readers, read)
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


def read_once(
    view: ShownView, key: str | None, freshness: Freshness, answer: Callable[[ShownMoment], Response]
) -> Reading:
    """Reads the view's rows as they are now; with a `key`, only its row is read. `answer` makes the answer from them.

    Raises RefusalError (503) if rows come from a copy that is not new enough, and the errors of `ShownView.now`.
    """
    moment = view.now(key, allows_stale=freshness.allows_stale)
    shortfall = freshness.shortfall(moment.reached, age_s(moment.reached, time.time()))
    if shortfall is not None:
        return Reading(reached=moment.reached, shortfall=shortfall)
    response = answer(moment)
    refuse_stale(moment, freshness)
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
