"""Describes PostgreSQL, MySQL and MariaDB: how to write to each of them, and how to configure our own source and
Debezium to read from it.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

import psycopg
import pymysql
from pymysql.cursors import Cursor

from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from tests.campaigns._debezium import mysql_types, postgres_types
from tests.campaigns._debezium.tables import Alteration, KeyColumn, Kind, Table
from tests.campaigns._debezium.workload import SESSIONS, Execute
from tests.servers import SETTINGS, fresh_database
from tests.servers.mysql import fresh_mysql_database, mysql_server, version_of

DONE = "done"
"""The name of the table into which each round inserts a row as its last change."""

HEAD = """
name = "{name}"
[source]
{source}
[sink]
path = "{path}"
commit_seconds = 0.2
[service]
listen = "127.0.0.1:0"
[schemas]
on_incompatible = "publish"
on_restated = "ask"
"""
ENTITY = """
[entities.{name}]
table = "{home}.{name}"
key = {key}
on_truncate = "publish"
"""
HEAP_MIB = 768

CLASSES = {
    "postgresql": "io.debezium.connector.postgresql.PostgresConnector",
    "mysql": "io.debezium.connector.mysql.MySqlConnector",
    "mariadb": "io.debezium.connector.mariadb.MariaDbConnector",
}
HISTORY = {"schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A new database, and how to reach it. `home` is the schema of its tables in PostgreSQL; elsewhere, it is the
    database itself. Each function in `executes` executes SQL in a session of its own. `source` configures our own
    source; `connector` and `properties` configure Debezium.
    """

    name: str
    home: str
    connector: str
    source: Mapping[str, str]
    executes: Sequence[Execute]
    properties: Mapping[str, str]

    def own(self, path: Path, keys: Mapping[str, Sequence[str]]) -> str:
        """Returns the configuration of a service with our own source. `keys` has the key columns of each table."""
        source = "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.source.items())
        return self._config(source, path, keys)

    def debezium(self, path: Path, keys: Mapping[str, Sequence[str]], jars: Path) -> str:
        """Returns the configuration of a service that runs Debezium itself. The folder `jars` has Debezium's jars."""
        properties = {**self.properties, "skipped.operations": "none", "poll.interval.ms": "20"}
        source = f'kind = "debezium"\nconnector = "{self.connector}"\njars = "{jars}"\nheap_mib = {HEAP_MIB}\n'
        listed = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in properties.items())
        return self._config(f"{source}[source.properties]\n{listed}", path, keys)

    def topics(self, path: Path, keys: Mapping[str, Sequence[str]], bootstrap_servers: str) -> str:
        """Returns the configuration of a service that reads the topics of Debezium, which runs in Kafka Connect."""
        topics = f'bootstrap_servers = "{bootstrap_servers}"\ninclude = ["{self.name}.*"]\n'
        source = f'kind = "debezium"\nconnector = "{self.connector}"\n[source.topics]\n{topics}'
        return self._config(source, path, keys)

    def in_connect(self, tables: Iterable[str], folder: Path) -> Mapping[str, str]:
        """Returns the properties with which Debezium's connector runs in Kafka Connect. It stores its schema history in
        `folder`.
        """
        return {
            **self.properties,
            "connector.class": CLASSES[self.connector],
            "tasks.max": "1",
            "topic.prefix": self.name,
            "skipped.operations": "none",
            "poll.interval.ms": "20",
            "header.converter": "org.apache.kafka.connect.json.JsonConverter",
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            "table.include.list": ",".join(f"{self.home}.{table}" for table in tables),
            **({"plugin.name": "pgoutput"} if self.connector == "postgresql" else HISTORY),
            "schema.history.internal.file.filename": str(folder / "history"),
        }

    def _config(self, source: str, path: Path, keys: Mapping[str, Sequence[str]]) -> str:
        entities = (ENTITY.format(name=name, home=self.home, key=json.dumps([*key])) for name, key in keys.items())
        return HEAD.format(name=self.name, source=source, path=path) + "".join(entities)


class Database(Protocol):
    """One of the three servers. `key_kinds` lists the types that key columns can have. `begin` and `scans` are
    explained in `workload.Dialect`.
    """

    begin: str
    scans: bool
    key_kinds: Sequence[tuple[str, Callable[[int], str]]]

    @property
    def name(self) -> str:
        """The name by which tests start the server."""

    @property
    def jars(self) -> str:
        """The name by which tests find the jars of Debezium's connector for this server."""

    def kinds(self) -> Sequence[Kind]:
        """Returns the types that columns can have."""

    def open(self) -> contextlib.AbstractContextManager[Opened]:
        """Creates a new database, which exists until the `with` block ends."""

    def last(self, tables: Sequence[str]) -> Iterator[str]:
        """Yields the SQL that Debezium needs. It must run after these tables were created."""

    def cut(self) -> None:
        """Ends the sessions that read the server's log."""

    def created(self, random: Random, table: Table) -> Iterator[str]:
        """Yields the SQL that creates a table."""

    def alteration(self, random: Random, table: Table) -> Alteration:
        """Returns a random change of a table's columns."""


class Postgres:
    """A server of PostgreSQL."""

    name, begin, scans, jars = "postgres", "BEGIN", False, "postgres"
    key_kinds = postgres_types.KEYS

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def kinds(self) -> Sequence[Kind]:
        """See `Database`."""
        return postgres_types.KINDS

    @contextlib.contextmanager
    def open(self) -> Iterator[Opened]:
        """See `Database`."""
        with fresh_database(self._server) as dsn, contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(SESSIONS)]
            sessions[0].execute(postgres_types.DEFINITIONS.encode())
            name = sessions[0].info.dbname
            yield Opened(
                name=name,
                home="public",
                connector="postgresql",
                source={"kind": "postgres", "dsn": dsn},
                executes=[_postgres(session) for session in sessions],
                properties={
                    "publication.name": "debezium",
                    "publication.autocreate.mode": "disabled",  # see sources/debezium/inputs/engine/publication.py
                    "slot.name": f"debezium_{name}",
                    "slot.retry.delay.ms": "500",  # after a kill, the server may need a moment to free the slot
                    "database.hostname": "127.0.0.1",
                    "database.port": str(self._server.port),
                    "database.dbname": name,
                    "database.user": "postgres",
                    "interval.handling.mode": "string",
                    "hstore.handling.mode": "map",
                },
            )

    def last(self, tables: Sequence[str]) -> Iterator[str]:
        """See `Database`."""
        yield f"CREATE PUBLICATION debezium FOR TABLE {', '.join(tables)}"

    def cut(self) -> None:
        """See `Database`."""
        with psycopg.connect(self._server.dsn(), autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")

    def created(self, random: Random, table: Table) -> Iterator[str]:
        """See `Database`."""
        yield _create(table, "")
        if random.random() < 0.7:
            yield f"ALTER TABLE {table.name} REPLICA IDENTITY FULL"
        for name, kind in table.columns.items():
            if kind.definition in ("text", "bytea", "jsonb", "hstore", "int[]"):
                yield f"ALTER TABLE {table.name} ALTER {name} SET STORAGE EXTERNAL"

    def alteration(self, random: Random, table: Table) -> Alteration:
        """See `Database`."""
        return _altered(random, table, self.kinds(), POSTGRES_WIDER, "ALTER {name} TYPE {definition}")


def _postgres(session: psycopg.Connection) -> Execute:
    def execute(sql: str) -> None:
        session.execute(sql.encode())

    return execute


class Mysql:
    """A server of MySQL or MariaDB."""

    begin, scans = "BEGIN", True
    key_kinds = mysql_types.KEYS

    def __init__(self, server: MysqlServer) -> None:
        self._server = server
        self.name: str = server.flavour
        self.jars: str = server.flavour
        self._kinds = mysql_types.kinds(server.flavour, version_of(server))

    def kinds(self) -> Sequence[Kind]:
        """See `Database`."""
        return self._kinds

    @contextlib.contextmanager
    def open(self) -> Iterator[Opened]:
        """See `Database`."""
        server = self._server
        with fresh_mysql_database(server) as name, contextlib.ExitStack() as stack:
            executes = []
            for _ in range(SESSIONS):
                connection = stack.enter_context(server.connect(name))
                cursor = stack.enter_context(connection.cursor())
                cursor.execute("SET autocommit = 1, sql_mode = '', SESSION transaction_isolation = 'READ-COMMITTED'")
                executes.append(_mysql(cursor))
            mysql = server.flavour == "mysql"
            yield Opened(
                name=name,
                home=name,
                connector=server.flavour,
                source={"kind": "mysql", "dsn": f"mysql://root@{server.host}:{server.port}/{name}"},
                executes=executes,
                properties={
                    "database.ssl.mode": "disabled" if mysql else "disable",
                    "database.hostname": server.host,
                    "database.port": str(server.port),
                    "database.user": "root",
                    "database.password": "",
                    "database.server.id": "7001",
                    "database.include.list": name,
                    "bigint.unsigned.handling.mode": "precise",
                    "enable.time.adjuster": "false",
                },
            )

    def last(self, tables: Sequence[str]) -> Iterator[str]:
        """See `Database`."""
        yield from ()

    def cut(self) -> None:
        """See `Database`."""
        with self._server.connect() as connection, connection.cursor() as admin:
            admin.execute("SELECT id FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'")
            for (session,) in admin.fetchall():
                with contextlib.suppress(pymysql.OperationalError):  # it has ended by itself
                    admin.execute(f"KILL {session}")

    def created(self, random: Random, table: Table) -> Iterator[str]:
        """See `Database`."""
        yield _create(table, " CHARACTER SET utf8mb4")

    def alteration(self, random: Random, table: Table) -> Alteration:
        """See `Database`."""
        return _altered(random, table, self._kinds, MYSQL_WIDER, "MODIFY {name} {definition}")


def _mysql(cursor: Cursor) -> Execute:
    def execute(sql: str) -> None:
        cursor.execute(sql)

    return execute


POSTGRES_WIDER = {
    "smallint": "integer",
    "integer": "bigint",
    "varchar(20)": "text",
    "numeric(12,2)": "numeric(38,10)",
    "real": "double precision",
    "timestamp(0)": "timestamp",
    "json": "jsonb",
}
MYSQL_WIDER = {
    "TINYINT": "INT",
    "SMALLINT": "BIGINT",
    "INT": "BIGINT",
    "FLOAT": "DOUBLE",
    "DECIMAL(5,0)": "DECIMAL(14,4)",
    "DATETIME(0)": "DATETIME(6)",
    "TIME(1)": "TIME(5)",
    "VARBINARY(5)": "VARBINARY(300)",
    "TEXT CHARACTER SET utf8mb4": "LONGTEXT CHARACTER SET utf8mb4",
}
"""For some types, another type that can hold all of their values."""


def _create(table: Table, more: str) -> str:
    keys = [f"{column.name} {column.definition} NOT NULL" for column in table.key]
    columns = [f"{name} {kind.definition}" for name, kind in table.columns.items()]
    key = f"PRIMARY KEY ({', '.join(column.name for column in table.key)})"
    return f"CREATE TABLE {table.name} ({', '.join([*keys, *columns, key])}){more}"


def _altered(random: Random, table: Table, kinds: Sequence[Kind], wider: Mapping[str, str], modify: str) -> Alteration:
    columns = dict(table.columns)
    retyped = [name for name, kind in columns.items() if kind.definition in wider]
    choices = ["add", "rename"] + ["drop"] * (len(columns) > 3) + ["modify"] * bool(retyped)
    choice = random.choice(choices)
    name = random.choice(sorted(columns))
    if choice == "add":
        name, kind = table.new_column(), random.choice(kinds)
        sql = f"ADD COLUMN {name} {kind.definition}"
        columns[name] = kind
    elif choice == "drop":
        sql = f"DROP COLUMN {name}"
        del columns[name]
    elif choice == "rename":
        new = table.new_column()
        sql = f"RENAME COLUMN {name} TO {new}"
        columns = {new if of == name else of: kind for of, kind in columns.items()}
        table.note(new, table.rules[name])
    else:
        name = random.choice(retyped)
        kind = next(of for of in kinds if of.definition == wider[columns[name].definition])
        sql = modify.format(name=name, definition=kind.definition)
        columns[name] = kind
    for of, kind in columns.items():
        table.note(of, kind.listed)
    return Alteration(sql=f"ALTER TABLE {table.name} {sql}", columns=columns)


def random_tables(random: Random, database: Database, columns: int) -> list[Table]:
    """Returns tables with keys and columns of random types."""
    kinds = list(database.kinds())
    random.shuffle(kinds)
    tables = []
    for number in range(3):
        chosen = [kinds[place % len(kinds)] for place in range(number * columns, (number + 1) * columns)]
        # The key of the first table always has the first type, an integer.
        keys = database.key_kinds[:1] if number == 0 else random.sample(database.key_kinds, random.randrange(1, 3))
        tables.append(
            Table(
                name=f"t{number}",
                key=tuple(
                    KeyColumn(name=f"k{place}", definition=definition, literal=literal)
                    for place, (definition, literal) in enumerate(keys)
                ),
                columns={f"c{place}": kind for place, kind in enumerate(chosen)},
            )
        )
    return tables


@contextlib.contextmanager
def running(name: str) -> Iterator[Database]:
    """Runs the server of this name until the `with` block ends."""
    if name == "postgres":
        with temporary_server(settings=SETTINGS) as server:
            yield Postgres(server)
    else:
        with mysql_server(name) as mysql:
            yield Mysql(mysql)
