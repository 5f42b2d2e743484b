"""Runs `changelog run` for the demo, in a separate process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import changelog
from changelog.envelope.errors import ChangelogError, Kind

STOP_TIMEOUT_S = 20.0


class ServiceProcess:
    """Runs `changelog run` in a separate process. Its output goes into `service.log` beside the configuration."""

    def __init__(self, config: Path) -> None:
        self._log = config.with_name("service.log")
        command = [sys.executable, "-P", "-m", "changelog", "run", "--config", str(config)]
        home = str(Path(changelog.__file__).parent.parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def check(self) -> None:
        """Raises ChangelogError if the service ended by itself."""
        code = self._process.poll()
        if code is not None:
            last = self._log.read_text("utf-8", "replace").strip().splitlines()[-1:] or ["it logged nothing"]
            raise ChangelogError(
                Kind.PRECONDITION, f"the service ended with exit code {code}: {last[0]}", hint=f"see {self._log}"
            )

    def stop(self) -> None:
        """Stops the service by SIGTERM. The service then stores what it has read, and ends.

        Raises ChangelogError if the service has already ended, does not end within STOP_TIMEOUT_S, or ends with an
        error.
        """
        self.check()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ChangelogError(Kind.LIMIT, f"the service did not stop within {STOP_TIMEOUT_S:.0f} s") from error
        if code != 0:
            self.check()

    def kill(self) -> None:
        """Kills the service, if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(config: Path) -> Iterator[ServiceProcess]:
    """Runs the service until the end of the context, and kills it there, unless `stop` has stopped it before."""
    service = ServiceProcess(config)
    try:
        yield service
    finally:
        service.kill()
