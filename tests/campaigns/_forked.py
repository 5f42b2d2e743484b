"""Starts `changelog` faster than `python -m changelog`, which needs half a second to import its modules.

A *nursery* is a process that has imported all modules. For each start, it forks a process, which runs the same code as
`python -m changelog`. Tests use a nursery because they start hundreds of services. `make soak` does not use one.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from changelog.connectors import cli

ROOT = Path(__file__).parents[2]

MODULES = (
    "changelog.connectors.commands.run",
    "changelog.connectors.wiring.kafka",
    "changelog.connectors.wiring.mysql",
)
"""The modules that a nursery imports in advance. They import all others that the services need."""

MESSAGE_BYTES = 1 << 20


class Forked:
    """A process that a nursery started. It has the methods of `subprocess.Popen` that the campaigns use.

    From the pipe `status`, this class reads the id of the process, and later its exit code. Each of them is a line.
    """

    def __init__(self, status: int) -> None:
        self._status = status
        self._received = b""
        self.returncode: int | None = None
        self.pid = self._number()

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._status)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs. If a signal ended it, the code is negative."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process, and returns its exit code. Raises subprocess.TimeoutExpired if the process
        still runs after `timeout` seconds.
        """
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("changelog", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and (self._received or select.select([self._status], [], [], timeout)[0]):
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def _number(self) -> int:
        while b"\n" not in self._received:
            part = os.read(self._status, 64)
            if not part:
                raise ChildProcessError("the nursery of services has ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return int(line)


class Nursery:
    """A process that forks services. It is started when it must fork the first one. Its environment variables are those
    of the process that starts it, and `own`.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = own
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> Forked:
        """Starts `changelog` with these arguments and this environment. Its output goes to the file `output`."""
        requests = self._requests or self._begin()
        request = json.dumps([list(arguments), dict(environment)]).encode()
        status, their_status = os.pipe()
        try:
            socket.send_fds(requests, [request], [output, their_status])
        finally:
            os.close(their_status)
        return Forked(status)

    def close(self) -> None:
        """Ends the nursery. The services that it has forked continue."""
        if self._requests is not None and self._process is not None:
            self._requests.close()
            self._process.wait()

    def _begin(self) -> socket.socket:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.campaigns._forked", str(theirs.fileno())]
            environment = {**os.environ, **self._own}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return self._requests


def serve(requests: socket.socket) -> list[str] | None:
    """Forks a process for each request. In the forked process, returns the arguments for `changelog`. In the calling
    process, returns None after the last request.
    """
    cli.leave_pandas_out()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C must end only the services
    while True:
        request, files, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 2)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            arguments, environment = json.loads(request)
            return _begin(arguments, environment, *files)
        for file in files:
            os.close(file)


def _begin(arguments: list[str], environment: Mapping[str, str], output: int, status: int) -> list[str]:
    """Forks the service's process, and returns only in this new process.

    The calling process reports the id of the new process, waits for its end, reports its exit code, and ends.
    """
    pid = os.fork()
    if pid:
        os.close(output)
        os.write(status, b"%d\n" % pid)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(status)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    return arguments


def main() -> Any:
    """Serves requests from a socket. The argument of this program is the file descriptor of the socket."""
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        arguments = serve(requests)
    if arguments is None:
        return 0
    sys.argv = ["changelog", *arguments]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
