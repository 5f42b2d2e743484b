"""Fixtures: a database with the sample tables, and an object that runs `changelog schemas plan` for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.integration.schemas_plan.planner import CONFIG, PUBLICATION, TABLES, Planner
from tests.integration.site import Site


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """Three tables, one of them partitioned, and their publication."""
    new_site = Site(database, tmp_path)
    new_site.sql(*TABLES, PUBLICATION.format(new_site.name))
    new_site.configure(CONFIG)
    return new_site


@pytest.fixture
def planner(site: Site, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(site, capsys)
