"""Tests that no change is lost or repeated when a standby is promoted while the service runs. The service must refuse a
standby that lacks published changes.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._judge import judge, rows
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import Oracle
from tests.campaigns._service import Service, is_read
from tests.patience import PATIENCE_S
from tests.servers import reload

pytestmark = pytest.mark.campaign

SCALE = Scale(universe=2_000, big=300, pause_s=0.02)

CONFIG = """
name = "promoted"
[source]
kind = "postgres"
dsn = "{dsn}"
failover = true
[sink]
path = "changelog"
commit_seconds = 0.1
[service]
listen = "127.0.0.1:0"
"""


class Pair:
    """A primary server, and a standby that has copies of the primary's replication slots."""

    def __init__(self, primary: PostgresServer, *, standby_first: bool) -> None:
        """With `standby_first`, the primary's logical slots send only changes that the standby already has."""
        self.primary = primary
        folder = primary.data_dir.parent / "standby"
        source = make_conninfo(primary.dsn(), application_name="standby")
        primary.run("pg_basebackup", "-D", str(folder), "-d", source, "-C", "-S", "standby", "-c", "fast")
        (folder / "standby.signal").touch()
        self.standby = PostgresServer(
            primary.bin_dir,
            folder,
            settings={
                "fsync": "off",
                "primary_conninfo": source,
                "primary_slot_name": "standby",
                "hot_standby_feedback": "on",
                "sync_replication_slots": "on",
            },
        )
        self.standby.start()
        if standby_first:
            execute(primary, "ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
            reload(primary.dsn())

    @property
    def dsn(self) -> str:
        """A connection string for the server that accepts writes."""
        ports = f"{self.primary.port},{self.standby.port}"
        return make_conninfo(
            host="127.0.0.1,127.0.0.1",
            port=ports,
            dbname="postgres",
            user="postgres",
            target_session_attrs="read-write",
        )

    def wait_synchronised(self, *slots: str) -> None:
        """Waits until the standby has usable copies of the slots."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            copies = execute(self.standby, "SELECT slot_name FROM pg_replication_slots WHERE synced AND NOT temporary")
            if {name for (name,) in copies} >= set(slots):
                return
            execute(self.primary, "SELECT pg_log_standby_snapshot()")
            time.sleep(0.1)
        raise AssertionError("the slots were not synchronised")

    def promote(self) -> None:
        """Kills the primary for good, and promotes the standby."""
        self.primary.kill()
        execute(self.standby, "SELECT pg_promote()")


def execute(server: PostgresServer, *statements: str) -> list[tuple[object, ...]]:
    """Runs the statements. Returns the rows of the last statement."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        last_rows: list[tuple[object, ...]] = []
        for statement in statements:
            cursor = connection.execute(statement.encode())
            last_rows = cursor.fetchall() if cursor.description else []
        return last_rows


@contextlib.contextmanager
def pair(*, standby_first: bool) -> Iterator[Pair]:
    with temporary_server(settings={"fsync": "off"}) as primary:
        servers = Pair(primary, standby_first=standby_first)
        try:
            yield servers
        finally:
            servers.standby.stop("immediate")


@pytest.fixture
def folder(starts_servers: None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="changelog-promotion-") as name:
        yield Path(name)


def begin(servers: Pair, folder: Path) -> Service:
    config = folder / "changelog.toml"
    config.write_text(CONFIG.format(dsn=servers.dsn) + ENTITIES, "utf-8")
    return Service(config)


def test_a_promotion_under_load_loses_nothing_and_starts_a_new_epoch(folder: Path, seed: int) -> None:
    log = folder / "changelog"
    with pair(standby_first=True) as servers:
        prepare(servers.dsn, 1_000)
        oracle = Oracle(servers.dsn, folder / "frames", failover=True)
        service = begin(servers, folder)
        load = Load(servers.dsn, SCALE, seed)
        try:
            service.start()
            slot_lsn = service.slot_made(servers.dsn, "promoted")
            load.start()
            servers.wait_synchronised("promoted", "oracle")
            service.until(log, is_read, PATIENCE_S)
            servers.promote()
            time.sleep(2.0)
            load.stop()
            end = last_write(servers.dsn)
            service.until(log, lambda checkpoint: through_lsn(checkpoint) > end, PATIENCE_S)
            oracle.wait(end, PATIENCE_S)
            service.stop()
        finally:
            service.kill()
            oracle.stop()
        judge(servers.dsn, log, oracle.expected(slot_lsn))
        [(timeline,)] = execute(
            servers.standby, "SELECT (pg_split_walfile_name(pg_walfile_name(pg_current_wal_lsn()))).timeline_id"
        )
    assert timeline == 2
    epochs = [row.position[:8] for row in rows(log)]
    assert set(epochs) == {"00000001", "00000002"}
    assert epochs == sorted(epochs)


def test_a_standby_that_lacks_published_changes_is_refused(folder: Path) -> None:
    log = folder / "changelog"
    with pair(standby_first=False) as servers:
        prepare(servers.dsn, 100)
        service = begin(servers, folder)
        try:
            service.start()
            service.until(log, is_read, PATIENCE_S)
            servers.wait_synchronised("promoted")
            servers.standby.stop()
            end = last_write(servers.primary.dsn())
            service.until(log, lambda checkpoint: through_lsn(checkpoint) > end, PATIENCE_S)
            row_count = sum(1 for _ in rows(log))
            servers.primary.kill()
            servers.standby.start()
            execute(servers.standby, "SELECT pg_promote()")
            deadline = time.monotonic() + PATIENCE_S
            while service.exit_code is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert service.exit_code == 3, service.said()[-1000:]
        finally:
            service.kill()
        message = json.loads(service.said().strip().splitlines()[-1])["error"]
        assert message.startswith("the changelog reaches ")
        assert "the server lacks commits that were published" in message
        assert sum(1 for _ in rows(log)) == row_count
