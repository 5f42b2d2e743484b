"""A server that hangs: one backend of ours stopped, its answers swallowed, or the whole of it out of reach."""

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
import structlog
from psycopg.conninfo import make_conninfo

from changelog.connectors import config
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.service import service
from changelog.connectors.service.service import Service
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.session.patience import Patience
from changelog.connectors.sources.postgres.snapshot import table_reads
from changelog.connectors.wiring import sources
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Signal
from tests.integration.site import Running, Site
from tests.patience import PATIENCE_S
from tests.proxy import Proxy
from tests.servers import SETTINGS, fresh_database

HASTY = """
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

OURS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'changelog' AND {which}
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


NEW_TYPE = [
    "CREATE TYPE mood AS ENUM ('glad')",
    "ALTER TABLE guest ADD mood mood",
    "INSERT INTO guest VALUES (4, 'name', 'glad')",
]
"""The stream has to ask the catalogue for the type."""


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server waits for is asked often, and a slot that is held is waited for only by connecting again."""
    monkeypatch.setattr(service, "SAMPLE_S", 0.3)
    monkeypatch.setattr(sources, "_SLOT_PATIENCE_S", 0.3)


@pytest.fixture(scope="module")
def server(starts_servers: None) -> Iterator[Server]:
    """A server of this module's own, whose walsenders soon miss us, and which has prepared transactions."""
    settings = {**SETTINGS, "wal_sender_timeout": "1s", "max_prepared_transactions": "5"}
    with temporary_server(settings=settings) as running:
        yield running


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator["HungSite"]:
    with fresh_database(server) as dsn:
        yield HungSite(dsn, tmp_path)


class HungSite(Site):
    """A service over one table of three rows, with little patience, of whose sessions some can be stopped."""

    def __init__(self, dsn: str, folder: Path) -> None:
        super().__init__(dsn, folder)
        self.sql("CREATE TABLE guest (id int PRIMARY KEY, name text)", "ALTER TABLE guest REPLICA IDENTITY FULL")
        self.sql("INSERT INTO guest SELECT g, 'name' FROM generate_series(1, 3) g")

    def write_config(self, *, dsn: str | None = None, limit: float = 1) -> None:
        text = HASTY.format(dsn=json.dumps(dsn or self.dsn), limit=limit)
        self.config.write_text(f"name = {json.dumps(self.name)}\n{text}", "utf-8")

    @contextlib.contextmanager
    def running_with(self, reach: Reach = nowhere) -> Iterator[Running]:
        """As `running`, with fail points."""
        running = Running(Service(config.load(self.config, os.environ), reach=reach))
        try:
            yield running
        finally:
            running.stop()
        running.check()

    def pid(self, which: str) -> int:
        """The backend of the one session of ours that fits, once there is one."""
        deadline = time.monotonic() + PATIENCE_S / 2
        while len(found := self.sql(OURS.format(which=f"({which})"))) != 1:
            assert time.monotonic() < deadline, f"{len(found)} sessions are {which}"
            time.sleep(0.02)
        return int(found[0][0])

    @contextlib.contextmanager
    def stopped(self, which: str) -> Iterator[int]:
        """SIGSTOP for that backend."""
        pid = self.pid(which)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)


class StopAt:
    """At a fail point, for the first time it is passed, stops the backend of one of the service's sessions."""

    def __init__(self, site: HungSite, name: str, which: str) -> None:
        self._site, self._name, self._which = site, name, which
        self.pid: int | None = None

    def __call__(self, name: str) -> None:
        if name == self._name and self.pid is None:
            self.pid = self._site.pid(self._which)
            os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)


def lost(running: Running, why: str) -> Callable[[], bool]:
    return lambda: any(each["event"] == "connection lost" and why in each["error"] for each in running.events())


# One connection


def test_a_query_that_is_not_answered_ends_and_nothing_waits_after_it(site: HungSite) -> None:
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


def test_only_silence_counts_not_how_long_it_takes(site: HungSite) -> None:
    slow = "COPY (SELECT pg_sleep(0.3), repeat('x', 10000) FROM generate_series(1, 8)) TO STDOUT"
    with connect(site.dsn, patience=Patience(silence_s=2.0)) as connection, connection.cursor() as cursor:
        with cursor.copy(slow) as copy:
            assert sum(1 for _ in copy) == 8
        cursor.execute("SELECT 1")


@contextlib.contextmanager
def deaf(count: int) -> Iterator[str]:
    """The connection string of hosts that accept and never answer."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        ports = ",".join(str(each.getsockname()[1]) for each in listeners)
        yield make_conninfo(host=",".join(["127.0.0.1"] * count), port=ports, dbname="x", connect_timeout=2)


def test_hosts_that_accept_and_never_answer_are_given_up_each_in_its_time() -> None:
    with deaf(2) as dsn, pytest.raises(ChangelogError, match="timeout expired") as raised:
        connect(dsn)
    assert raised.value.kind is Kind.CONNECTION


def test_an_attempt_to_connect_does_not_outlast_the_service() -> None:
    began = time.monotonic()
    stops = Patience(stopping=lambda: time.monotonic() > began + 1)
    with deaf(1) as dsn, pytest.raises(ChangelogError, match="the service is stopping") as raised:
        connect(make_conninfo(dsn, connect_timeout=3600), patience=stops)
    assert raised.value.kind is Kind.CONNECTION


# The service, one session of which is stopped


@pytest.mark.parametrize(
    ("at", "which", "writing"),
    [
        ("window:begun", READING, ["INSERT INTO guest VALUES (4)"]),
        ("window:read", SIGNALLING, ["INSERT INTO guest VALUES (4)"]),
        ("loop:confirmed", CATALOGUE, NEW_TYPE),
        ("loop:confirmed", WATCHING, NEW_TYPE),
    ],
    ids=["reading", "signalling", "catalogue", "watching"],
)
def test_a_hung_session_is_lost_and_the_service_goes_on(
    site: HungSite, at: str, which: str, writing: list[str]
) -> None:
    site.write_config()
    stop_at = StopAt(site, at, which)
    try:
        with site.running_with(stop_at) as running:
            running.until(lambda: stop_at.pid is not None)
            site.sql(*writing)
            running.until(lost(running, "no answer for 1 s"))
            running.until(lambda: site.state("guest").keys() == {"1", "2", "3", "4"} and site.is_read())
            assert json.loads(running.get("live"))["ok"]
    finally:
        stop_at.wake()


def test_a_hung_sweep_is_lost_and_begins_again(site: HungSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reads, "GLANCE_S", 0.0)  # the sweep asks the server at each file of the changelog
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
    stop_at = StopAt(site, "sweep:read", SWEEPING)


def test_a_hung_walsender_is_lost_and_its_slot_waited_for(site: HungSite) -> None:
    site.write_config()
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1", "2", "3"})
        with site.stopped(STREAMING) as pid:
            site.sql("INSERT INTO guest VALUES (4)")
            running.until(lost(running, "PostgreSQL has been silent for 2 s"))
            running.until(lost(running, f"is still held by process {pid}, a lost session of this service"))
            assert json.loads(running.get("live"))["ok"]
        running.until(lambda: "4" in site.state("guest"))


# The whole server out of reach


@pytest.mark.parametrize("how", ["mute", "hang", "stop"])
@pytest.mark.parametrize("limit", [1, 600], ids=["goes on", "stops at once"])
def test_a_server_out_of_reach(site: HungSite, server: Server, how: str, limit: float) -> None:
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


# A slot that is being made


@pytest.fixture
def prepared(site: HungSite) -> Iterator[str]:
    """The name of a prepared transaction, open."""
    name = f"two phases of {site.name}"
    site.sql(f"BEGIN; INSERT INTO guest VALUES (0); PREPARE TRANSACTION '{name}'")
    yield name
    with contextlib.suppress(psycopg.errors.UndefinedObject):
        site.sql(f"ROLLBACK PREPARED '{name}'")


def waits_for(running: Running, name: str) -> Callable[[], bool]:
    return lambda: any(
        each["event"] == "the server sends nothing yet" and f"prepared transaction '{name}'" in each["why"]
        for each in running.events()
    )


def test_a_first_start_says_which_transaction_it_waits_for_and_stays_alive(site: HungSite, prepared: str) -> None:
    limit_s = 3
    site.write_config(limit=limit_s)
    with site.running() as running:
        running.until(waits_for(running, prepared))
        alive = json.loads(running.get("live"))
        assert (alive["ok"], alive["phase"]) == (True, "waiting")
        assert prepared in alive["waiting"]
        time.sleep(1.5 * limit_s)  # longer than an answer may take
        assert not running.said("connection lost")
        site.sql(f"COMMIT PREPARED '{prepared}'")
        running.until(lambda: site.state("guest").keys() == {"0", "1", "2", "3"})
        running.until(lambda: running.phase == "streaming")


def test_a_first_start_that_waits_stops_at_once_and_leaves_no_slot(site: HungSite, prepared: str) -> None:
    site.write_config(limit=600)
    with site.running() as running:
        running.until(waits_for(running, prepared))
    deadline = time.monotonic() + PATIENCE_S
    while site.sql(f"SELECT FROM pg_replication_slots WHERE slot_name = '{site.name}'"):
        assert time.monotonic() < deadline, "the server still makes a slot that nobody wants"
        time.sleep(0.05)


def test_a_walsender_that_hangs_while_it_makes_the_slot_is_lost(site: HungSite, prepared: str) -> None:
    site.write_config()
    with site.running() as running:
        running.until(waits_for(running, prepared))
        with site.stopped(STREAMING):
            site.sql(f"COMMIT PREPARED '{prepared}'")
            running.until(lambda: running.said("connection lost"))
        running.until(lambda: site.state("guest").keys() == {"0", "1", "2", "3"})
