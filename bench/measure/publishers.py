"""The sides of `bench/kafka.py`: processes that publish the table `orders` of a database to Kafka."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg

from bench.measure.topic import Topic
from changelog.connectors.servers.kafka import Broker, find_java
from changelog.connectors.servers.unprivileged import free_port
from changelog.connectors.sinks.kafka.admin import names

START_S_MAX = 120.0
STOP_S_MAX = 60.0

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
kind = "kafka"
bootstrap_servers = "{servers}"
{codec}
[entities.orders]
table = "public.orders"
partitions = {partitions}
[service]
listen = "127.0.0.1:{port}"
"""

WORKER = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "plugin.discovery": "service_load",
}

CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "table.include.list": "public.orders",
    "message.prefix.exclude.list": "provenance",
    "snapshot.mode": "no_data",
    # https://debezium.io/documentation/reference/stable/connectors/postgresql.html explains the settings from here on.
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "producer.override.batch.size": "1000000",
    "producer.override.linger.ms": "5",
    "producer.override.compression.type": "lz4",
    "producer.override.buffer.memory": "67108864",
}
"""The defaults of the last seven settings are, in this order, 2,048 changes, 8,192 changes, 500 ms, 16 KiB, 0 ms, no
compression and 32 MiB. We changed `poll.interval.ms` for lower latency, and the others for more throughput."""

HEAP = "2g"
"""The heap that Kafka's connect-standalone.sh sets."""

JVM = ("-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""The other options of the JVM that connect-standalone.sh sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What one side works with in one round: a unique name, a database with the table, a broker, and its own folder."""

    name: str
    dsn: str
    broker: Broker
    partitions: int
    folder: Path


class Publisher(Protocol):
    """One side of the benchmark: a publisher that is measured."""

    topic: str

    def prepare(self) -> None:
        """Creates the replication slot, named after the workspace, so that changes from now on will be published."""

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the process; it publishes until it gets SIGTERM."""


class Ours:
    """Our service: `changelog run` with its default settings.

    If `profile` is given, the service runs under cProfile, which writes its figures into the file `profile`.
    """

    def __init__(self, workspace: Workspace, *, registry: str | None = None, profile: Path | None = None) -> None:
        self.topic = names.topic(workspace.name, "orders")
        self._workspace = workspace
        self._ready = f"http://127.0.0.1:{(port := free_port())}/ready"
        self._profile = [] if profile is None else ["-m", "cProfile", "-o", str(profile.absolute())]
        text = CONFIG.format(
            name=workspace.name,
            dsn=workspace.dsn,
            servers=workspace.broker.bootstrap_servers,
            codec=f'codec = "avro"\nregistry = "{registry}"\nauto_register = true' if registry else 'codec = "json"',
            partitions=workspace.partitions,
            port=port,
        )
        (workspace.folder / "changelog.toml").write_text(text)

    def prepare(self) -> None:
        """See `Publisher`. Runs the service until it has created its slot and read the table, which is empty."""
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
        return _launch([sys.executable, *profile, "-m", "changelog", "run"], self._workspace.folder)

    def _streams(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=5) as answer:
                return bool(json.load(answer)["phase"] == "streaming")
        except (urllib.error.URLError, ConnectionError):
            return False


class Debezium:
    """Debezium's connector, which a standalone Kafka Connect runs. It publishes JSON without schemas, at least once."""

    def __init__(self, workspace: Workspace, jars: Path, *, heap: str = HEAP) -> None:
        self.topic = f"{workspace.name}.public.orders"
        self._workspace, self._jars, self._heap = workspace, jars, heap
        with psycopg.connect(workspace.dsn) as connection:
            parameters = {name: str(value) for name, value in connection.info.get_parameters().items()}
        worker = {
            **WORKER,
            "bootstrap.servers": workspace.broker.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{free_port()}",
            "offset.storage.file.filename": str(workspace.folder / "offsets"),
        }
        connector = {
            **CONNECTOR,
            "name": workspace.name,
            "topic.prefix": workspace.name,
            "database.hostname": parameters["host"],
            "database.port": parameters["port"],
            "database.dbname": parameters["dbname"],
            "database.user": parameters["user"],
            "slot.name": workspace.name,
            "publication.name": workspace.name,
        }
        _write_properties(workspace.folder / "worker.properties", worker)
        _write_properties(workspace.folder / "connector.properties", connector)

    def prepare(self) -> None:
        """See `Publisher`. Also creates the topic, because Debezium would create it with one partition."""
        name = self._workspace.name
        with psycopg.connect(self._workspace.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {name} FOR TABLE orders")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        Topic(self._workspace.broker.bootstrap_servers, self.topic, self._workspace.partitions).create()

    def start(self) -> subprocess.Popen[bytes]:
        """See `Publisher`."""
        folder = self._workspace.folder
        standalone = ["org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.properties"]
        return _launch(
            [
                find_java(),
                *JVM,
                f"-Xmx{self._heap}",
                "-Dlog4j2.level=WARN",
                "-cp",
                f"{self._jars.absolute()}/*",
                *standalone,
            ],
            folder,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a side's process: sends it SIGTERM, and kills it if it does not end within `STOP_S_MAX` seconds."""
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(folder: Path) -> str:
    """Returns the last line of a process's output."""
    return ((folder / "output").read_text("utf-8", "replace").strip().splitlines() or ["(no output)"])[-1]


def _launch(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _write_properties(path: Path, properties: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
