"""Receives the events of the binary log in a thread of its own, which fills a bounded queue.

While the queue is full, the thread does not read, and the server waits. `session.dump` sets how long the server waits.
"""

import threading
from collections import deque
from time import monotonic

import numpy as np

from changelog.connectors.sources.mysql.decode.cutting import is_portion, portion
from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock, EventPiece
from changelog.connectors.sources.mysql.session.connection import Connection, server_error
from changelog.connectors.sources.mysql.session.packets import Packets
from changelog.envelope.errors import ChangelogError, Kind

QUEUE_BYTES_MAX = 8 << 20

_OK = 0
_ERROR = 0xFF
_DOING = "streaming the binary log"


class Stream:
    """The events of the binary log, in order. The stream owns `connection`, on which `session.dump` has started a dump.

    `bytes_max` limits the size of the queue. The packets that the thread receives at once are queued together, so the
    queue can exceed the limit by their size. Only one thread may call `take` and `close`.
    """

    def __init__(self, connection: Connection, *, name: str, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self._connection, self._bytes_max = connection, bytes_max
        self._changed = threading.Condition()  # guards the queue: the attributes from here to _ended
        self._pieces: deque[EventPiece] = deque()
        self._count = self._nbytes = 0
        self._first_at = 0.0
        self._failure: BaseException | None = None
        self._ended = False
        self._closing = False
        self._thread = threading.Thread(target=self._pump, name=f"stream-{name}", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float, gather_s: float = 0.0, gather_events: int = 0) -> EventBlock:
        """Removes and returns a portion of the queued events; if there are none, waits for some until the timeout.

        The result may be empty. If fewer than `gather_events` events are queued, the method waits for more, but only
        until the oldest event has been queued for `gather_s` seconds. When the stream has ended and all queued events
        were returned, raises ChangelogError: the server's error, or CONNECTION if the connection broke.
        """
        with self._changed:
            if not self._pieces and not self._ended:
                self._changed.wait(timeout_s)
            self._gather(self._first_at + gather_s, gather_events)
            events = self._portion()
            self._count -= len(events)
            self._nbytes -= events.nbytes
            self._changed.notify_all()
        if not events and self._ended:
            raise self._failure or ChangelogError(Kind.CONNECTION, "the stream is closed")
        return events

    def _portion(self) -> EventBlock:
        """Removes the events of a portion from the queue. The caller holds the lock."""
        pieces, count, nbytes = list[EventPiece](), 0, 0
        while self._pieces and not is_portion(count, nbytes):
            pieces.append(self._pieces.popleft())
            count, nbytes = count + len(pieces[-1].ends), nbytes + pieces[-1].nbytes
        events = EventBlock(pieces)
        end = portion(events)
        self._pieces.extendleft(reversed(events[end:].pieces))
        return events[:end]

    def _gather(self, deadline: float, events: int) -> None:
        """Waits for more events until the deadline or until the queue is full. The caller holds the lock."""
        while self._pieces and not self._ended and self._count < events and self._nbytes < self._bytes_max:
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
                self._accept(self._connection.stream_packets(_DOING))
        except BaseException as error:  # noqa: BLE001 - `take` raises it; otherwise the stream would end silently
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _accept(self, packets: Packets) -> None:
        failure = None
        if packets.last()[0] != _OK:  # an error, or the end of the stream; the server sends no more packets
            failure, packets = _ending(bytes(packets.last())), packets.before_last()
        piece = EventPiece(packets.data, np.array(packets.ends, np.int64))
        with self._changed:
            if not self._pieces:
                self._first_at = monotonic()
            if packets.ends:
                self._pieces.append(piece)
            self._count += len(packets.ends)
            self._nbytes += EventBlock([piece]).nbytes
            self._changed.notify_all()
            while failure is None and self._nbytes >= self._bytes_max and not self._closing:
                self._changed.wait()
        if failure is not None:
            raise failure


def _ending(payload: bytes) -> ChangelogError:
    if payload[0] == _ERROR:
        return server_error(payload, _DOING)
    return ChangelogError(Kind.CONNECTION, "the server ended the stream of its binary log")
