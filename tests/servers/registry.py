"""Runs a schema registry: Apicurio, which also offers Confluent's API. It keeps its schemas in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from changelog.connectors.java.program import find_java
from changelog.connectors.servers.kafka import BRIEF
from changelog.connectors.servers.unprivileged import ServerProcess, free_port, launch, reachable, temporary_folder
from tests.servers.answering import answers_http, await_answer

START_TIMEOUT_S = 120.0


class Registry(ServerProcess):
    """A registry whose program is the unpacked archive in `home`. Its output goes to a file in `folder`.

    It has no schemas when it starts, and loses its schemas when it stops. Its compatibility level is NONE until a
    client sets another.
    """

    def __init__(self, home: Path, folder: Path, *, heap: str = "384m") -> None:
        super().__init__()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self.log = folder / "registry.log"
        self._command = [
            *(find_java(), f"-Xmx{heap}", *BRIEF, f"-Duser.home={folder}", f"-Djava.io.tmpdir={folder}"),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}", "-Dquarkus.log.level=WARN"),
            *("-jar", *map(str, home.glob("apicurio-registry-app-*-runner.jar"))),
        ]

    def start(self) -> None:
        """Starts the process, and returns when the registry lists its subjects."""
        self._process = launch(self._command, self.log)
        url = f"{self.url}/subjects"
        await_answer(self, lambda: answers_http(url), lambda: self.log.read_text()[-500:], START_TIMEOUT_S)


@contextmanager
def temporary_registry(home: Path) -> Iterator[Registry]:
    """Yields a running registry, and stops it afterwards."""
    with temporary_folder("changelog-registry-") as folder, Registry(reachable(home, folder), folder) as registry:
        yield registry
