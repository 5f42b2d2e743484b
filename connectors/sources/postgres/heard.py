"""Signals that are not obeyed: counted, and told now and then."""

import time
from collections import Counter

import structlog

from envelope.errors import ChangelogError

TELL_EVERY_S = 10.0
"""How often the log tells: any role may write signals that are none, and must not fill it."""

_log = structlog.get_logger("postgres")


class Ignored:
    """What came that was no signal, was wrongly signed, or asked for what there is not."""

    def __init__(self) -> None:
        self._count = 0
        self._untold: Counter[str] = Counter()
        self._tell_at = 0.0

    def ignored(self, why: ChangelogError) -> None:
        """One more."""
        self._count += 1
        self._untold[why.message] += 1
        if time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TELL_EVERY_S
            for message, count in self._untold.items():
                _log.warning("signals ignored", why=message, count=count)
            self._untold.clear()

    def take(self) -> int:
        """How many came since this was asked last."""
        count, self._count = self._count, 0
        return count
