"""A site of these tables, and its planner."""

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
    made = Site(database, tmp_path)
    made.sql(*TABLES, PUBLICATION.format(made.name))
    made.configure(CONFIG)
    return made


@pytest.fixture
def planner(site: Site, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(site, capsys)
