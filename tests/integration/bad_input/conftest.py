"""Defines the fixtures that the tests of this folder share, such as a service that publishes one table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.wiring import sources
from tests.integration.bad_input import GUEST, ONE
from tests.integration.site import Site
from tests.servers import SETTINGS


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the time that the service waits for a slot, for tests in which another process keeps the slot.

    Other tests need the normal time, because the server frees a slot only a moment after the service has stopped.
    """
    monkeypatch.setattr(sources, "_SLOT_PATIENCE_S", 0.3)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """A service that publishes a table of one row."""
    new_site = Site(database, tmp_path)
    new_site.sql(GUEST)
    new_site.configure(ONE)
    return new_site


@pytest.fixture
def stopped_site(site: Site) -> Site:
    """A site whose service has read the table and has then been stopped."""
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1"})
    return site


@pytest.fixture(scope="module")
def other_cluster(starts_servers: None) -> Iterator[PostgresServer]:
    """A server of another cluster. It was started without logical decoding."""
    with temporary_server(settings={**SETTINGS, "wal_level": "replica"}) as server:
        yield server
