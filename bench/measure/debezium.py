"""Runs Debezium's connectors for the benchmarks with Kafka. Each connector runs in a standalone Kafka Connect."""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg

from bench.measure import binlog
from bench.measure.publishers import START_S_MAX, Workspace, end, last_line, launch
from bench.measure.topic import Topic
from changelog.connectors.java.program import find_java
from changelog.connectors.servers.mysql import Flavour, MysqlServer
from changelog.connectors.servers.unprivileged import free_port

WORKER = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "plugin.discovery": "service_load",
}

CONNECTOR = {
    "tasks.max": "1",
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
"""The last seven settings have other values than by default. The defaults are, in this order: 2,048 changes, 8,192
changes, 500 ms, 16 KiB, 0 ms, no compression and 32 MiB. We changed `poll.interval.ms` for lower latency, and the other
six for more throughput.
"""

MYSQL_CONNECTORS: Mapping[Flavour, Mapping[str, str]] = {
    "mysql": {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.ssl.mode": "disabled",
    },
    "mariadb": {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.ssl.mode": "disable",
    },
}

HEAP = "2g"
"""The size of the heap that Kafka's connect-standalone.sh sets."""

JVM = ("-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""The other options of the JVM that connect-standalone.sh sets."""


class _Debezium:
    """A connector of Debezium that runs in a standalone Kafka Connect. It publishes each change at least once, as JSON
    without schemas.

    `schema` is the database schema of the table `orders`; it becomes a part of the topic's name.
    """

    def __init__(self, workspace: Workspace, jars: Path, schema: str, connector: Mapping[str, str], heap: str) -> None:
        self.topic = f"{workspace.name}.{schema}.orders"
        self._workspace, self._jars, self._heap = workspace, jars, heap
        worker = {
            **WORKER,
            "bootstrap.servers": workspace.broker.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{free_port()}",
            "offset.storage.file.filename": str(workspace.folder / "offsets"),
        }
        common = {"name": workspace.name, "topic.prefix": workspace.name, "table.include.list": f"{schema}.orders"}
        _write_properties(workspace.folder / "worker.properties", worker)
        _write_properties(workspace.folder / "connector.properties", {**CONNECTOR, **common, **connector})

    def start(self) -> subprocess.Popen[bytes]:
        """See `Publisher`."""
        java = [find_java(), *JVM, f"-Xmx{self._heap}", "-Dlog4j2.level=WARN", "-cp", f"{self._jars.absolute()}/*"]
        standalone = ["org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.properties"]
        return launch([*java, *standalone], self._workspace.folder)

    def _create_topic(self, name: str, partitions: int) -> Topic:
        """Creates a topic. Otherwise, Debezium would create it with one partition."""
        topic = Topic(self._workspace.broker.bootstrap_servers, name, partitions)
        topic.create()
        return topic


class PostgresDebezium(_Debezium):
    """Debezium's connector for PostgreSQL."""

    def __init__(self, workspace: Workspace, jars: Path, *, heap: str = HEAP) -> None:
        with psycopg.connect(workspace.dsn) as connection:
            parameters = {name: str(value) for name, value in connection.info.get_parameters().items()}
        connector = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "disabled",
            "message.prefix.exclude.list": "provenance",
            "database.hostname": parameters["host"],
            "database.port": parameters["port"],
            "database.dbname": parameters["dbname"],
            "database.user": parameters["user"],
            "slot.name": workspace.name,
            "publication.name": workspace.name,
        }
        super().__init__(workspace, jars, "public", connector, heap)

    def prepare(self) -> None:
        """See `Publisher`."""
        name = self._workspace.name
        with psycopg.connect(self._workspace.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {name} FOR TABLE orders")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        self._create_topic(self.topic, self._workspace.partitions)


class MysqlDebezium(_Debezium):
    """Debezium's connector for MySQL, or its connector for MariaDB."""

    def __init__(self, workspace: Workspace, jars: Path, server: MysqlServer, *, heap: str = HEAP) -> None:
        self._server = server
        connector = {
            **MYSQL_CONNECTORS[server.flavour],
            "database.hostname": server.host,
            "database.port": str(server.port),
            "database.user": "root",
            "database.password": "",
            "database.server.id": "1234",
            "database.include.list": binlog.DATABASE,
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(workspace.folder / "history"),
        }
        super().__init__(workspace, jars, binlog.DATABASE, connector, heap)

    def prepare(self) -> None:
        """See `Publisher`. Runs Debezium until it has described the table, published a row, and stored its offset.

        Without a stored offset, the measured Debezium would start at the end of the log, after the backlog. The row
        that is published here is inserted for this purpose, and does not belong to the backlog. So Debezium must be
        prepared first: a side that was prepared before it would publish this row together with the backlog.
        """
        self._create_topic(self._workspace.name, 1)  # Debezium describes tables in it
        topic = self._create_topic(self.topic, self._workspace.partitions)
        process = self.start()
        deadline = time.monotonic() + START_S_MAX
        inserted = False
        with self._server.connect(binlog.DATABASE) as session:
            while not topic.visible():
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise SystemExit(f"Debezium did not start: {last_line(self._workspace.folder)}")
                time.sleep(0.1)
                if not inserted and binlog.readers(session):
                    binlog.insert_first(session)
                    inserted = True
        end(process)


def _write_properties(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
