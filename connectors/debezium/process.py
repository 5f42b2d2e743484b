"""Starts the process that runs Debezium's engine, and exchanges frames with it. Callers decide what to do with records.

**Start.** `EngineProcess` takes the offsets at which the connector is to continue, and the schema history. Both are
what an earlier process has sent. Without them, the connector begins as at its first start. Properties may contain
passwords, so the process receives them through a pipe; they are neither in the command line nor in a file.

**Records.** `read` returns a `RecordBatch` or a `HistoryRecord`, in the order of the engine. A record of the schema
history comes before the rows that need it, often long before, because rows wait in a queue inside Debezium. The caller
must store the history record before, or together with, the offset of any row that follows the record. When Debezium
starts, it ignores stored history records that are later than the offset. It sends them again when it reads the same
changes again. A history record that is stored twice does no harm.

**Acknowledgements.** `acknowledge(n)` says that the caller has stored the records 1 to n, the history that it read
before record n, and the offset of record n (`RecordBatch.last_offsets`). The connector is told of acknowledgements only
when all records of a frame are acknowledged. After that, it may let the database discard its log up to the last of
these records. A process that is started with the offset of record n continues with record n + 1, even if both belong to
one transaction. There are two exceptions. A process that is started in the middle of a snapshot begins the snapshot
again. A connector for which Debezium promises only *at least once* may begin before record n + 1.

**Back-pressure.** The engine does not wait for the acknowledgement of one batch before it sends the next. It waits only
while the unacknowledged records and the next frame together have more than `Launch.in_flight_bytes`.

**End.** Before a caller calls `stop`, it should acknowledge everything that it has stored. `stop` asks the engine to
end. Afterwards `read` returns the records that were on their way, which the caller can discard, and then `End`, even if
the engine fails meanwhile. `close` calls `stop`, discards the remaining records, and kills the process if it does not
end in time. `close` acknowledges nothing. If this program ends, in whatever way, the Debezium process ends within about
a second.

**Failures.** If the engine fails, or its process is killed, `read` raises ChangelogError, after it has returned
everything that was sent before. A lost connection to the database is a failure, too. To connect again, start another
process with the stored offsets.
"""

import contextlib
import fcntl
import os
import re
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from changelog.connectors.debezium import failures, frames
from changelog.connectors.debezium.frames import End, HistoryRecord, LogLine, RecordBatch
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.java.program import find_java
from changelog.envelope.errors import ChangelogError, Kind

PIPE_BYTES = 1 << 20
"""The size of the pipe from Java. Linux allows no larger pipe without privileges. With the usual 64 KiB, it takes many
reads to receive a frame.
"""

GRACE_S = 5.0
"""`close` waits this much longer than `Launch.stop_s` before it kills the process."""

STDERR_LINES = 50
LOGGED_CAUSES = 5

_LEVEL = re.compile(r"\b(DEBUG|INFO|WARN|ERROR)\b")

Received = RecordBatch | HistoryRecord | End


class EngineProcess:
    """A running Debezium process. One thread reads and acknowledges; any thread may call `wake`.

    `offsets` maps the source's partitions to their offsets, in the form of `RecordBatch.last_offsets`. `history` has
    the records of the schema history, in their order. `log` is called with Debezium's log lines while frames are read.

    Raises ChangelogError: PRECONDITION if Java or a jar is missing, USAGE if a reserved property is set or
    `connector.class` is missing.
    """

    def __init__(
        self,
        launch: Launch,
        offsets: Mapping[bytes, bytes],
        history: Sequence[bytes],
        log: Callable[[LogLine], None],
    ) -> None:
        commands = frames.start(launch.configuration(), offsets, history)
        self._launch = launch
        self._log = log
        self._decoder = frames.FrameDecoder()
        self._received: deque[Received] = deque()
        self._stopping = False
        self._failure: ChangelogError | None = None
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._errors: deque[str] = deque(maxlen=STDERR_LINES)
        self._logged: deque[str] = deque(maxlen=LOGGED_CAUSES)
        try:
            self._process = subprocess.Popen(
                launch.command(find_java()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,  # Ctrl-C reaches only this program, which then stops the engine
            )
        except BaseException:
            self._close_wake()
            raise
        assert self._process.stdout
        self._stdout = self._process.stdout.fileno()
        with contextlib.suppress(AttributeError, OSError):  # the system is not Linux, or allows less
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._wake_out, select.POLLIN)
        self._stderr_reader = threading.Thread(target=self._read_stderr, name="debezium-stderr", daemon=True)
        self._stderr_reader.start()
        try:
            for command in commands:
                self._send(command)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def read(self, timeout_s: float) -> Received | None:
        """Returns what the process sends next; None if it sends nothing within this time, or if `wake` was called.

        Raises ChangelogError if the engine failed or its process is gone. The error's kind is CONNECTION if another
        attempt may succeed.
        """
        deadline = time.monotonic() + timeout_s
        while not self._received:
            if self._failure is not None:
                raise self._failure
            remaining_ms = max(0.0, deadline - time.monotonic()) * 1000
            ready = [descriptor for descriptor, _ in self._poll.poll(remaining_ms)]
            if self._wake_out.fileno() in ready:
                self._wake_out.recv(64)
                return None
            if not ready:
                return None
            if data := os.read(self._stdout, PIPE_BYTES):
                self._take(self._decoder.feed(data))
            else:
                self._end(None)
        if isinstance(self._received[0], End):  # it stays in the queue, so that every later call returns it
            return self._received[0]
        return self._received.popleft()

    def acknowledge(self, last: int) -> None:
        """Tells the engine that all records up to this number, and the schema history before them, are stored."""
        self._send(frames.acknowledgement(last))

    def stop(self) -> None:
        """Asks the engine to end; `read` returns `End` later. Further calls do nothing."""
        if not self._stopping:
            self._stopping = True
            self._send(frames.STOP)

    def wake(self) -> None:
        """Makes `read`, which may run in another thread, return None soon."""
        with contextlib.suppress(OSError):  # the socket is closed; or it is full, and `read` will wake in any case
            self._wake_in.send(b"w")

    def close(self) -> None:
        """Stops the engine, discards the records that are on their way, and returns when the process has ended."""
        try:
            self._stop_and_drain()
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the process at once. The next process sends again all records that the caller has not stored."""
        self._process.kill()
        self._process.wait()
        self._stderr_reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._close_wake()

    def _stop_and_drain(self) -> None:
        if self._process.poll() is not None:
            return
        self.stop()
        deadline = time.monotonic() + self._launch.stop_s + GRACE_S
        with contextlib.suppress(ChangelogError):  # a failure no longer matters to the caller
            while (remaining_s := deadline - time.monotonic()) > 0 and not isinstance(self.read(remaining_s), End):
                pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def _take(self, received: Sequence[frames.Frame]) -> None:
        for frame in received:
            match frame:
                case LogLine():
                    if frame.level == "ERROR" and frame.cause:
                        self._logged.append(frame.cause)
                    self._log(frame)
                case frames.Hello():
                    if frame.protocol != frames.PROTOCOL:
                        raise ChangelogError(
                            Kind.PRECONDITION,
                            "the jar of the Debezium process belongs to a different version of this package",
                        )
                case End():
                    self._end(frame)
                case _:
                    self._received.append(frame)

    def _end(self, end: End | None) -> None:
        """Handles the end of the engine. `end` is None if the output ended without an `End`.

        `read` reports the end, or the failure, after it has returned the received records.
        """
        if (end is not None and end.success) or self._stopping:
            self._received.append(End(success=True, message=end.message if end else "the process was ended"))
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        code = self._process.poll()
        if code is not None:
            self._stderr_reader.join()
        self._failure = failures.failure(self._launch, end, code, list(self._errors), list(self._logged))

    def _send(self, command: bytes) -> None:
        """Writes a command. If the process is gone, `read` will say why."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command)
            self._process.stdin.flush()

    def _read_stderr(self) -> None:
        """Logs what Java or a library prints, and keeps the last lines.

        Leaves out the lines of stack traces. Also leaves out the lines by which Java repeats the options that it found
        in environment variables: these are no warnings, and may contain passwords.
        """
        assert self._process.stderr
        for line in iter(self._process.stderr.readline, b""):
            text = line.decode("utf-8", "replace").strip()
            if not text or text.startswith(("at ", "Picked up ", "NOTE: Picked up ")):
                continue
            self._errors.append(text)
            level = _LEVEL.search(text)
            name = "WARNING" if level is None or level[1] == "WARN" else level[1]
            self._log(LogLine(level=name, logger="java", message=text))

    def _close_wake(self) -> None:
        self._wake_in.close()
        self._wake_out.close()
