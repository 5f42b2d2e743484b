"""Fixtures: a database with the sample tables, and an object that runs `changelog schemas plan` for it."""

from pathlib import Path

import pytest

from tests.integration.schemas_plan.planner import CONFIG, PUBLICATION, TABLES, Planner
from tests.integration.site import Site


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
