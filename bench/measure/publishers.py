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
    # https://debezium.io/documentation/reference/stable/connectors/postgresql.html, max.batch.size and what follows it
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "producer.override.batch.size": "1000000",
    "producer.override.linger.ms": "5",
    "producer.override.compression.type": "lz4",
    "producer.override.buffer.memory": "67108864",
}
"""Raised from 2,048 and 8,192 changes, 500 ms, 16 KiB, 0 ms, none and 32 MiB, all for throughput but the third."""

HEAP = "2g"
"""As connect-standalone.sh has it."""

JVM = ("-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""As Kafka's own connect-standalone.sh has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a side works: a name that nothing else has, a database with the table, a broker, a folder of its own."""

    name: str
    dsn: str
    broker: Broker
    partitions: int
    folder: Path


class Publisher(Protocol):
    """One side."""

    topic: str

    def prepare(self) -> None:
        """Makes its slot, named after the place, so that it will publish what is written from now on."""

    def start(self) -> subprocess.Popen[bytes]:
        """Starts publishing, until the process is told to end."""


class Ours:
    """`changelog run`, with its default settings; under cProfile, if there is a `profile` to write."""

    def __init__(self, place: Place, *, registry: str | None = None, profile: Path | None = None) -> None:
        self.topic = names.topic(place.name, "orders")
        self._place = place
        self._ready = f"http://127.0.0.1:{(port := free_port())}/ready"
        self._profile = [] if profile is None else ["-m", "cProfile", "-o", str(profile.absolute())]
        text = CONFIG.format(
            name=place.name,
            dsn=place.dsn,
            servers=place.broker.bootstrap_servers,
            codec=f'codec = "avro"\nregistry = "{registry}"\nauto_register = true' if registry else 'codec = "json"',
            partitions=place.partitions,
            port=port,
        )
        (place.folder / "changelog.toml").write_text(text)

    def prepare(self) -> None:
        """See `Publisher`: it reads the empty table, as a service does that starts anew."""
        service = self._run([])
        deadline = time.monotonic() + START_S_MAX
        while not self._streams():
            if service.poll() is not None or time.monotonic() > deadline:
                service.kill()
                raise SystemExit(f"the service did not start: {last_line(self._place.folder)}")
            time.sleep(0.1)
        end(service)

    def start(self) -> subprocess.Popen[bytes]:
        """See `Publisher`."""
        return self._run(self._profile)

    def _run(self, profile: list[str]) -> subprocess.Popen[bytes]:
        return _launch([sys.executable, *profile, "-m", "changelog", "run"], self._place.folder)

    def _streams(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=5) as answer:
                return bool(json.load(answer)["phase"] == "streaming")
        except (urllib.error.URLError, ConnectionError):
            return False


class Debezium:
    """Debezium's connector in Kafka Connect, standalone: JSON without schemas, at least once."""

    def __init__(self, place: Place, jars: Path, *, heap: str = HEAP) -> None:
        self.topic = f"{place.name}.public.orders"
        self._place, self._jars, self._heap = place, jars, heap
        with psycopg.connect(place.dsn) as connection:
            where = {name: str(value) for name, value in connection.info.get_parameters().items()}
        worker = {
            **WORKER,
            "bootstrap.servers": place.broker.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{free_port()}",
            "offset.storage.file.filename": str(place.folder / "offsets"),
        }
        connector = {
            **CONNECTOR,
            "name": place.name,
            "topic.prefix": place.name,
            "database.hostname": where["host"],
            "database.port": where["port"],
            "database.dbname": where["dbname"],
            "database.user": where["user"],
            "slot.name": place.name,
            "publication.name": place.name,
        }
        _write_properties(place.folder / "worker.properties", worker)
        _write_properties(place.folder / "connector.properties", connector)

    def prepare(self) -> None:
        """See `Publisher`; makes the topic too, as Debezium's would have one partition."""
        name = self._place.name
        with psycopg.connect(self._place.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {name} FOR TABLE orders")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        Topic(self._place.broker.bootstrap_servers, self.topic, self._place.partitions).create()

    def start(self) -> subprocess.Popen[bytes]:
        """See `Publisher`."""
        folder = self._place.folder
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
    """Ends a side's process in order, or else at once."""
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(folder: Path) -> str:
    """What a side said last."""
    return ((folder / "output").read_text("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]


def _launch(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _write_properties(path: Path, properties: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
