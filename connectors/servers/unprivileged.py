"""Runs the servers of the demo, the tests and the benchmarks: not as root, and not in anybody's way."""

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections, one of which could hold a stopped server's port."""

STOP_TIMEOUT_S = 60.0


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port between {PORTS.start} and {PORTS.stop} is free")


def identity() -> tuple[int | None, int | None]:
    """User and group that servers run as: the system's `nobody` for root; None leaves the caller's own."""
    if os.geteuid() != 0:
        return None, None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def give_away(folder: Path) -> None:
    """Makes the servers' user the owner of `folder`."""
    user, group = identity()
    if user is not None and group is not None:
        os.chown(folder, user, group)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A new temporary folder of the servers' user, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        give_away(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def reachable(programs: Path, folder: Path) -> Path:
    """The folder `programs`, or a copy in `folder` when the servers' user may not read it where it is."""
    try:
        run(["test", "-r", str(programs), "-a", "-x", str(programs)])
    except subprocess.CalledProcessError:
        return Path(shutil.copytree(programs, folder / programs.name, symlinks=True))
    return programs


def run(command: Sequence[str]) -> bytes:
    """Runs a program to its end and gives what it printed; errors are those of `subprocess.run` with check=True."""
    user, group = identity()
    return subprocess.run(
        command, user=user, group=group, extra_groups=_groups(), cwd="/", capture_output=True, check=True
    ).stdout


def launch(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a server, which appends all it prints to `log`; `environment` is added to ours."""
    user, group = identity()
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            user=user,
            group=group,
            extra_groups=_groups(),
            cwd="/",
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C at the terminal is for us to hand on
        )


class ServerProcess(ABC):
    """A server of ours, which is one process and its children. As a context manager it starts, and stops in order."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; only while it runs."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @abstractmethod
    def start(self) -> None:
        """Starts it and returns when it serves."""

    def stop(self) -> None:
        """Stops it in order; does nothing when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it as a crash would; its children notice and leave."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _discard(self) -> None:
        """Ends what did not start."""
        self.kill()

    def _end(self, number: signal.Signals) -> None:
        """Sends the signal, and kills what is not gone within STOP_TIMEOUT_S."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None


def _groups() -> list[int] | None:
    return [] if os.geteuid() == 0 else None
