"""A server that holds changes back for a standby: it is waited for, and the server's reason is told."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.service import service
from tests.integration.site import Running, Site
from tests.patience import until
from tests.servers import SETTINGS, postgres_bin, reload

AWAY, GONE = "away", "gone"

ENTITIES = """
[entities.guest]
table = "guest"
"""


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server waits for is asked often."""
    monkeypatch.setattr(service, "SAMPLE_S", 0.3)


@pytest.fixture(params=[pytest.param(17, marks=pytest.mark.xdist_group("postgres-17")), 18])
def server(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[Server]:
    """A server of its own: what it holds back, it holds back from all."""
    with temporary_server(postgres_bin(request.param), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Site:
    """A service with a slot for failover, over one row; the slot of a standby is there, and nobody reads it."""
    made = Site(server.dsn(), tmp_path)
    made.sql(
        "CREATE TABLE guest (id int PRIMARY KEY)",
        "INSERT INTO guest VALUES (1)",
        f"SELECT pg_create_physical_replication_slot('{AWAY}', true)",
    )
    made.configure(ENTITIES)
    made.config.write_text(
        made.config.read_text("utf-8").replace('kind = "postgres"', 'kind = "postgres", failover = true')
    )
    return made


def hold_back_for(site: Site, slot: str) -> None:
    """What is written from now on waits for the standby of this slot."""
    standbys_are(site, slot)
    until(lambda: is_held_back(site), "the server holds nothing back")


def is_held_back(site: Site) -> bool:
    """Whether the stream waits for a standby. It does only if there is something to send, so this writes a message."""
    site.sql("SELECT pg_logical_emit_message(true, 'probe', '')")
    return bool(site.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'WaitForStandbyConfirmation'"))


def standbys_are(site: Site, slots: str) -> None:
    """Sets the slots of the standbys that the server waits for."""
    site.sql(f"ALTER SYSTEM SET synchronized_standby_slots = '{slots}'")
    reload(site.dsn)


def says(running: Running, reason: str) -> Callable[[], bool]:
    """Whether the service told why nothing comes, in its log and where it is asked."""

    def reached() -> bool:
        logged = [each["why"] for each in running.events() if each["event"] == "the server sends nothing yet"]
        if not any(reason in why for why in logged):
            return False
        alive = json.loads(running.get("live"))
        return alive["ok"] and reason in alive.get("waiting", "")

    return reached


def test_a_standby_that_is_away_is_waited_for(site: Site, server: Server) -> None:
    with site.running() as running:
        running.until(lambda: site.is_read() and running.phase == "streaming")
        hold_back_for(site, AWAY)
        site.sql("INSERT INTO guest VALUES (2)")
        running.until(says(running, f"nobody reads slot {AWAY}"))
        server.stop("fast")  # it ends the stream with an error that names the standby
        running.until(lambda: running.said("connection lost"))
        server.start()
        running.until(says(running, f"nobody reads slot {AWAY}"))
        assert site.state("guest").keys() == {"1"}
        standbys_are(site, "")
        running.until(lambda: site.state("guest").keys() == {"1", "2"} and running.phase == "streaming")


def test_a_slot_that_is_not_there_is_named(site: Site) -> None:
    """As it is after a promotion, where the former primary's setting was taken over."""
    with site.running() as running:
        running.until(lambda: site.is_read() and running.phase == "streaming")
        hold_back_for(site, GONE)
        site.sql("INSERT INTO guest VALUES (2)")
        running.until(says(running, f"there is no slot {GONE}"))
        site.sql(f"SELECT pg_create_physical_replication_slot('{GONE}', true)")
        running.until(says(running, f"nobody reads slot {GONE}"))
        standbys_are(site, "")
        running.until(lambda: site.state("guest").keys() == {"1", "2"})
