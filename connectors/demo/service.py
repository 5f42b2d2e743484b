"""`changelog run` beside the story, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import connectors
from envelope.errors import ChangelogError, Kind

STOP_TIMEOUT_S = 20.0


class Service:
    """`changelog run` in a process of its own."""

    def __init__(self, config: Path) -> None:
        self._said = config.with_name("service.log")
        command = [sys.executable, "-P", "-m", "connectors", "run", "--config", str(config)]
        home = str(Path(connectors.__file__).parent.parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
            )

    def check(self) -> None:
        """Raises ChangelogError when the service ended by itself."""
        code = self._process.poll()
        if code is not None:
            last = self._said.read_text("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ChangelogError(
                Kind.PRECONDITION, f"the service ended with exit code {code}: {last[0]}", hint=f"see {self._said}"
            )

    def stop(self) -> None:
        """Lets the service finish what it has read, as SIGTERM does. Raises ChangelogError when it cannot."""
        self.check()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ChangelogError(Kind.LIMIT, f"the service did not stop within {STOP_TIMEOUT_S:.0f} s") from error
        if code != 0:
            self.check()

    def kill(self) -> None:
        """Ends the service at once, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(config: Path) -> Iterator[Service]:
    """The service over a configuration, from here to the end of the context; `stop` has it finish its work before."""
    service = Service(config)
    try:
        yield service
    finally:
        service.kill()
