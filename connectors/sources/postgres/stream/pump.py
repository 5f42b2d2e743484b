"""Receives the stream of a replication slot in a thread of its own.

The thread fills a bounded queue. It reports to the server regularly, however slow the consumer of the queue is, because
the server ends a session that sends nothing for `wal_sender_timeout`.
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

from changelog.connectors.patience import ANSWER_S
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.envelope.errors import ChangelogError, Kind

DEFAULT_MAX_BYTES = 32 * 1024 * 1024
DEFAULT_STATUS_INTERVAL_S = 10.0

_RECEIVE_BYTES = 1024 * 1024
_XLOG_DATA = ord("w")
_DATA_START = struct.Struct("!xQ")
_KEEPALIVE = struct.Struct("!xQq?")  # 'k': end of log, clock, whether a reply is requested
# A server that is shutting down requests a reply again and again until everything is confirmed. Unless we have more to
# confirm, we leave at least this time between two replies.
_REPEAT_S = 0.05
# Used instead of `wal_sender_timeout` if the server has none. Such a server may stay silent for twice this time,
# because decoding changes of tables that we do not publish may keep it busy for minutes.
_BUSY_S = 300.0
# The pause after each read. Without it, the small pieces that the server writes would be read one by one. This would
# take twice the CPU.
_GATHER_S = 0.002


class Stream:
    """The frames of one slot, in the order of the database's log.

    The stream owns `connection`, and closes it in `close` or if the start fails. `max_bytes` limits the queue. The
    queue can exceed this limit by one read of 1 MiB and one frame. If `take` returns more bytes than the limit, the
    consumer still holds them, so the excess counts against the limit until the next `take`. `options` are passed to the
    output plugin.

    A status is sent to the server every `status_interval_s` seconds, or three times per `wal_sender_timeout` if that is
    more often. Each status requests a reply. A server that stays silent for twice its `wal_sender_timeout`, or for
    twice `answer_s` if that is longer, counts as hung.

    Only one thread may call `take`, `confirm` and `close`. Raises the errors of `ReplicationConnection.start`.
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
        """The end of the server's log, as last reported by the server; 0 while unknown. Only `take` changes it.

        `take` has returned all frames before this position. If these frames do not stop inside a transaction, the
        server sends nothing more from before this position.
        """
        self.reply_requested = False
        """Whether the server has requested a reply since the last `confirm`. A server that is shutting down waits until
        everything is confirmed.
        """
        self._connection = connection
        self._max_bytes = max_bytes
        self._changed = threading.Condition()  # guards the queue: the attributes from here to _ended
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
        self._status_at = self._sent_at = self._received_at = time.monotonic()
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
        """Removes and returns all queued frames; if there are none, waits for some until the timeout.

        The list may be empty. If there are fewer than `gather_frames` frames, waits for more until the first frame has
        been queued for `gather_s` seconds. A frame is a complete XLogData message: `w`, start, end, clock (25 bytes),
        then the output plugin's message. If the connection broke (CONNECTION) or the server ended the stream, raises
        ChangelogError, but only after all frames have been returned.
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
        """Stops counting the bytes that the last `take` returned, because the consumer no longer needs them."""
        with self._changed:
            large, self._large = self._large, 0
            self._nbytes -= large
        if large:
            self._wake()

    def _gather(self, deadline: float, frames: int) -> None:
        """Waits until the queue has `frames` frames or is full, or until the deadline. The caller holds the lock."""
        while self._frames and not self._ended and len(self._frames) < frames and self._nbytes < self._max_bytes:
            if (left_s := deadline - time.monotonic()) <= 0:
                return
            self._changed.wait(left_s)

    def confirm(self, lsn: int) -> None:
        """Records that everything before `lsn` is durable; the next status tells the server."""
        self.reply_requested = False
        self._confirmed = max(self._confirmed, lsn)

    def ask(self) -> None:
        """Requests a reply from the server. The reply brings `wal_end` up to date."""
        self._status_at = min(self._status_at, self._sent_at + _REPEAT_S)
        self._wake()

    def close(self) -> None:
        """Stops the thread, sends the last confirmation and frees the slot. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join()
        if self._failure is None:
            # If the confirmation is lost, the server sends the same changes again.
            with contextlib.suppress(ChangelogError):
                self._connection.finish(self._written, self._confirmed)
        self._connection.close()
        # Set before the pipe is closed: the system may soon reuse its file descriptors, so `_wake` must not write then.
        self._waker_closed = True
        os.close(self._waker_in)
        os.close(self._waker_out)

    def _pump(self) -> None:
        try:
            while not self._closing:
                self._report_if_due()
                if self._nbytes >= self._max_bytes:
                    self._received_at = time.monotonic()
                    self._wait(may_read=False)
                elif payloads := self._connection.receive(_RECEIVE_BYTES):
                    self._accept(payloads)
                    self._pause()
                else:
                    self._check_silence()
                    self._wait(may_read=True)
        except BaseException as error:  # noqa: BLE001 - `take` raises it; otherwise the stream would end silently
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _pause(self) -> None:
        """Gives the server a moment to write more; `_wake` ends the pause early."""
        select.select([self._waker_out], [], [], _GATHER_S)

    def _accept(self, payloads: list[bytes]) -> None:
        self._received_at = time.monotonic()
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
                self._first_at = self._received_at
            self._frames += frames
            self._nbytes += sum(map(len, frames))
            self._end_of_log = end_of_log
            self._changed.notify()

    def _keepalive(self, payload: bytes) -> int:
        """Handles a keepalive message, and returns the end of the server's log. The message may request a reply."""
        if len(payload) != _KEEPALIVE.size or payload[:1] != b"k":
            raise ChangelogError(Kind.MALFORMED, f"the stream sent an unknown message of {len(payload)} bytes")
        end_of_log, _, reply_requested = _KEEPALIVE.unpack(payload)
        if reply_requested:
            self.reply_requested = True
            has_news = self._confirmed > self._reported
            self._status_at = min(self._status_at, self._sent_at if has_news else self._sent_at + _REPEAT_S)
        return int(end_of_log)

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._status_at:
            confirmed = self._confirmed
            # The reply shows that the connection is alive, and where the log ends.
            self._connection.send_status(max(self._written, confirmed), confirmed, reply=True)
            self._reported = confirmed
            self._sent_at = now
            self._status_at = now + self._interval_s
        elif self._connection.unsent:
            self._connection.flush()

    def _check_silence(self) -> None:
        if time.monotonic() - self._received_at > self._silence_s_max:
            raise ChangelogError(
                Kind.CONNECTION,
                f"PostgreSQL has been silent for {self._silence_s_max:.0f} s",
            )

    def _wait(self, *, may_read: bool) -> None:
        """Waits for something to read, room to send, a call to `_wake` or the time of the next status."""
        ready = select.poll()
        ready.register(self._waker_out, select.POLLIN)
        events = (select.POLLIN if may_read else 0) | (select.POLLOUT if self._connection.unsent else 0)
        if events:  # a broken connection that is registered without events would wake this thread again and again
            ready.register(self._connection.fileno(), events)
        ready_files = ready.poll(max(0.0, self._status_at - time.monotonic()) * 1000)
        if any(file == self._waker_out for file, _ in ready_files):
            os.read(self._waker_out, 4096)

    def _wake(self) -> None:
        if self._waker_closed:
            return
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake anyway
            os.write(self._waker_in, b"\0")


def _server_timeout_s(connection: ReplicationConnection) -> float:
    [(timeout_ms,)] = connection.query("SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'")
    return float(timeout_ms) / 1000
