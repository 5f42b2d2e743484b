"""Runs our service for the benchmarks with Kafka. It publishes the table `orders` of a database."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import free_port
from changelog.connectors.sinks.kafka.admin import names
from changelog.connectors.wiring.sources import kind_of

START_S_MAX = 120.0
STOP_S_MAX = 60.0

CONFIG = """
name = "{name}"
[source]
kind = "{kind}"
dsn = "{dsn}"
[sink]
kind = "kafka"
bootstrap_servers = "{servers}"
{codec}
[entities.orders]
table = "{table}"
partitions = {partitions}
[service]
listen = "127.0.0.1:{port}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What a publisher uses in one round: a unique name, a database with the table, a broker, and a folder of its own.

    `table` is the name of the table `orders` in our configuration. For PostgreSQL, it includes the schema.
    """

    name: str
    dsn: str
    table: str
    broker: Broker
    partitions: int
    folder: Path


class Publisher(Protocol):
    """One *side* of a benchmark: a program that publishes changes to Kafka, and is measured."""

    topic: str

    def prepare(self) -> None:
        """Makes sure that all changes from now on will be published. In PostgreSQL, this creates a replication slot
        that has the name of the workspace.
        """

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the process that publishes. It runs until it gets SIGTERM."""


class Ours:
    """Our service: `changelog run` with its default settings.

    Without a `registry`, it publishes JSON; with the address of a schema registry, Avro. If `profile` is given, the
    measured process runs under cProfile, which writes its figures into this file.
    """

    def __init__(self, workspace: Workspace, *, registry: str | None = None, profile: Path | None = None) -> None:
        self.topic = names.topic(workspace.name, "orders")
        self._workspace = workspace
        self._ready = f"http://127.0.0.1:{(port := free_port())}/ready"
        self._profile = [] if profile is None else ["-m", "cProfile", "-o", str(profile.absolute())]
        text = CONFIG.format(
            name=workspace.name,
            kind=kind_of(workspace.dsn),
            dsn=workspace.dsn,
            table=workspace.table,
            servers=workspace.broker.bootstrap_servers,
            codec=f'codec = "avro"\nregistry = "{registry}"\nauto_register = true' if registry else 'codec = "json"',
            partitions=workspace.partitions,
            port=port,
        )
        (workspace.folder / "changelog.toml").write_text(text)

    def prepare(self) -> None:
        """See `Publisher`. Runs the service until it has read the table, which is nearly empty, and follows the log."""
        service = self._run([])
        deadline = time.monotonic() + START_S_MAX
        while not self._streams():
            if service.poll() is not None or time.monotonic() > deadline:
                service.kill()
                raise SystemExit(f"the service did not start: {last_line(self._workspace.folder)}")
            time.sleep(0.1)
        end(service)

    def start(self) -> subprocess.Popen[bytes]:
        """See `Publisher`."""
        return self._run(self._profile)

    def _run(self, profile: list[str]) -> subprocess.Popen[bytes]:
        return launch([sys.executable, *profile, "-m", "changelog", "run"], self._workspace.folder)

    def _streams(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=5) as answer:
                return bool(json.load(answer)["phase"] == "streaming")
        except (urllib.error.URLError, ConnectionError):
            return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process of a side: sends it SIGTERM, and kills it if it does not end within `STOP_S_MAX` seconds."""
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(folder: Path) -> str:
    """Returns the last line that the process in this folder printed."""
    return ((folder / "output").read_text("utf-8", "replace").strip().splitlines() or ["(no output)"])[-1]


def launch(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts a process in a folder. Its output goes to the file `output` in this folder."""
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
