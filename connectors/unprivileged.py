"""Runs the servers of the demo, the tests and the benchmarks: not as root, and not in anybody's way."""

import contextlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections, one of which could hold a stopped server's port."""


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


def launch(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a server, which appends all it prints to `log`."""
    user, group = identity()
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            user=user,
            group=group,
            extra_groups=_groups(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C at the terminal is for us to hand on
        )


def _groups() -> list[int] | None:
    return [] if os.geteuid() == 0 else None
