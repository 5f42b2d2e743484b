"""Tests that a scan of PostgreSQL's tables reads nothing once the fence has ended."""

import time
from pathlib import Path

import pytest

from changelog.connectors import config
from changelog.connectors.sources.fences import Fence, Pages
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.site import Site
from tests.patience import PATIENCE_S
from tests.servers import VERSIONS, fresh_database, server_name

ITEM = """
[entities.item]
table = "public.item"
"""


def keys(fence: Fence) -> list[str]:
    pages = Pages(entity="item", leaf=0, first=0, end=None)
    return [key for batch in fence.scan.rows([pages], None) for key in batch.column("key").to_pylist()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.usefixtures("starts_servers")
def test_a_scan_fails_after_its_fence_has_ended(request: pytest.FixtureRequest, version: int, tmp_path: Path) -> None:
    with fresh_database(request.getfixturevalue(server_name(version))) as dsn:
        site = Site(dsn, tmp_path)
        site.sql("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
        site.configure(ITEM)
        settings = config.load(site.config, {})
        opened = database(settings)
        with opened.fence(read_entities(settings, opened), deadline=time.monotonic() + PATIENCE_S) as fence:
            assert keys(fence) == ["1"]
        with pytest.raises(ChangelogError, match="the snapshot of the tables no longer exists") as raised:
            keys(fence)
        assert raised.value.kind is Kind.CONNECTION
