"""Tests that the service survives a server that hangs. In some tests, one session hangs, because its backend is
stopped. In others, all answers of the server are lost, or the server cannot be reached.
"""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors import config
from changelog.connectors.capture.tables import sweeper
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.patience import Patience
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.service import service
from changelog.connectors.service.service import Service
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.wiring import sources
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Signal
from tests.integration.site import Running, Site
from tests.patience import PATIENCE_S
from tests.proxy import Proxy
from tests.servers import SETTINGS, fresh_database

CONFIG = """
[source]
kind = "postgres"
dsn = {dsn}
snapshot_workers = 1
query_timeout_seconds = {limit}
read_timeout_seconds = {limit}
[sink]
path = "log"
commit_seconds = 0.05
[service]
listen = "127.0.0.1:0"
[entities.guest]
table = "guest"
"""

SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'changelog' AND {condition}
"""
STREAMING = "backend_type = 'walsender'"
CATALOGUE = """backend_start = (
    SELECT min(backend_start) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'changelog' AND backend_type = 'client backend'
)"""
WATCHING = "state = 'idle' AND query LIKE '%pg_publication_rel%'"
READING = "state = 'idle in transaction'"
SIGNALLING = f"state = 'idle' AND query LIKE '%WITH RECURSIVE used(type)%' AND NOT {CATALOGUE}"
SWEEPING = "query = 'SELECT pg_current_snapshot()::text' AND state = 'idle'"
"""Each constant from `STREAMING` to `SWEEPING` is a condition for `SESSIONS` that only one session of the service
meets. The constant's name says what this session is for.
"""


NEW_TYPE = [
    "CREATE TYPE mood AS ENUM ('glad')",
    "ALTER TABLE guest ADD mood mood",
    "INSERT INTO guest VALUES (4, 'name', 'glad')",
]
"""To decode the changes of these statements, the service must ask the catalogue about the new type."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the service ask often what the server waits for. If its slot is in use, the service soon stops waiting for
    the slot and connects again.
    """
    monkeypatch.setattr(service, "SAMPLE_S", 0.3)
    monkeypatch.setattr(sources, "_SLOT_PATIENCE_S", 0.3)


@pytest.fixture(scope="module")
def server(starts_servers: None) -> Iterator[PostgresServer]:
    """A server that only this module uses. Its walsenders end a connection that is silent for a second, and it allows
    prepared transactions.
    """
    settings = {**SETTINGS, "wal_sender_timeout": "1s", "max_prepared_transactions": "5"}
    with temporary_server(settings=settings) as new_server:
        yield new_server


@pytest.fixture
def site(server: PostgresServer, tmp_path: Path) -> Iterator["HungSite"]:
    with fresh_database(server) as dsn:
        yield HungSite(dsn, tmp_path)


class HungSite(Site):
    """A service that publishes a table of three rows. The service has short timeouts. Tests can stop the server's
    processes (backends) for its sessions.
    """

    def __init__(self, dsn: str, folder: Path) -> None:
        super().__init__(dsn, folder)
        self.sql("CREATE TABLE guest (id int PRIMARY KEY, name text)", "ALTER TABLE guest REPLICA IDENTITY FULL")
        self.sql("INSERT INTO guest SELECT g, 'name' FROM generate_series(1, 3) g")

    def write_config(self, *, dsn: str | None = None, limit: float = 1) -> None:
        text = CONFIG.format(dsn=json.dumps(dsn or self.dsn), limit=limit)
        self.config.write_text(f"name = {json.dumps(self.name)}\n{text}", "utf-8")

    @contextlib.contextmanager
    def running_with(self, reach: Reach = nowhere) -> Iterator[Running]:
        """Does what `running` does, and calls `reach` at each fail point."""
        running = Running(Service(config.load(self.config, os.environ), reach=reach))
        try:
            yield running
        finally:
            running.stop()
        running.check()

    def pid(self, condition: str) -> int:
        """Waits until exactly one session of the service matches the condition. Returns the pid of its backend."""
        deadline = time.monotonic() + PATIENCE_S / 2
        while len(backends := self.sql(SESSIONS.format(condition=f"({condition})"))) != 1:
            assert time.monotonic() < deadline, f"{len(backends)} sessions match {condition}"
            time.sleep(0.02)
        return int(backends[0][0])

    @contextlib.contextmanager
    def stopped(self, condition: str) -> Iterator[int]:
        """Stops the backend of the session that matches the condition, and lets it continue after the body has run."""
        pid = self.pid(condition)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)


class StopAt:
    """A callback for fail points. When the service first passes the named fail point, the callback stops the backend
    of one of the service's sessions.
    """

    def __init__(self, site: HungSite, name: str, condition: str) -> None:
        self._site, self._name, self._condition = site, name, condition
        self.pid: int | None = None

    def __call__(self, name: str) -> None:
        if name == self._name and self.pid is None:
            self.pid = self._site.pid(self._condition)
            os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)


def lost(running: Running, reason: str) -> Callable[[], bool]:
    return lambda: any(event["event"] == "connection lost" and reason in event["error"] for event in running.events())


# One connection


def test_an_unanswered_query_ends_and_closes_its_connection(site: HungSite) -> None:
    with connect(site.dsn, patience=Patience(silence_s=0.5)) as connection, connection.transaction():
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with (
                pytest.raises(psycopg.OperationalError, match=r"^no answer for 0\.5 s$"),
                connection.transaction(),
                connection.cursor() as cursor,
                cursor.copy("COPY (SELECT 1) TO STDOUT") as copy,
            ):
                copy.read()
            assert connection.closed
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_query_may_take_longer_than_the_timeout_if_the_server_keeps_sending_rows(site: HungSite) -> None:
    slow = "COPY (SELECT pg_sleep(0.3), repeat('x', 10000) FROM generate_series(1, 8)) TO STDOUT"
    with connect(site.dsn, patience=Patience(silence_s=2.0)) as connection, connection.cursor() as cursor:
        with cursor.copy(slow) as copy:
            assert sum(1 for _ in copy) == 8
        cursor.execute("SELECT 1")


@contextlib.contextmanager
def silent_hosts(count: int) -> Iterator[str]:
    """Yields a connection string with `count` hosts. They accept connections but never answer."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        ports = ",".join(str(listener.getsockname()[1]) for listener in listeners)
        yield make_conninfo(host=",".join(["127.0.0.1"] * count), port=ports, dbname="x", connect_timeout=2)


def test_connecting_to_silent_hosts_times_out() -> None:
    with silent_hosts(2) as dsn, pytest.raises(ChangelogError, match="timeout expired") as raised:
        connect(dsn)
    assert raised.value.kind is Kind.CONNECTION


def test_an_attempt_to_connect_does_not_outlast_the_service() -> None:
    begun_at = time.monotonic()
    patience = Patience(stopping=lambda: time.monotonic() > begun_at + 1)
    with silent_hosts(1) as dsn, pytest.raises(ChangelogError, match="the service is stopping") as raised:
        connect(make_conninfo(dsn, connect_timeout=3600), patience=patience)
    assert raised.value.kind is Kind.CONNECTION


# One of the service's sessions is stopped


@pytest.mark.parametrize(
    ("fail_point", "condition", "statements"),
    [
        ("window:begun", READING, ["INSERT INTO guest VALUES (4)"]),
        ("window:read", SIGNALLING, ["INSERT INTO guest VALUES (4)"]),
        ("loop:confirmed", CATALOGUE, NEW_TYPE),
        ("loop:confirmed", WATCHING, NEW_TYPE),
    ],
    ids=["reading", "signalling", "catalogue", "watching"],
)
def test_the_service_drops_a_hung_session_and_continues(
    site: HungSite, fail_point: str, condition: str, statements: list[str]
) -> None:
    site.write_config()
    stop_at = StopAt(site, fail_point, condition)
    try:
        with site.running_with(stop_at) as running:
            running.until(lambda: stop_at.pid is not None)
            site.sql(*statements)
            running.until(lost(running, "no answer for 1 s"))
            running.until(lambda: site.state("guest").keys() == {"1", "2", "3", "4"} and site.is_read())
            assert json.loads(running.get("live"))["ok"]
    finally:
        stop_at.wake()


def test_a_sweep_whose_session_hangs_begins_again(site: HungSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep searches the changelog for keys that the table may lack. The signal `rebuild` begins a sweep."""
    monkeypatch.setattr(sweeper, "SNAPSHOT_INTERVAL_S", 0.0)  # the sweep asks the server after each file that it reads
    site.write_config()
    stop_at = StopAt(site, "sweep:read", SWEEPING)
    try:
        with site.running_with(stop_at) as running:
            running.until(site.is_read)
            site.sql("INSERT INTO guest VALUES (4)")
            running.until(lambda: "4" in site.state("guest"))
            with psycopg.connect(site.dsn) as connection:
                send(connection, Signal(do="rebuild", id="r", entity="guest"), None)
            running.until(lost(running, "no answer for 1 s"))
            running.until(lambda: "r" in Repairs.parse(site.checkpoint.repairs).ended)
    finally:
        stop_at.wake()


def test_the_service_drops_a_hung_walsender_and_waits_for_its_slot(site: HungSite) -> None:
    site.write_config()
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1", "2", "3"})
        with site.stopped(STREAMING) as pid:
            site.sql("INSERT INTO guest VALUES (4)")
            running.until(lost(running, "PostgreSQL has been silent for 2 s"))
            running.until(lost(running, f"is still held by process {pid}, a lost session of this service"))
            assert json.loads(running.get("live"))["ok"]
        running.until(lambda: "4" in site.state("guest"))


# The whole server is unreachable


@pytest.mark.parametrize("how", ["mute", "hang", "stop"])
@pytest.mark.parametrize("limit", [1, 600], ids=["goes on", "stops at once"])
def test_the_service_waits_for_an_unreachable_server_and_can_be_stopped(
    site: HungSite, server: PostgresServer, how: str, limit: float
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        site.write_config(dsn=make_conninfo(site.dsn, port=proxy.port, connect_timeout=600), limit=limit)
        with site.running() as running:
            running.until(lambda: site.state("guest").keys() == {"1", "2", "3"})
            getattr(proxy, how)()
            site.sql(*NEW_TYPE)
            if limit == 1:
                running.until(lambda: running.said("connection lost"))
                proxy.resume()
                running.until(lambda: "4" in site.state("guest"))
            else:
                time.sleep(0.5)


# The slot is being created


@pytest.fixture
def transaction(site: HungSite) -> Iterator[str]:
    """The name of an open prepared transaction."""
    name = f"two phases of {site.name}"
    site.sql(f"BEGIN; INSERT INTO guest VALUES (0); PREPARE TRANSACTION '{name}'")
    yield name
    with contextlib.suppress(psycopg.errors.UndefinedObject):
        site.sql(f"ROLLBACK PREPARED '{name}'")


def waits_for(running: Running, name: str) -> Callable[[], bool]:
    return lambda: any(
        event["event"] == "the server sends nothing yet" and f"transaction '{name}', prepared at" in event["why"]
        for event in running.events()
    )


def test_a_first_start_reports_the_transaction_that_it_waits_for_and_stays_alive(
    site: HungSite, transaction: str
) -> None:
    limit_s = 3
    site.write_config(limit=limit_s)
    with site.running() as running:
        running.until(waits_for(running, transaction))
        health = json.loads(running.get("live"))
        assert (health["ok"], health["phase"]) == (True, "waiting")
        assert transaction in health["waiting"]
        time.sleep(1.5 * limit_s)  # longer than the service waits for an answer
        assert not running.said("connection lost")
        site.sql(f"COMMIT PREPARED '{transaction}'")
        running.until(lambda: site.state("guest").keys() == {"0", "1", "2", "3"})
        running.until(lambda: running.phase == "streaming")


def test_a_first_start_that_waits_stops_at_once_and_leaves_no_slot(site: HungSite, transaction: str) -> None:
    site.write_config(limit=600)
    with site.running() as running:
        running.until(waits_for(running, transaction))
    deadline = time.monotonic() + PATIENCE_S
    while site.sql(f"SELECT FROM pg_replication_slots WHERE slot_name = '{site.name}'"):
        assert time.monotonic() < deadline, "the server is still creating the slot, although the service has stopped"
        time.sleep(0.05)


def test_the_service_drops_a_walsender_that_hangs_while_it_creates_the_slot(site: HungSite, transaction: str) -> None:
    site.write_config()
    with site.running() as running:
        running.until(waits_for(running, transaction))
        with site.stopped(STREAMING):
            site.sql(f"COMMIT PREPARED '{transaction}'")
            running.until(lambda: running.said("connection lost"))
        running.until(lambda: site.state("guest").keys() == {"0", "1", "2", "3"})
