"""Starts the servers that integration tests need, and creates fresh databases in them."""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
from psycopg import sql

from changelog.connectors.debezium.launch import OWN_JAR
from changelog.connectors.java.program import find_java
from changelog.connectors.servers.kafka import BRIEF
from changelog.connectors.servers.postgres import PostgresServer, find_bin
from changelog.envelope.errors import ChangelogError
from tests.patience import PATIENCE_S, until

CACHE = Path(__file__).parents[2] / ".cache"
"""The folder into which `make` downloads servers."""

POSTGRES_15_BIN = Path("/usr/lib/postgresql/15/bin")

VERSIONS = [
    *(pytest.param(version, marks=pytest.mark.xdist_group(f"postgres-{version}")) for version in (14, 16, 17)),
    *(15, 18),
]
"""Parameters for tests that run on every supported PostgreSQL. Only such tests start the versions 14, 16 and 17. All
tests on one of these versions run in the same worker, so that the server is started only once.
"""

OPTIONAL = frozenset({"mariadb-11.8", "mysql-9"})
"""Servers whose tests are skipped, even with CI=true, if the packages of the Debian release cannot be fetched.
With CI=true, the tests of every other server must run.
"""

SPARK_CLASSES = CACHE / "spark-classes" / "classes.jsa"
"""An archive of the classes that Spark loads. It saves a third of the CPU time of Spark's start and first queries."""

HASTY_JAVA = " ".join(
    (*BRIEF, "-XX:ReservedCodeCacheSize=256m", f"-XX:SharedArchiveFile='{SPARK_CLASSES}'", "-Xlog:disable")
)
"""Options of a short-lived Java virtual machine, as the value of one Spark setting.

The code cache is larger than the default of 48 MB: Spark's queries would fill 48 MB, and Java would then spend time on
finding code to remove. `-Xlog:disable` suppresses the warning that Java prints if the archive of classes does not fit.
"""

HASTY_WORKERS = {"spark.python.daemon.module": "tests.servers.spark_workers"}
"""Settings of a Spark that only tests use. With them, its Python workers spend less time on each task. The workers
import a module of this checkout, so the checkout must be on their path or be the working directory of Spark.
"""

HASTY_SPARK = f'--driver-java-options "{HASTY_JAVA}" --conf ' + " --conf ".join(map("=".join, HASTY_WORKERS.items()))
"""HASTY_JAVA and HASTY_WORKERS as options of `spark-submit`, for the variable PYSPARK_SUBMIT_ARGS."""

SLEEPING = Path(__file__).parent / "sleeping"
"""The folder of a sitecustomize.py. If the folder is on Python's path, Python imports this file when it starts. Without
the file, `time.sleep` can fail under libfaketime.
"""

SETTINGS = {"fsync": "off"}
"""Settings of PostgreSQL in tests. They turn fsync off to save time. Without fsync, a server that is killed still loses
nothing; only a power cut would lose data, and no test causes one.
"""

SERVICE_THREAD = "tested service"
"""The name of the thread in which tests run a service. While this thread runs, logging is not reset after each test; it
stays as the service configured it.
"""

KEEPING_MESSAGES = {"log.cleaner.backoff.ms": "1000000000", "log.retention.check.interval.ms": "1000000000"}
"""Settings with which a broker removes no messages. Many tests publish changes of a fixed day in the past, and read all
of them. By default, Kafka could remove such old messages at once.
"""

FEW_THREADS = {"num.io.threads": "3", "num.network.threads": "1"}
"""Settings with which an idle broker takes less CPU time, because each of its threads wakes up three times a second."""


def postgres_bin(version: int) -> Path:
    """Returns the folder of this PostgreSQL version's programs. Skips or fails the test if they are missing.

    Version 18 comes from a wheel, and version 15 from Debian; `make` downloads the others.
    """
    if version == 18:
        return find_bin()
    if version == 15:
        if not (POSTGRES_15_BIN / "postgres").exists():
            missing("PostgreSQL 15 is missing: apt-get install postgresql-15")
        return POSTGRES_15_BIN
    return fetched(f"postgres-{version}") / "bin"


def server_name(version: int) -> str:
    """Returns the name of the fixture that runs a server of this PostgreSQL version."""
    return "server" if version == 18 else f"server_{version}"


def fetched(name: str) -> Path:
    """Returns the folder of a server that `make` downloads. Skips or fails the test if it is missing."""
    if not (CACHE / name / ".done").exists():
        reason = f"{name} was not fetched: make .cache/{name}/.done"
        if name in OPTIONAL:
            pytest.skip(reason)
        missing(reason)
    return CACHE / name


def kafka_lib() -> Path:
    """Returns the folder of Kafka's jars. Skips or fails the test if they, or a Java to run them, are missing."""
    java_needed()
    return fetched("kafka") / "lib"


def engine_jars(connector: str) -> Path:
    """Returns the folder of Debezium's jars for this connector. Skips or fails the test if anything that the Debezium
    process needs is missing.
    """
    java_needed()
    if not OWN_JAR.exists():
        missing("the jar of the Debezium process was not built: make engine")
    return fetched(f"engine-{connector}")


def java_needed() -> None:
    """Skips or fails the test if no Java is new enough."""
    try:
        find_java()
    except ChangelogError as error:
        missing(str(error))


def promtool() -> str:
    """Returns the path of promtool, which checks Prometheus's rules and metrics. Skips or fails the test if it is
    missing.
    """
    program = shutil.which("promtool") or shutil.which("promtool", path=CACHE / "promtool/usr/bin")
    if program is None:
        missing("promtool is missing: apt-get install prometheus")
    return program


def clock_of(file: Path) -> dict[str, str] | None:
    """Returns environment variables that shift a process's wall clock by the offset in `file`. Returns None if
    libfaketime is not installed.

    A change of the file takes effect at once. The process's monotonic clock is not shifted.
    """
    environment = clock_off(0)
    if environment is not None:
        del environment["FAKETIME"]
        environment |= {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SLEEPING), os.environ.get("PYTHONPATH"))))
    return environment


def clock_off(seconds: int) -> dict[str, str] | None:
    """Returns environment variables that shift a process's wall clock by a fixed number of `seconds`. Returns None if
    libfaketime is not installed.

    Unlike with `clock_of`, the offset is in the environment and not in a file. This is for PostgreSQL, which reads the
    clock in signal handlers: libfaketime would read the file there, and it is not safe to read a file there.
    """
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
    if library is None:
        return None
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{seconds:+d}",
        "FAKETIME_CACHE_DURATION": "1000000000",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def missing(what: str) -> NoReturn:
    """Skips the test because a system package or a server is missing. Fails it if CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@contextlib.contextmanager
def fresh_database(server: PostgresServer) -> Iterator[str]:
    """Yields the connection string of a new, empty database. Drops it and its replication slots afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        # The strategy file_copy takes a third of the time that the default, wal_log, takes. Also, wal_log writes 7 MB
        # to the log, and all slots have to read them.
        strategy = sql.SQL("STRATEGY file_copy" if admin.info.server_version >= 150000 else "")
        admin.execute(sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), strategy))
    yield server.dsn(name)
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        drop_slots(admin, name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def drop_slots(admin: psycopg.Connection, database: str) -> None:
    """Terminates the sessions that still read the database's replication slots, and drops the slots."""
    admin.execute(
        "SELECT pg_terminate_backend(active_pid, %s) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        [round(PATIENCE_S * 1000), database],
    )
    admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [database]
    )


def reload(dsn: str) -> None:
    """Makes the server reload its settings and pg_hba.conf. Waits until new sessions use them.

    Processes that were already running have been signalled by then, but apply the settings a little later.
    """
    with psycopg.connect(dsn, autocommit=True) as admin:
        asked_at = admin.execute("SELECT clock_timestamp(), pg_reload_conf()").fetchone()
    assert asked_at is not None
    until(lambda: _loaded_at(dsn) > asked_at[0], "the server does not reload its settings")


def _loaded_at(dsn: str) -> datetime:
    """Returns when the settings of a new session were loaded."""
    with psycopg.connect(dsn, autocommit=True) as session:
        [[loaded_at]] = session.execute("SELECT pg_conf_load_time()").fetchall()
        assert isinstance(loaded_at, datetime)
        return loaded_at


def lose_log(dsn: str, slot: str) -> None:
    """Makes the server remove log that the slot needs, as it does when the slot holds back too much log."""
    wal_status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        reload(dsn)
        try:
            # The checkpointer reloads its settings with a delay, so the first CHECKPOINT may still keep the log.
            while admin.execute(wal_status, [slot]).fetchone() != ("lost",):
                assert time.monotonic() < deadline, "the server still has the log that the slot needs"
                for statement in ("CREATE TABLE filler ()", "DROP TABLE filler", "SELECT pg_switch_wal()") * 3:
                    admin.execute(statement)
                admin.execute("CHECKPOINT")
        finally:
            admin.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            reload(dsn)
