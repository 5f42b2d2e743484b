"""Makes a request wait until the states are as new as it asks for."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import anyio
from anyio.to_thread import run_sync

from changelog.connectors.views.http.answers import RefusalError, headers_of, staleness
from changelog.connectors.views.http.questions import Freshness
from changelog.connectors.views.served import Completeness
from changelog.connectors.views.shown import ShownMoment, ShownView

WAIT_S = 5.0
"""How many seconds a request waits at most until states are new enough."""

POLL_S = 0.02
"""How many seconds a waiting request pauses before it reads the changelog again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Makes requests wait: for at most `wait_s` seconds, and no longer once `stopping` returns True.

    `stopping` returns True when the server is about to end. `readers` limits how many threads read at the same time.
    """

    readers: anyio.CapacityLimiter
    stopping: Callable[[], bool]
    wait_s: float = WAIT_S

    async def until(self, view: ShownView, key: str | None, freshness: Freshness) -> ShownMoment:
        """Returns the view's rows once they are new enough; with a `key`, only its row is read.

        Raises RefusalError (503) if they do not become new enough in time, and the errors of `ShownView.now`.
        """
        deadline = time.monotonic() + self.wait_s
        while True:
            moment = await run_sync(partial(view.now, key, allows_stale=freshness.allows_stale), limiter=self.readers)
            shortfall = freshness.shortfall(moment.reached, age_s(moment.reached, time.time()))
            if shortfall is None:
                return moment
            if self.stopping():
                raise RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", "send the request again")
            if time.monotonic() >= deadline:
                raise RefusalError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"the changelog {shortfall}",
                    f"the request waited {self.wait_s:g} s: try again, or see `changelog status` for the service's lag",
                    headers_of(moment.reached, time.time()),
                )
            await asyncio.sleep(POLL_S)


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
