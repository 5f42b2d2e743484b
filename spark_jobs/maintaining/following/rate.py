"""Limits how many changes are applied in a second."""

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 60.0
"""A single batch has at most the changes of so many seconds, however long the one before took."""

_FIRST_S: Final = 1.0


class ChangeRate:
    """Allows `per_second` changes a second. After a rest, the changes of one second are allowed at once."""

    def __init__(self, per_second: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now_s = per_second, now_s
        self._spent_until_s = now_s() - _FIRST_S

    def allowed(self) -> int:
        """Returns how many changes may be applied now."""
        return int(min(self._now_s() - self._spent_until_s, BURST_S) * self._per_second)

    def spend(self, count: int) -> None:
        """Says that `count` changes are applied."""
        self._spent_until_s = max(self._spent_until_s, self._now_s() - BURST_S) + count / self._per_second

    def rest(self) -> None:
        """Says that no change waits, so that the time until the next one does not count."""
        self._spent_until_s = max(self._spent_until_s, self._now_s() - _FIRST_S)
