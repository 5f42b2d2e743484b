"""Tests the whole service on every supported version of PostgreSQL. The golden tests check the messages in detail."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.site import Site
from tests.servers import VERSIONS, fresh_database, server_name

TABLES = """
CREATE TABLE guest (id int PRIMARY KEY, name text);
ALTER TABLE guest REPLICA IDENTITY FULL;
CREATE TABLE place (id int, region int, name text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE place_1 PARTITION OF place FOR VALUES IN (1);
CREATE TABLE place_2 PARTITION OF place FOR VALUES IN (2);
INSERT INTO guest SELECT n, repeat('long', 1000) FROM generate_series(1, 100) AS n;
INSERT INTO place SELECT n, n % 2 + 1, 'somewhere' FROM generate_series(1, 100) AS n;
"""

ENTITIES = """
[entities.guest]
table = "public.guest"
on_truncate = "publish"
[entities.place]
table = "public.place"
key = ["id", "region"]
"""


@pytest.fixture(params=VERSIONS)
def site(request: pytest.FixtureRequest, starts_servers: None, tmp_path: Path) -> Iterator[Site]:
    """A site with a fresh database, on a server of each version in turn."""
    with fresh_database(request.getfixturevalue(server_name(request.param))) as dsn:
        yield Site(dsn, tmp_path)


def test_rows_changes_and_a_truncate_are_published_also_after_a_restart(site: Site) -> None:
    site.sql(TABLES)
    site.configure(ENTITIES)
    assert site.call("check", "--fix") == (0, [])
    with site.running() as running:
        running.until(lambda: len(site.messages()) == 200)
        site.sql("UPDATE guest SET name = 'short' WHERE id <= 50", "DELETE FROM place WHERE id > 90")
        running.until(lambda: len(site.messages()) == 260)
    site.sql("DELETE FROM guest WHERE id = 1", "UPDATE place SET region = 1, name = 'moved' WHERE id = 3")
    with site.running() as running:
        running.until(lambda: len(site.messages()) == 263)
        site.sql("TRUNCATE guest", "INSERT INTO guest VALUES (1, 'again')")
        running.until(lambda: len(site.messages()) == 265)
    assert Counter(op for op, _ in site.ops("guest")) == {
        "read": 100,
        "update": 50,
        "delete": 1,
        "truncate": 1,
        "create": 1,
    }
    assert site.ops("guest")[-2:] == [("truncate", "\0truncate"), ("create", "1")]
    rows = site.sql("SELECT id, region, name FROM place ORDER BY id")
    assert sorted(tuple(row.values()) for row in site.state("place").values()) == rows
