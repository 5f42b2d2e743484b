"""How long tests wait for an event."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""How long a test waits before it fails. This is not a performance limit.

The events come within seconds, or much later on a busy machine. If an event never comes, its test blocks its worker for
this long.
"""

PROGRAM_S = 300.0
"""Like `PATIENCE_S`, for a program that runs from start to end, such as a demo with its servers or a Spark job."""


def until(reached: Callable[[], bool], what: str) -> None:
    """Waits until `reached` returns true. After `PATIENCE_S`, it fails with the message `what`."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
