"""Runs `changelog views serve` over Kafka topics, in processes that tests can kill."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from changelog.connectors.views.streams.opening import BY_SERVICE
from tests.patience import PATIENCE_S, PROGRAM_S, until
from tests.servers import fetched
from tests.unit.views.running import Api
from tests.unit.views.story import BATCH

WITHOUT_BATCH = "without-batch"
"""The view of orders in which changes by the service `BATCH` do not count."""

VIEWS = f"""[views.order]
entity = "order"
serve = {{}}
[views.guest]
entity = "guest"
serve = {{}}
[views.{WITHOUT_BATCH}]
entity = "order"
serve = {{ drop_service = ["{BATCH}"] }}
"""
"""A view of each of two entities, and the view `WITHOUT_BATCH`."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Options for a Java process that runs only a few seconds."""


class ServedViews:
    """The command `changelog views serve` with one configuration. Each start begins a new process. All processes keep
    the rows of their views in `folder`, and write their log to the file `log`. With port 0, each process chooses a free
    port.
    """

    def __init__(self, config: Path, port: int = 0) -> None:
        self._config, self._port = config, port
        self.folder = config.parent / "views"
        self.log = config.with_suffix(".views.log")
        self._process: subprocess.Popen[str] | None = None
        self.api = Api("")

    def start(self) -> Api:
        """Starts a process, and returns its API once every view can be read."""
        self.begin()
        return self.ready()

    def begin(self) -> None:
        """Starts a process."""
        command = [sys.executable, "-W", "error", "-m", "changelog", "views", "serve", "--config", str(self._config)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA, "PYTHONUNBUFFERED": "1"},
            )

    def ready(self) -> Api:
        """Returns the API of the process once every view can be read."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            address = re.search(r"views are served at (http://127.0.0.1:\d+)/", output.readline())
        assert address is not None, self.log.read_text("utf-8")
        self.api = Api(address[1])
        until(lambda: self.api.get("/ready").status == 200, "views are not ready")
        return self.api

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def niceness(self) -> Iterator[tuple[str, int]]:
        """Yields the name of each thread (its first 15 characters) and its niceness: how much lower its priority is
        than that of the thread that answers requests. Works only on Linux.
        """
        assert self._process is not None
        tasks = Path(f"/proc/{self._process.pid}/task")
        own = os.getpriority(os.PRIO_PROCESS, self._process.pid)
        for task in tasks.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                yield (task / "comm").read_text().strip(), os.getpriority(os.PRIO_PROCESS, int(task.name)) - own

    @property
    def by_service(self) -> str:
        """The name of the Kafka Streams application that ignores the changes of some services. There must be exactly
        one such application, and the command must have been started.
        """
        [folder] = (self.folder / BY_SERVICE).iterdir()
        return folder.name

    @contextmanager
    def configured(self, old: str, new: str) -> Iterator[None]:
        """Replaces a text in the configuration while the body of the `with` statement runs."""
        before = self._config.read_text("utf-8")
        assert old in before
        self._config.write_text(before.replace(old, new), "utf-8")
        try:
            yield
        finally:
            self._config.write_text(before, "utf-8")

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once, as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends the process as systemd does (SIGTERM), or with SIGINT as Ctrl-C does. Returns the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(PROGRAM_S)

    def close(self) -> None:
        """Ends the process if it runs, and closes its output if `ready` did not read it."""
        if self._process is not None:
            if self._process.poll() is None:
                self.kill()
            if self._process.stdout is not None:
                self._process.stdout.close()


def streams_section(folder: Path, rest: str = "") -> str:
    """Returns the section `[serve.streams]` with a folder for the rows."""
    path = folder / "views"
    return f'[serve.streams]\npath = "{path}"\njars = "{fetched("streams")}"\nheap_mib = 128\n{rest}'


@contextmanager
def served(config: Path) -> Iterator[ServedViews]:
    """Runs the command with this configuration inside the `with` block."""
    views = ServedViews(config)
    try:
        views.start()
        yield views
    finally:
        views.close()
