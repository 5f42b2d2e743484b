"""Runs Apache Kafka from a folder of jars, for the demo, the tests and the benchmarks.

One process is both broker and controller (KRaft). It listens on loopback only, without passwords, and stores everything
in one folder. If root starts the broker, the broker runs as the system's user `nobody`.
"""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from changelog.connectors.java.program import find_java
from changelog.connectors.servers.unprivileged import (
    ServerProcess,
    free_port,
    give_away,
    launch,
    reachable,
    run,
    temporary_folder,
)
from changelog.envelope.errors import ChangelogError, Kind

DEFAULT_SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",  # after a crash, a restart waits until the controller ends the old session
    "group.initial.rebalance.delay.ms": "0",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "metadata.max.idle.interval.ms": "0",  # otherwise, an idle broker writes a record twice a second, only for metrics
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
}

BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java's options for a broker that runs for a few minutes only. In this time, Java's second compiler does not pay off.
"""

CLASSES = "classes.jsa"
"""The name of an archive of the classes that a broker loads. It is beside the folder of the jars, and `make` writes it.
With it, a broker needs half the CPU time to start. Java ignores the archive if it was written with other jars or
another Java.
"""

LIB_VARIABLE = "CHANGELOG_KAFKA_LIB"
START_TIMEOUT_S = 120.0

IN_USE = "Address already in use"
DESCRIBE_CLUSTER = 60


def find_lib() -> Path:
    """Returns the folder of Kafka's jars: $CHANGELOG_KAFKA_LIB if set, otherwise the folder that `make kafka` fills.

    Raises ChangelogError (PRECONDITION) if the jars are not there.
    """
    path = os.environ.get(LIB_VARIABLE)
    checkout = Path(__file__).resolve().parents[2]
    for lib in [Path(path)] if path else [Path(".cache/kafka/lib"), checkout / ".cache/kafka/lib"]:
        if any(lib.glob("kafka_*.jar")):
            return lib.absolute()
    raise ChangelogError(
        Kind.PRECONDITION,
        f"Kafka's jars are not in {path}" if path else "Kafka's jars were not found",
        hint=f"`make kafka` in a checkout fetches them; or set {LIB_VARIABLE} to the folder libs of a Kafka 4",
    )


class Broker(ServerProcess):
    """One Kafka broker with its data in `folder`, which is formatted if it is empty or absent.

    `settings` are added to DEFAULT_SETTINGS. `heap` (such as "512m") and the flags `java` are for Java's virtual
    machine. By default, the broker tells clients to connect to `port`. With `advertised` (HOST:PORT), it tells them to
    connect there, for example to a proxy in front of `port`; `direct_servers` bypasses the proxy. Changes of the
    attributes `settings` and `advertised` take effect at the next start. The ports stay the same after a restart. With
    `joins` (another broker), the new broker joins that broker's cluster.

    As a context manager, the broker starts at the beginning of the block, and shuts down at its end. Starting raises
    ChangelogError (PRECONDITION) if Java is missing or too old, or if the broker does not start; then the message has
    the last error of the broker's log.
    """

    def __init__(
        self,
        lib: Path,
        folder: Path,
        *,
        port: int | None = None,
        heap: str = "512m",
        java: Sequence[str] = BRIEF,
        advertised: str | None = None,
        settings: Mapping[str, str] | None = None,
        joins: "Broker | None" = None,
    ) -> None:
        super().__init__()
        self.lib = lib.resolve()  # Java uses an archive of classes only if the jars have the same paths
        self.folder = folder.absolute()
        self.port = port or free_port()
        self.options = (f"-Xmx{heap}", *java)
        self.advertised = advertised
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.log = self.folder / "broker.log"
        self._direct_port = free_port()
        self._joins = joins
        self._controller_port: int = free_port() if joins is None else joins._controller_port
        self._node: int = 1 if joins is None else joins._node + 1

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as HOST:PORT."""
        return self.advertised or f"127.0.0.1:{self.port}"

    @property
    def direct_servers(self) -> str:
        """An address that bypasses `advertised`, as HOST:PORT."""
        return f"127.0.0.1:{self._direct_port}"

    def start(self) -> None:
        """Starts the broker, and returns after it has joined its cluster. After a crash, the broker first recovers.

        While another program has a port of the broker, this method waits and retries.
        """
        if self.running:
            return
        java = find_java()
        cluster = self._configure(java)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            offset = self.log.stat().st_size if self.log.exists() else 0
            self._process = launch(self._command(java), self.log)
            if self._answers(cluster, deadline):
                return
            output = self.log.read_bytes()[offset:].decode("utf-8", "replace")
            self.kill()
            if IN_USE not in output or time.monotonic() > deadline:
                lines = output.strip().splitlines() or ["it printed nothing"]
                last = next((line for line in reversed(lines) if " ERROR " in line), lines[-1])
                raise ChangelogError(
                    Kind.PRECONDITION, f"Kafka in {self.folder} did not start: {last}", hint=f"see {self.log}"
                )
            time.sleep(0.1)

    def _configure(self, java: str) -> str:
        """Writes the broker's settings, formats its folder at the first start, and returns the cluster's id."""
        self.folder.mkdir(parents=True, exist_ok=True)
        give_away(self.folder)
        lines = "".join(f"{name}={value}\n" for name, value in self._properties().items())
        properties = self.folder / "server.properties"
        properties.write_text(lines, encoding="utf-8")
        meta = self.folder / "data" / "meta.properties"
        if not meta.exists():
            cluster = self._joins.cluster if self._joins else _new_cluster()
            tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={properties}"]
            try:
                run([java, *BRIEF, *self._classes(), "-cp", f"{self.lib}/*", *tool])
            except subprocess.CalledProcessError as error:
                lines = error.stderr.decode("utf-8", "replace").splitlines()
                last = next((line for line in reversed(lines) if not line.startswith("\tat ")), "it printed nothing")
                raise ChangelogError(Kind.PRECONDITION, f"Kafka cannot format {self.folder}: {last}") from error
        return self.cluster

    @property
    def cluster(self) -> str:
        """The id of the broker's cluster. Raises ChangelogError (PRECONDITION) if the data does not name a cluster."""
        meta = self.folder / "data" / "meta.properties"
        match = re.search(r"^cluster\.id=(.+)$", meta.read_text(encoding="utf-8"), re.MULTILINE)
        if match is None:
            raise ChangelogError(
                Kind.PRECONDITION, f"the file {meta} names no cluster", hint="remove the folder, or choose another"
            )
        return match[1]

    def _properties(self) -> Mapping[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        listeners = f"CLIENT://127.0.0.1:{self.port},DIRECT://{self.direct_servers}"
        return {
            **self.settings,
            "process.roles": "broker,controller" if self._joins is None else "broker",
            "node.id": str(self._node),
            "log.dirs": str(self.folder / "data"),
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            # The broker sends transaction markers to itself. They bypass `advertised`, which may be a proxy.
            "inter.broker.listener.name": "DIRECT",
            "listeners": listeners if self._joins else f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": f"CLIENT://{self.bootstrap_servers},DIRECT://{self.direct_servers}",
        }

    def _command(self, java: str) -> list[str]:
        options = [*self.options, *self._classes(), "-Djava.awt.headless=true", "-Dlog4j2.level=WARN"]
        return [java, *options, "-cp", f"{self.lib}/*", "kafka.Kafka", str(self.folder / "server.properties")]

    def _classes(self) -> list[str]:
        """Returns Java's options for the archive of classes, if there is one. Java ignores a wrong archive silently."""
        archive = self.lib.with_name(CLASSES)
        return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"] if archive.exists() else []

    def _answers(self, cluster: str, deadline: float) -> bool:
        """Waits until both ports for clients answer. Returns False if the broker stops or the time is over before that.

        The broker opens one port after the other. If another server has taken the second port, the broker stops,
        although the first port has answered. A port with TLS or SASL is not asked.
        """
        is_plain = "CLIENT:PLAINTEXT" in self.settings["listener.security.protocol.map"]
        ports = (self._direct_port, self.port) if is_plain else (self._direct_port,)
        return all(self._answers_at(port, cluster, deadline) for port in ports)

    def _answers_at(self, port: int, cluster: str, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            try:
                cluster_found = _describe(port)
            except OSError:
                cluster_found = None
            if cluster_found is not None:
                return cluster_found == cluster  # if not equal, another server took the port first
            time.sleep(0.05)
        return False


@contextlib.contextmanager
def temporary_broker(
    lib: Path | None = None,
    *,
    heap: str = "512m",
    java: Sequence[str] = BRIEF,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """Runs a broker in a temporary folder, and deletes the folder afterwards.

    `lib` is the folder of Kafka's jars, by default that of `find_lib`; the other arguments are those of `Broker`.
    """
    with temporary_folder("changelog-kafka-") as folder:
        jars = reachable(lib or find_lib(), folder)
        with Broker(jars, folder / "kafka", heap=heap, java=java, settings=settings) as broker:
            yield broker


def _new_cluster() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")


def _describe(port: int) -> str | None:
    """Returns the id of the cluster of the broker at `port`; None until the broker has joined its cluster.

    Sends DescribeCluster, version 0 (https://kafka.apache.org/protocol#The_Messages_DescribeCluster). The answer
    lists only brokers that serve clients, so it lists none until a broker has joined. Raises OSError if the connection
    fails or the answer does not come in time.
    """
    request = struct.pack("!hhih", DESCRIBE_CLUSTER, 0, 1, -1) + bytes([0, 0, 0])  # no client id, no tags
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link, link.makefile("rb") as answers:
        link.sendall(struct.pack("!i", len(request)) + request)
        head = answers.read(4)
        answer = answers.read(min(int.from_bytes(head), 1000)) if len(head) == 4 else b""
    # The fields of the answer, with their sizes in bytes: correlation id 4, tags 1, throttle time 4, error 2, message 1
    # (absent), 1 + the length of the cluster id (in 1 byte), and the cluster id.
    error, size = answer[9:11], answer[12:13]
    if error != b"\0\0" or not size:
        return None
    end = 12 + size[0]
    brokers = answer[end + 4 : end + 5]
    return answer[13:end].decode("utf-8", "replace") if brokers > b"\1" else None


def main() -> None:
    """Runs a broker with an empty folder until this process receives SIGINT or SIGTERM. `make kafka` calls it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with temporary_broker() as broker:
            sys.stdout.write(f"Kafka listens at {broker.bootstrap_servers}; Ctrl-C stops it and deletes its data\n")
            sys.stdout.flush()
            while True:
                signal.pause()
    except KeyboardInterrupt:
        sys.exit(0)
    except ChangelogError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
