"""Defines fail points. A fail point is a place in the code between two steps, such as a commit and what follows it.

Each fail point has a name, and a test can crash the service there, as `kill -9` would.
"""

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Reach = Callable[[str], None]
"""Called with the name of each fail point that the code reaches."""

VARIABLE = "CHANGELOG_FAIL_AT"
"""The environment variable that names the fail point at which to crash.

Its forms are `NAME`; `NAME:N`, to crash when the fail point is reached for the N-th time; and `NAME:N@SECONDS`, to wait
that many seconds before the crash.
"""

_FAIL_POINT = re.compile(r"(.+?)(?::(\d+))?(?:@([\d.]+))?")


def nowhere(_: str) -> None:
    """Does nothing. The code calls this function at each fail point if `VARIABLE` is not set."""


@dataclass(slots=True)
class CrashAt:
    """Kills the process when the fail point `name` is reached for the `count`-th time.

    Before the kill, the calling thread waits for `linger_s` seconds. During this wait, other threads continue: for
    example, a Kafka client still sends messages from its queue.
    """

    name: str
    count: int = 1
    linger_s: float = 0.0
    _times_reached: int = field(default=0, init=False)

    def __call__(self, name: str) -> None:
        if name == self.name:
            self._times_reached += 1
            if self._times_reached == self.count:
                if self.linger_s:
                    import structlog  # noqa: PLC0415 - Spark's executors import this module, and log nothing

                    structlog.get_logger("failpoints").warning(
                        "waiting at a fail point", name=name, seconds=self.linger_s
                    )
                time.sleep(self.linger_s)
                os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str | None) -> Reach:
    """Returns a `CrashAt` for the fail point that `text` names, or `nowhere` if `text` names none.

    `text` is the value of the environment variable `VARIABLE`, None if the variable is not set.
    """
    match = _FAIL_POINT.fullmatch(text or "")
    return CrashAt(match[1], int(match[2] or 1), float(match[3] or 0)) if match else nowhere
