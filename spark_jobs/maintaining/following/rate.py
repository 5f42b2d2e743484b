"""Limits how many changes are applied in a second."""

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 60.0
"""However long a batch took, the next one has at most the changes that are allowed in this many seconds."""

_FIRST_S: Final = 1.0


class ChangeRate:
    """Allows `per_second` changes a second. If no changes waited for a while, the changes of one second are allowed at
    once.
    """

    def __init__(self, per_second: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now_s = per_second, now_s
        self._spent_until_s = now_s() - _FIRST_S

    def allowed(self) -> int:
        """Returns how many changes may be applied now."""
        return int(min(self._now_s() - self._spent_until_s, BURST_S) * self._per_second)

    def spend(self, count: int) -> None:
        """Records that `count` changes were applied."""
        self._spent_until_s = max(self._spent_until_s, self._now_s() - BURST_S) + count / self._per_second

    def rest(self) -> None:
        """Notes that no change waits now. The time until now does not count, except for the last second."""
        self._spent_until_s = max(self._spent_until_s, self._now_s() - _FIRST_S)
