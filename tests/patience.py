"""How long tests wait for an event."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""How long a test waits before it fails. This is not a performance limit.

The events come within seconds, or much later on a busy machine. A test whose event never comes blocks its worker for
this long.
"""

PROGRAM_S = 300.0
"""How long a test waits for a whole program, such as a demo with its servers or a Spark job."""


REST = 4
"""After each check of a condition, `rest` pauses this many times as long as the check took."""


def until(reached: Callable[[], bool], what: str) -> None:
    """Waits until `reached` returns true. After `PATIENCE_S`, it fails with the message `what`."""
    deadline = time.monotonic() + PATIENCE_S
    began = time.thread_time()
    while not reached():
        assert time.monotonic() < deadline, what
        began = rest(began, 0.05)


def rest(began: float, least_s: float) -> float:
    """Pauses between two checks of a condition, for at least `least_s` seconds. Returns the CPU time of this thread
    after the pause, in seconds. This is `began` for the next call.

    `began` is the thread's CPU time when the last check began. A check that reads a whole changelog may take longer
    than `least_s`. So the pause grows with the check; otherwise, the checks would take the CPU time that the service
    needs.
    """
    time.sleep(max(least_s, REST * (time.thread_time() - began)))
    return time.thread_time()
