"""Runs a synchronous standby that campaigns can pause. Commits that wait for the standby are in the server's log, but
not yet visible.
"""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg

from changelog.connectors.servers.postgres import PostgresServer

STANDBY = "held"
"""The name of the standby in the server's setting `synchronous_standby_names`."""


class Standby:
    """A synchronous standby. While it is paused, commits that wait for it stay invisible."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._pauses = 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, step: int) -> None:
        with self._lock:
            self._pauses += step
            self._process.send_signal(signal.SIGSTOP if self._pauses else signal.SIGCONT)


@contextlib.contextmanager
def standby_of(server: PostgresServer, folder: Path) -> Iterator[Standby]:
    """Runs `pg_receivewal` as the standby. It only receives the log. This suffices, because commits do not wait for
    more.
    """
    received = folder / "received"
    received.mkdir()
    dsn = psycopg.conninfo.make_conninfo(server.dsn(), application_name=STANDBY)
    command = [str(server.bin_dir / "pg_receivewal"), "-D", str(received), "--synchronous", "-d", dsn]
    with (folder / "standby.log").open("wb") as log:
        # Ctrl-C must not end the standby while commits still wait for it, so it gets a process group of its own.
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield Standby(process)
    finally:
        process.kill()
        process.wait()
