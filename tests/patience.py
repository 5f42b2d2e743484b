"""How long tests wait for what has to come."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""A bound for what never comes, and no measure: it comes within seconds, or, where many others work, much later.

What waits for it fails after this, and keeps a worker waiting as long.
"""

PROGRAM_S = 300.0
"""The same for a program that runs from its beginning to its end: a demo with its servers, a job with its Spark."""


def until(reached: Callable[[], bool], what: str) -> None:
    """Waits until `reached` is true; fails with `what` if it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
