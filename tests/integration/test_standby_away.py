"""Tests that the service waits, and reports why, while a server holds back changes because its standby lacks them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from changelog.connectors.patience import Patience
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.service import service
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.envelope.signal import Signal
from tests.integration.site import Running, Site
from tests.patience import until
from tests.servers import SETTINGS, postgres_bin, reload

AWAY, GONE = "away", "gone"

ENTITIES = """
[entities.guest]
table = "guest"
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the interval at which the service asks what the server waits for."""
    monkeypatch.setattr(service, "SAMPLE_S", 0.3)


@pytest.fixture(params=[pytest.param(17, marks=pytest.mark.xdist_group("postgres-17")), 18])
def server(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[PostgresServer]:
    """A server that only this test uses, because the server holds back changes from every reader."""
    with temporary_server(postgres_bin(request.param), settings=SETTINGS) as new_server:
        yield new_server


@pytest.fixture
def site(server: PostgresServer, tmp_path: Path) -> Site:
    """A service whose slot is enabled for failover, and whose table has one row. A slot for a standby exists, but no
    standby reads it.
    """
    new_site = Site(server.dsn(), tmp_path)
    new_site.sql(
        "CREATE TABLE guest (id int PRIMARY KEY)",
        "INSERT INTO guest VALUES (1)",
        f"SELECT pg_create_physical_replication_slot('{AWAY}', true)",
    )
    new_site.configure(ENTITIES)
    new_site.config.write_text(
        new_site.config.read_text("utf-8").replace('kind = "postgres"', 'kind = "postgres", failover = true')
    )
    return new_site


def test_sending_a_signal_does_not_wait_for_a_synchronous_standby(site: Site) -> None:
    site.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{AWAY}'")
    reload(site.dsn)
    with connect(site.dsn, patience=Patience(silence_s=2.0)) as connection:
        assert send(connection, Signal(do="rebuild", id="sent", entity="guest"), b"sixteen characters") > 0


def hold_back_for(site: Site, slot: str) -> None:
    """Makes the server hold back all new changes until the standby of this slot has them."""
    standbys_are(site, slot)
    until(lambda: is_held_back(site), "the server holds nothing back")


def is_held_back(site: Site) -> bool:
    """Returns whether the stream waits for a standby. First writes a message, because the stream waits only if it has
    something to send.
    """
    site.sql("SELECT pg_logical_emit_message(true, 'probe', '')")
    return bool(site.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"))


def standbys_are(site: Site, slots: str) -> None:
    """Sets the slots of the standbys that the server waits for."""
    site.sql(f"ALTER SYSTEM SET synchronized_standby_slots = '{slots}'")
    reload(site.dsn)


def reports(running: Running, reason: str) -> Callable[[], bool]:
    """Returns a function that says whether the service reports this reason, in its log and on `/live`."""

    def reached() -> bool:
        logged_reasons = [
            event["why"] for event in running.events() if event["event"] == "the server sends nothing yet"
        ]
        if not any(reason in logged_reason for logged_reason in logged_reasons):
            return False
        health = json.loads(running.get("live"))
        return health["ok"] and reason in health.get("waiting", "")

    return reached


def test_the_service_waits_for_a_standby_that_is_away(site: Site, server: PostgresServer) -> None:
    with site.running() as running:
        running.until(lambda: site.is_read() and running.phase == "streaming")
        hold_back_for(site, AWAY)
        site.sql("INSERT INTO guest VALUES (2)")
        running.until(reports(running, f"nobody reads slot {AWAY}"))
        server.stop("fast")  # the server ends the stream with an error that names the standby
        running.until(lambda: running.said("connection lost"))
        server.start()
        running.until(reports(running, f"nobody reads slot {AWAY}"))
        assert site.state("guest").keys() == {"1"}
        standbys_are(site, "")
        running.until(lambda: site.state("guest").keys() == {"1", "2"} and running.phase == "streaming")


def test_a_standby_slot_that_does_not_exist_is_reported(site: Site) -> None:
    """This can happen after a promotion: the new primary has the setting of the former primary, but not the slot that
    the setting names.
    """
    with site.running() as running:
        running.until(lambda: site.is_read() and running.phase == "streaming")
        hold_back_for(site, GONE)
        site.sql("INSERT INTO guest VALUES (2)")
        running.until(reports(running, f"there is no slot {GONE}"))
        site.sql(f"SELECT pg_create_physical_replication_slot('{GONE}', true)")
        running.until(reports(running, f"nobody reads slot {GONE}"))
        standbys_are(site, "")
        running.until(lambda: site.state("guest").keys() == {"1", "2"})
