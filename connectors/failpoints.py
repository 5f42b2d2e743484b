"""Named fail points between steps, where a test makes the service crash as `kill -9` would."""

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Reach = Callable[[str], None]

VARIABLE = "CHANGELOG_FAIL_AT"
"""The environment variable with the fail point: `NAME`, `NAME:N` to crash at the N-th time, or `NAME:N@SECONDS` to wait
there before the crash.
"""

_FAIL_POINT = re.compile(r"(.+?)(?::(\d+))?(?:@([\d.]+))?")


def nowhere(_: str) -> None:
    """Never crashes."""


@dataclass(slots=True)
class CrashAt:
    """Kills the process when the fail point `name` is reached for the `count`-th time.

    Other threads continue during `linger_s`: for example, a Kafka client still sends messages from its queue.
    """

    name: str
    count: int = 1
    linger_s: float = 0.0
    _seen: int = field(default=0, init=False)

    def __call__(self, name: str) -> None:
        if name == self.name:
            self._seen += 1
            if self._seen == self.count:
                if self.linger_s:
                    import structlog  # noqa: PLC0415, Spark's executors import this module, and log nothing

                    structlog.get_logger("failpoints").warning(
                        "waiting at a fail point", name=name, seconds=self.linger_s
                    )
                time.sleep(self.linger_s)
                os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str | None) -> Reach:
    """The fail point in the text of the variable; without one, `nowhere`."""
    match = _FAIL_POINT.fullmatch(text or "")
    return CrashAt(match[1], int(match[2] or 1), float(match[3] or 0)) if match else nowhere
