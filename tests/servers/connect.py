"""Runs Kafka Connect in one process (standalone), with the connectors that a test or a benchmark configures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from changelog.connectors.java.program import find_java
from changelog.connectors.servers.kafka import BRIEF
from changelog.connectors.servers.unprivileged import (
    ServerProcess,
    free_port,
    give_away,
    launch,
    reachable,
    temporary_folder,
)
from tests.servers.answering import answers_http, await_answer

START_TIMEOUT_S = 120.0

WORKER = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "plugin.discovery": "service_load",
    "consumer.isolation.level": "read_committed",
    "consumer.auto.offset.reset": "earliest",
    "consumer.metadata.max.age.ms": "1000",
    "offset.flush.interval.ms": "1000",
}
"""The settings of the process. The converters keep their default: each JSON message contains its schema."""


class Connect(ServerProcess):
    """A process of Kafka Connect, called a worker. Its jars are in `lib`. It writes its files and its log to `folder`.

    `connectors` maps the name of each connector to its properties.
    """

    def __init__(
        self, lib: Path, folder: Path, bootstrap_servers: str, connectors: Mapping[str, Mapping[str, str]]
    ) -> None:
        super().__init__()
        self.log = folder / "connect.log"
        self._url = f"http://127.0.0.1:{free_port()}"
        worker = {
            **WORKER,
            "bootstrap.servers": bootstrap_servers,
            "listeners": self._url,
            "offset.storage.file.filename": str(folder / "offsets"),
        }
        files = [_written(folder / "worker.properties", worker)]
        files += [
            _written(folder / f"{name}.properties", {"name": name, **properties})
            for name, properties in connectors.items()
        ]
        self._command = [
            *(find_java(), "-Xmx384m", *BRIEF, "-Dlog4j2.level=WARN", f"-Djava.io.tmpdir={folder}"),
            *("-cp", f"{lib}/*", "org.apache.kafka.connect.cli.ConnectStandalone", *files),
        ]

    def start(self) -> None:
        """Starts the process, and returns when the worker answers."""
        self._process = launch(self._command, self.log)
        await_answer(self, lambda: answers_http(f"{self._url}/connectors"), self.errors, START_TIMEOUT_S)

    def errors(self) -> str:
        """Returns the last lines of the log that say why something failed."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        causes = [line for line in lines if " ERROR " in line or line.startswith("Caused by: ")]
        return "\n".join(causes[-8:])


@contextmanager
def temporary_connect(
    home: Path, bootstrap_servers: str, connectors: Mapping[str, Mapping[str, str]]
) -> Iterator[Connect]:
    """Yields a running worker, and stops it afterwards. `home` is the folder of its jars."""
    with temporary_folder("changelog-connect-") as folder:
        give_away(folder)
        with Connect(reachable(home, folder), folder, bootstrap_servers, connectors) as worker:
            yield worker


def _written(file: Path, properties: Mapping[str, str]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), "utf-8")
    return str(file)
