"""Limits requests: how many a client may send in a second, and how many are answered at the same time."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CLIENTS_MAX = 1024
"""For how many clients requests are counted. If there are more, the client that has been silent longest is forgotten.
"""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float


class Rate:
    """Allows each client `burst` requests at once, and then `per_s` requests in a second. `clock` returns seconds."""

    def __init__(self, *, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Counts a request of the client, and returns whether it is within the limit."""
        bucket = self._filled(client)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def would_allow(self, client: str) -> bool:
        """Returns whether a request of the client would be within the limit, without counting one."""
        return self._filled(client).tokens >= 1

    def _filled(self, client: str) -> _Bucket:
        now_s = self._clock()
        bucket = self._buckets.pop(client, None) or _Bucket(self._burst, now_s)
        self._buckets[client] = bucket
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._burst, bucket.tokens + (now_s - bucket.filled_s) * self._per_s)
        bucket.filled_s = now_s
        return bucket


class Room:
    """Allows `places` requests at the same time. All calls come from the thread of the event loop."""

    def __init__(self, places: int) -> None:
        self._free = places

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Takes a place until the block ends, and yields True. Yields False if no place is free."""
        if not self._free:
            yield False
            return
        self._free -= 1
        try:
            yield True
        finally:
            self._free += 1
