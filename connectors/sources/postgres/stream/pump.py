"""The stream of a slot, pumped by a thread of its own.

The thread receives into a bounded queue and talks to the server on time, whatever the consumer does: the server
ends a session that it has not heard from for `wal_sender_timeout`.
"""

import contextlib
import os
import select
import struct
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from connectors.sources.postgres.session.patience import ANSWER_S
from connectors.sources.postgres.stream.replication import ReplicationConnection
from envelope.errors import ChangelogError, Kind

DEFAULT_MAX_BYTES = 32 * 1024 * 1024
DEFAULT_STATUS_INTERVAL_S = 10.0

_RECEIVE_BYTES = 1024 * 1024
_XLOG_DATA = ord("w")
_DATA_START = struct.Struct("!xQ")
_KEEPALIVE = struct.Struct("!xQq?")  # 'k': end of log, clock, whether an answer is wanted
_REPEAT_S = 0.05  # a server that shuts down asks again at once, until all is confirmed
_BUSY_S = 300.0  # where the server has no timeout, it may decode what is of no interest to us for longer than usual
_GATHER_S = 0.002  # the server writes in small pieces: reading each by itself costs twice the CPU of reading a few


class Stream:
    """Frames of one slot, in the order of the log.

    It owns `connection` from the first moment: `close`, or a failed start, closes it. `max_bytes` bounds what waits
    to be taken (by one read of 1 MiB and one frame more); what a `take` gives beyond it counts until the next one.
    `options` are the output plugin's. A status is sent every `status_interval_s`, or thrice in the server's
    `wal_sender_timeout` if that is more often. Each asks for an answer: a server that is silent for twice that
    timeout, or twice `answer_s` if that is longer, hangs.

    One consumer calls `take`, `confirm` and `close`. Raises ChangelogError as `ReplicationConnection.start` does.
    """

    def __init__(
        self,
        connection: ReplicationConnection,
        *,
        slot: str,
        start_lsn: int,
        options: Mapping[str, str],
        max_bytes: int = DEFAULT_MAX_BYTES,
        status_interval_s: float = DEFAULT_STATUS_INTERVAL_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.wal_end = 0
        """The end of the server's log at a moment when all before it had been taken; 0 while unknown.

        It changes in `take` alone. When no transaction is open in what was taken, all up to here is complete.
        """
        self.asked = False
        """Whether the server asked for an answer since the last `confirm`: it may wait for it, to shut down."""
        self._connection = connection
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # guards the queue: what follows, up to _ended
        self._frames: list[bytes] = []
        self._first_at = 0.0
        self._nbytes = self._large = 0
        self._end_of_log = 0
        self._failure: BaseException | None = None
        self._ended = False
        self._confirmed = start_lsn
        self._written = start_lsn
        self._reported = start_lsn
        self._closing = False
        self._waker_closed = False
        try:
            timeout_s = _server_timeout_s(connection)
            connection.start(slot, start_lsn, options)
        except ChangelogError:
            connection.close()
            raise
        self._interval_s = min(status_interval_s, timeout_s / 3) if timeout_s else status_interval_s
        self._silence_s_max = 2 * max(answer_s, timeout_s or _BUSY_S)
        self._status_at = self._sent_at = self._heard_at = time.monotonic()
        self._waker_out, self._waker_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._pump, name=f"stream-{slot}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, timeout_s: float, gather_s: float = 0.0, gather_frames: int = 0) -> list[bytes]:
        """All frames that wait, or the first to arrive within the timeout; possibly none. While they are fewer than
        `gather_frames`, more are waited for until the first has been here for `gather_s`.

        A frame is an XLogData message whole: `w`, start, end, clock (25 bytes), then the output plugin's. Raises
        ChangelogError after the last frame of a stream that broke (CONNECTION) or that the server ended.
        """
        self._forget_large()
        with self._changed:
            if not self._frames and not self._ended:
                self._changed.wait(timeout_s)
            self._gather(self._first_at + gather_s, gather_frames)
            frames, self._frames = self._frames, []
            paused = self._nbytes >= self._max_bytes
            self._nbytes = self._large = max(0, self._nbytes - self._max_bytes)
            self.wal_end = self._end_of_log
        if paused:
            self._wake()
        if not frames and self._ended:
            raise self._failure or ChangelogError(Kind.CONNECTION, "the stream is closed")
        return frames

    def _forget_large(self) -> None:
        """What was taken last is done with."""
        with self._changed:
            large, self._large = self._large, 0
            self._nbytes -= large
        if large:
            self._wake()

    def _gather(self, deadline: float, frames: int) -> None:
        """Under the lock. A queue that is full has no more to wait for."""
        while self._frames and not self._ended and len(self._frames) < frames and self._nbytes < self._max_bytes:
            if (left := deadline - time.monotonic()) <= 0:
                return
            self._changed.wait(left)

    def confirm(self, lsn: int) -> None:
        """Says that everything before `lsn` is durable; the server hears it with the next status."""
        self.asked = False
        self._confirmed = max(self._confirmed, lsn)

    def ask(self) -> None:
        """Asks the server how far it has sent; `wal_end` soon tells."""
        self._status_at = min(self._status_at, self._sent_at + _REPEAT_S)
        self._wake()

    def close(self) -> None:
        """Stops the thread, tells the server what is confirmed, and frees the slot. May be called again."""
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join()
        if self._failure is None:
            with contextlib.suppress(ChangelogError):  # the server sends again what it does not hear of
                self._connection.finish(self._written, self._confirmed)
        self._connection.close()
        self._waker_closed = True  # another file may have its number soon
        os.close(self._waker_in)
        os.close(self._waker_out)

    def _pump(self) -> None:
        try:
            while not self._closing:
                self._report_if_due()
                if self._nbytes >= self._max_bytes:
                    self._heard_at = time.monotonic()
                    self._wait(reading=False)
                elif payloads := self._connection.receive(_RECEIVE_BYTES):
                    self._accept(payloads)
                    self._pause()
                else:
                    self._check_silence()
                    self._wait(reading=True)
        except BaseException as error:  # noqa: BLE001 - `take` raises it, or the stream would end in silence
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _pause(self) -> None:
        """Lets the server write more, unless `_wake` is called."""
        select.select([self._waker_out], [], [], _GATHER_S)

    def _accept(self, payloads: list[bytes]) -> None:
        self._heard_at = time.monotonic()
        frames = [payload for payload in payloads if payload[0] == _XLOG_DATA]
        end_of_log = self._end_of_log
        if len(frames) != len(payloads):
            for payload in payloads:
                if payload[0] != _XLOG_DATA:
                    end_of_log = max(end_of_log, self._keepalive(payload))
        if frames:
            self._written = max(self._written, _DATA_START.unpack_from(frames[-1])[0])
        with self._changed:
            if not self._frames:
                self._first_at = self._heard_at
            self._frames += frames
            self._nbytes += sum(map(len, frames))
            self._end_of_log = end_of_log
            self._changed.notify()

    def _keepalive(self, payload: bytes) -> int:
        """Notes whether an answer is wanted; gives the end of the server's log."""
        if len(payload) != _KEEPALIVE.size or payload[:1] != b"k":
            raise ChangelogError(Kind.MALFORMED, f"the stream holds an unknown message of {len(payload)} bytes")
        end_of_log, _, wanted = _KEEPALIVE.unpack(payload)
        if wanted:
            self.asked = True
            news = self._confirmed > self._reported
            self._status_at = min(self._status_at, self._sent_at if news else self._sent_at + _REPEAT_S)
        return int(end_of_log)

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._status_at:
            confirmed = self._confirmed
            # an answer is asked for: it shows that the link lives, and how far the log has come
            self._connection.send_status(max(self._written, confirmed), confirmed, reply=True)
            self._reported = confirmed
            self._sent_at = now
            self._status_at = now + self._interval_s
        elif self._connection.unsent:
            self._connection.flush()

    def _check_silence(self) -> None:
        if time.monotonic() - self._heard_at > self._silence_s_max:
            raise ChangelogError(
                Kind.CONNECTION,
                f"PostgreSQL has been silent for {self._silence_s_max:.0f} s",
            )

    def _wait(self, *, reading: bool) -> None:
        """Until there is something to read, room to send, a call to `_wake`, or the next status is due."""
        ready = select.poll()
        ready.register(self._waker_out, select.POLLIN)
        events = (select.POLLIN if reading else 0) | (select.POLLOUT if self._connection.unsent else 0)
        if events:  # not otherwise: a broken link would report itself again and again
            ready.register(self._connection.fileno(), events)
        found = ready.poll(max(0.0, self._status_at - time.monotonic()) * 1000)
        if any(fd == self._waker_out for fd, _ in found):
            os.read(self._waker_out, 4096)

    def _wake(self) -> None:
        if self._waker_closed:
            return
        with contextlib.suppress(BlockingIOError):  # it is full of calls already
            os.write(self._waker_in, b"\0")


def _server_timeout_s(connection: ReplicationConnection) -> float:
    [(timeout_ms,)] = connection.query("SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'")
    return float(timeout_ms) / 1000
