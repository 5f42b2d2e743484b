"""Runs servers for the demo, tests and benchmarks, without root's rights, and on ports that nothing else uses."""

import contextlib
import functools
import itertools
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
"""The ports for servers. They are lower than the ports that the system gives to outgoing connections. Otherwise, an
outgoing connection could occupy the port of a server that is stopped and will start again."""

SHARE_VARIABLE = "CHANGELOG_SERVER_PORTS"
"""The environment variable that restricts this process to a share of PORTS: `2/8` is the third of eight shares.

Processes with different shares never choose the same port, even if neither has started its server yet.
"""

STOP_TIMEOUT_S = 60.0

DATA_VARIABLE = "CHANGELOG_SERVER_DATA"
"""The environment variable that names the folder in which temporary database servers keep their data. By default, they
keep it where temporary files are.
"""


def free_port() -> int:
    """Returns a port that nothing uses at the moment. Raises OSError if there is none.

    A process gets the same port again only after it has got every other port of its share. This matters because a port
    that nothing uses may belong to a server that has not started yet, or that is about to start again.
    """
    ports = _ports()
    for _ in PORTS:
        port = next(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port between {PORTS.start} and {PORTS.stop} is free")


@functools.cache
def _ports() -> Iterator[int]:
    """Repeats this process's share of PORTS, in random order, for ever."""
    number, count = map(int, os.environ.get(SHARE_VARIABLE, "0/1").split("/"))
    share = PORTS[number::count]
    return itertools.cycle(random.SystemRandom().sample(share, len(share)))


def identity() -> tuple[int | None, int | None]:
    """Returns the ids of the user and of the group under which servers run.

    If the caller is root, the ids are those of the system's user `nobody`. Otherwise both are None, and servers run as
    the same user as the caller.
    """
    if os.geteuid() != 0:
        return None, None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def give_away(folder: Path) -> None:
    """Changes the owner of `folder` to the user under which servers run."""
    user, group = identity()
    if user is not None and group is not None:
        os.chown(folder, user, group)


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: str | None = None) -> Iterator[Path]:
    """Makes a temporary folder that belongs to the user under which servers run, and deletes the folder afterwards.

    The folder is made in `parent`, by default where temporary files are.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        give_away(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def reachable(programs: Path, folder: Path) -> Path:
    """Returns the folder `programs` if the servers' user may read it, otherwise a copy of that folder in `folder`.

    The copy consists of hard links where the file system allows them.
    """
    try:
        run(["test", "-r", str(programs), "-a", "-x", str(programs)])
    except subprocess.CalledProcessError:
        return Path(shutil.copytree(programs, folder / programs.name, symlinks=True, copy_function=_link))
    return programs


def run(command: Sequence[str], text: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
    """Runs a program to its end as the servers' user, with `text` as its input, and returns its output.

    `environment` is added to our own environment. Raises what `subprocess.run` with check=True raises.
    """
    user, group = identity()
    return subprocess.run(
        command,
        user=user,
        group=group,
        extra_groups=_groups(),
        cwd="/",
        env={**os.environ, **(environment or {})},
        input=text,
        capture_output=True,
        check=True,
    ).stdout


def launch(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a server, which appends its output to the file `log`. `environment` is added to our own environment."""
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
            start_new_session=True,  # Ctrl-C at the terminal must reach us, but not the server
        )


class ServerProcess(ABC):
    """A server: one process and its children. As a context manager, it starts at the beginning and stops at the end."""

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
        """Whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the server's process. Raises RuntimeError if the server was not started, or was stopped."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @abstractmethod
    def start(self) -> None:
        """Starts the server, and returns after it has begun to serve clients."""

    def stop(self) -> None:
        """Shuts the server down; does nothing if the server is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the server's process as a crash would. The process's children notice that and exit."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _discard(self) -> None:
        """Ends a server that failed to start."""
        self.kill()

    def _end(self, number: signal.Signals) -> None:
        """Sends the signal `number`, and kills the process if it still runs after STOP_TIMEOUT_S."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _groups() -> list[int] | None:
    return [] if os.geteuid() == 0 else None
