"""One service over one table, and what all its tests begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.wiring import sources
from tests.integration.bad_input import GUEST, ONE
from tests.integration.site import Site
from tests.servers import SETTINGS


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For slots that stay held. Others are let go of a moment after their service has stopped, and waited for."""
    monkeypatch.setattr(sources, "_SLOT_PATIENCE_S", 0.3)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """A service over one table of one row."""
    made = Site(database, tmp_path)
    made.sql(GUEST)
    made.configure(ONE)
    return made


@pytest.fixture
def begun(site: Site) -> Site:
    """One that has read its table, and was stopped."""
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1"})
    return site


@pytest.fixture(scope="module")
def spare(starts_servers: None) -> Iterator[Server]:
    """A server of another cluster, begun without logical decoding."""
    with temporary_server(settings={**SETTINGS, "wal_level": "replica"}) as running:
        yield running
