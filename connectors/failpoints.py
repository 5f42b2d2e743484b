"""Named places between steps, where a test makes the service crash as `kill -9` would."""

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Reach = Callable[[str], None]

VARIABLE = "CHANGELOG_FAIL_AT"
"""The environment variable that the wiring reads: `NAME`, `NAME:N` to crash at the N-th time, `NAME:N@SECONDS` to
stay there for a while before.
"""

_WANTED = re.compile(r"(.+?)(?::(\d+))?(?:@([\d.]+))?")


def nowhere(_: str) -> None:
    """Never crashes."""


@dataclass(slots=True)
class CrashAt:
    """Kills the process when the place called `name` is reached for the `count`-th time.

    During `linger_s`, what other threads do goes on: a message that was handed to a client's, say, is sent.
    """

    name: str
    count: int = 1
    linger_s: float = 0.0
    _seen: int = field(default=0, init=False)

    def __call__(self, name: str) -> None:
        if name == self.name:
            self._seen += 1
            if self._seen == self.count:
                time.sleep(self.linger_s)
                os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str | None) -> Reach:
    """What the variable says."""
    found = _WANTED.fullmatch(text or "")
    return CrashAt(found[1], int(found[2] or 1), float(found[3] or 0)) if found else nowhere
