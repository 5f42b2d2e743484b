"""Receives the events of the binary log in a thread of its own, which fills a bounded queue.

While the queue is full, the thread does not read, and the server waits. `session.dump` sets how long it waits.
"""

import threading
from collections.abc import Callable, Sequence
from time import monotonic

from changelog.connectors.sources.mysql.session.connection import Connection, server_error
from changelog.envelope.errors import ChangelogError, Kind

QUEUE_BYTES_MAX = 16 << 20

_OK = b"\0"
_ERROR = 0xFF
_DOING = "streaming the binary log"


class Stream:
    """The events of the binary log, in order. It owns `connection`, on which `session.dump` has started a dump.

    `portion` returns how many of the queued events are taken at once. `bytes_max` limits the queue. The queue can
    exceed it by what one read of the socket gives. Only one thread may call `take` and `close`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        portion: Callable[[Sequence[bytes]], int],
        bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._connection, self._portion, self._bytes_max = connection, portion, bytes_max
        self._changed = threading.Condition()  # guards the queue: the attributes from here to _ended
        self._events: list[bytes] = []
        self._first_at = 0.0
        self._nbytes = 0
        self._failure: BaseException | None = None
        self._ended = False
        self._closing = False
        self._thread = threading.Thread(target=self._pump, name=f"stream-{name}", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float, gather_s: float = 0.0, gather_events: int = 0) -> list[bytes]:
        """Removes and returns a portion of the queued events; if there are none, waits for some until the timeout.

        The list may be empty. If fewer than `gather_events` events are queued, it waits for more until the oldest of
        them has been queued for `gather_s` seconds. If the connection broke (CONNECTION), or the server reported an
        error, raises ChangelogError, but only after all events have been returned.
        """
        with self._changed:
            if not self._events and not self._ended:
                self._changed.wait(timeout_s)
            self._gather(self._first_at + gather_s, gather_events)
            count = self._portion(self._events)
            events, self._events = self._events[:count], self._events[count:]
            self._nbytes -= sum(map(len, events))
            self._changed.notify_all()
        if not events and self._ended:
            raise self._failure or ChangelogError(Kind.CONNECTION, "the stream is closed")
        return events

    def _gather(self, deadline: float, events: int) -> None:
        """Waits for more events until the deadline or until the queue is full. The caller holds the lock."""
        while self._events and not self._ended and len(self._events) < events and self._nbytes < self._bytes_max:
            if (left_s := deadline - monotonic()) <= 0:
                return
            self._changed.wait(left_s)

    def close(self) -> None:
        """Ends the session and stops the thread. Calling it again does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._connection.abort()
        self._thread.join()
        self._connection.close()

    def _pump(self) -> None:
        try:
            while not self._closing:
                self._accept(self._connection.payloads(_DOING))
        except BaseException as error:  # noqa: BLE001 - `take` raises it; otherwise the stream would end silently
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _accept(self, payloads: list[bytes]) -> None:
        statuses = bytes([payload[0] for payload in payloads])
        count = len(statuses) - len(statuses.lstrip(_OK))
        failure = None if count == len(payloads) else _ending(payloads[count])
        events = [payload[1:] for payload in payloads[:count]]
        with self._changed:
            if events and not self._events:
                self._first_at = monotonic()
            self._events += events
            self._nbytes += sum(map(len, events))
            self._changed.notify_all()
            while failure is None and self._nbytes >= self._bytes_max and not self._closing:
                self._changed.wait()
        if failure is not None:
            raise failure


def _ending(payload: bytes) -> ChangelogError:
    if payload[0] == _ERROR:
        return server_error(payload, _DOING)
    return ChangelogError(Kind.CONNECTION, "the server ended the stream of its binary log")
