"""Runs the service as a process that campaigns can start, pause, stop and kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from changelog.connectors import failpoints
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.envelope.checkpoint import Checkpoint
from tests.campaigns._forked import Forked, Nursery
from tests.patience import rest

ROOT = Path(__file__).parents[2]
STOP_TIMEOUT_S = 60.0

IN_USE = ("is read by process", "reads the binary log for changelog", "is active for PID")

LOOP_FAIL_POINTS = ("loop:read", "loop:published", "loop:confirmed")

FAIL_POINTS = (
    *LOOP_FAIL_POINTS,
    "files:written",
    "files:synced",
    "files:linked",
    "files:stored",
    "files:resume-synced",
    "files:resume-replaced",
)
"""The fail points that every service with a file log reaches. A fail point is a line of code with a name, at which a
test can let the service crash.

`files:set-aside` and `files:resume-dropped` are not listed, because a service reaches them only if its log is damaged.
"""

STATE_FAIL_POINTS = ("loop:folded",)
"""The fail points that only a service with a section `[state]` in its configuration reaches."""


class Service:
    """Runs `changelog run` with one configuration file, as one process after the other. The output of all of them goes
    to the file `log`.

    Each process gets the environment variables of the campaign and those in `environment`.
    """

    nursery: Nursery | None = None
    """If set, this nursery forks the processes of all services whose `environment` is empty. Otherwise, each start runs
    a new Python.
    """

    def __init__(self, config: Path, log: Path | None = None) -> None:
        self._config = config
        self.log = log or config.with_suffix(".log")
        self.environment: dict[str, str] = {}
        self.starts = 0
        self._begun = 0
        self._started_with: tuple[str | None, *tuple[str, ...]] = (None,)
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, fail_at: str | None = None, *arguments: str) -> None:
        """Starts a process with these further arguments.

        If `fail_at` is `NAME:N`, the process crashes when it reaches the fail point NAME for the N-th time.
        """
        environment = {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}
        environment.pop(failpoints.VARIABLE, None)
        if fail_at is not None:
            environment[failpoints.VARIABLE] = fail_at
        words = ["run", "--config", str(self._config), "--verbose", *arguments]
        with self.log.open("ab") as log:
            self._begun = log.tell()
            if self.nursery is not None and not self.environment:
                self._process = self.nursery.start(words, environment, log.fileno())
            else:
                command = [sys.executable, "-m", "changelog", *words]
                self._process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        self.starts += 1
        self._started_with = fail_at, *arguments

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def check(self) -> None:
        """Raises AssertionError if the process ended by itself. A process that was killed, or crashed at its fail
        point, is no error.

        A process may also end because the server still has the session of an earlier process, which was killed. In this
        case, starts the process again with the same arguments.
        """
        if self.exit_code in (None, -signal.SIGKILL):
            return
        last = self.said()[-4000:]
        if not any(text in last.rpartition("\n{")[2] for text in IN_USE):
            raise AssertionError(f"the service ended with {self.exit_code}: {last}")
        time.sleep(0.2)
        self.start(*self._started_with)

    def said(self) -> str:
        """The output of all processes so far."""
        return self.log.read_text("utf-8", "replace")

    def until_said(self, event: str, timeout_s: float) -> None:
        """Waits until the present process has logged this event. Events that earlier processes logged do not count."""
        deadline = time.monotonic() + timeout_s
        while f'"event": "{event}"'.encode() not in self.log.read_bytes()[self._begun :]:
            self.check()
            assert time.monotonic() < deadline, f"the service did not log {event!r}: {self.said()[-1000:]}"
            time.sleep(0.05)

    def said_or_crashed(self, event: str, timeout_s: float) -> None:
        """Does what `until_said` does, but also returns if the process crashes at its fail point."""
        deadline = time.monotonic() + timeout_s
        while f'"event": "{event}"'.encode() not in self.log.read_bytes()[self._begun :]:
            self.check()
            if self.exit_code is not None:
                return
            assert time.monotonic() < deadline, f"the service did not log {event!r}: {self.said()[-1000:]}"
            time.sleep(0.05)

    def wait(self, seconds: float) -> bool:
        """Waits for this time, or until the process crashes. Returns whether it crashed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            if self.exit_code is not None:
                return True
            time.sleep(0.02)
        return False

    def pause(self) -> None:
        """Stops the process with SIGSTOP: the process still exists, but does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Lets the process continue with SIGCONT. The process does not know that it was stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ended(self, timeout_s: float) -> int:
        """Waits until the process ends by itself, and returns its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the service still runs after {timeout_s:.0f} s: {self.said()[-2000:]}") from None

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Sends SIGTERM, after which the process must end with the exit code 0.

        If the process has not logged anything yet, the signal may end it before Python can handle the signal.
        """
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(STOP_TIMEOUT_S)
        starting = self.log.stat().st_size == self._begun
        assert code == 0 or (starting and code == -signal.SIGTERM), (
            f"SIGTERM gave exit code {code}: {self.said()[-1000:]}"
        )

    def slot_made(self, dsn: str, slot: str) -> int:
        """Waits until the slot exists, and returns its position in the server's log."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            while True:
                self.check()
                row = connection.execute(
                    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [slot]
                ).fetchone()
                if row is not None and row[0] is not None:
                    return parse_lsn(row[0])
                time.sleep(0.01)

    def until(self, path: Path, condition: Callable[[Checkpoint], bool], timeout_s: float) -> None:
        """Waits until the checkpoint of the file log at `path` fulfils the condition."""
        self.until_stored(lambda: read_checkpoint(path), condition, timeout_s)

    def until_stored(
        self, read_stored: Callable[[], Checkpoint | None], condition: Callable[[Checkpoint], bool], timeout_s: float
    ) -> None:
        """Waits until the checkpoint that `read_stored` returns fulfils the condition."""
        deadline = time.monotonic() + timeout_s
        began = time.thread_time()
        while True:
            self.check()
            checkpoint = read_stored()
            if checkpoint is not None and condition(checkpoint):
                return
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"the checkpoint does not fulfil the condition after {timeout_s:.0f} s: {checkpoint}"
                )
            began = rest(began, 0.05)


def is_read(checkpoint: Checkpoint | None) -> bool:
    """Whether the checkpoint names tables, and the service has read all of them completely."""
    windows = {} if checkpoint is None else checkpoint.windows
    return bool(windows) and all(map(is_complete, windows.values()))
