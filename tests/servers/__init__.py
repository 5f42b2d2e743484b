"""The servers that integration tests run against, and fresh databases in them."""

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

from changelog.connectors.servers.kafka import BRIEF, find_java
from changelog.connectors.servers.postgres import Server, find_bin
from changelog.envelope.errors import ChangelogError
from tests.patience import PATIENCE_S, until

CACHE = Path(__file__).parents[2] / ".cache"
"""Where make puts what it fetches."""

POSTGRES_15_BIN = Path("/usr/lib/postgresql/15/bin")

VERSIONS = [
    *(pytest.param(version, marks=pytest.mark.xdist_group(f"postgres-{version}")) for version in (14, 16, 17)),
    *(15, 18),
]
"""Parameters for tests on every supported PostgreSQL; one worker starts those that serve nothing else."""

HASTY_JAVA = " ".join(BRIEF)
"""As one setting of Spark's."""

SLEEPING = Path(__file__).parent / "sleeping"
"""What Python imports as it starts, where libfaketime would make it fail."""

SETTINGS = {"fsync": "off"}
"""No test pulls the plug of the machine; killing the server loses nothing without fsync."""


def postgres_bin(version: int) -> Path:
    """The programs of a PostgreSQL: the wheel's 18, Debian's 15, others as fetched; skips or fails without them."""
    if version == 18:
        return find_bin()
    if version == 15:
        if not (POSTGRES_15_BIN / "postgres").exists():
            missing("PostgreSQL 15 is missing: apt-get install postgresql-15")
        return POSTGRES_15_BIN
    return fetched(f"postgres-{version}") / "bin"


def server_name(version: int) -> str:
    """The fixture of a PostgreSQL."""
    return "server" if version == 18 else f"server_{version}"


def fetched(name: str) -> Path:
    """The folder of a server that make fetches; skips or fails without it."""
    if not (CACHE / name / ".done").exists():
        missing(f"{name} was not fetched: make .cache/{name}/.done")
    return CACHE / name


def kafka_lib() -> Path:
    """Kafka's jars, with a Java to run them; skips or fails without."""
    java_needed()
    return fetched("kafka") / "lib"


def java_needed() -> None:
    """Skips or fails without a Java that is new enough."""
    try:
        find_java()
    except ChangelogError as error:
        missing(str(error))


def promtool() -> str:
    """Prometheus's tool that checks rules and metrics; skips or fails without it."""
    program = shutil.which("promtool") or shutil.which("promtool", path=CACHE / "promtool/usr/bin")
    if program is None:
        missing("promtool is missing: apt-get install prometheus")
    return program


def clock_of(file: Path) -> dict[str, str] | None:
    """The environment of a process whose wall clock is off by what `file` says, from one moment to the next; its
    monotonic clock is the real one. None without libfaketime.
    """
    environment = clock_off(0)
    if environment is not None:
        del environment["FAKETIME"]
        environment |= {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SLEEPING), os.environ.get("PYTHONPATH"))))
    return environment


def clock_off(seconds: int) -> dict[str, str] | None:
    """The environment of a process whose wall clock is off by so much as long as it runs, and reads no file to know
    it: PostgreSQL asks for the time where a signal is handled. None without libfaketime.
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
    """Skips the test for want of a system package or a server, and fails it where CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@contextlib.contextmanager
def fresh_database(server: Server) -> Iterator[str]:
    """The connection string of a new, empty database; it and its replication slots are dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        # Copied as files, it is there in a third of the time, and its 7 MB are not in the log that every slot reads.
        strategy = sql.SQL("STRATEGY file_copy" if admin.info.server_version >= 150000 else "")
        admin.execute(sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), strategy))
    yield server.dsn(name)
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        drop_slots(admin, name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def drop_slots(admin: psycopg.Connection, database: str) -> None:
    """Drops the database's replication slots, ending whoever still reads them."""
    admin.execute(
        "SELECT pg_terminate_backend(active_pid, %s) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        [round(PATIENCE_S * 1000), database],
    )
    admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [database]
    )


def reload(dsn: str) -> None:
    """Has the server read its settings and its pg_hba.conf again, and waits until sessions that begin now have them.

    Processes that run already are signalled by then, and act upon a setting when they get to it.
    """
    with psycopg.connect(dsn, autocommit=True) as admin:
        asked_at = admin.execute("SELECT clock_timestamp(), pg_reload_conf()").fetchone()
    assert asked_at is not None
    until(lambda: _loaded_at(dsn) > asked_at[0], "the server does not read its settings again")


def _loaded_at(dsn: str) -> datetime:
    """When the settings were read that a new session has."""
    with psycopg.connect(dsn, autocommit=True) as session:
        [[loaded_at]] = session.execute("SELECT pg_conf_load_time()").fetchall()
        assert isinstance(loaded_at, datetime)
        return loaded_at


def lose_log(dsn: str, slot: str) -> None:
    """Has the server remove log that the slot needs, as it does for want of room."""
    wal_status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        reload(dsn)
        try:
            # The checkpointer reads its settings when it gets to it: a first CHECKPOINT may still keep the log.
            while admin.execute(wal_status, [slot]).fetchone() != ("lost",):
                assert time.monotonic() < deadline, "the server keeps the log"
                for statement in ("CREATE TABLE filler ()", "DROP TABLE filler", "SELECT pg_switch_wal()") * 3:
                    admin.execute(statement)
                admin.execute("CHECKPOINT")
        finally:
            admin.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            reload(dsn)
