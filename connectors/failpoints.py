"""Named places between steps, where a test makes the service crash as `kill -9` would."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

Reach = Callable[[str], None]

VARIABLE = "CHANGELOG_FAIL_AT"
"""The environment variable that the wiring reads: `NAME` or `NAME:N`, to crash at the N-th time."""


def nowhere(_: str) -> None:
    """Never crashes."""


@dataclass(slots=True)
class CrashAt:
    """Kills the process when the place called `name` is reached for the `count`-th time."""

    name: str
    count: int = 1
    _seen: int = field(default=0, init=False)

    def __call__(self, name: str) -> None:
        if name == self.name:
            self._seen += 1
            if self._seen == self.count:
                os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str | None) -> Reach:
    """What the variable says."""
    if not text:
        return nowhere
    name, _, count = text.rpartition(":") if text.rpartition(":")[2].isdigit() else (text, "", "1")
    return CrashAt(name, int(count))
