"""Tests ALTER TYPE of a composite type that is part of an entity key.

The text of such a key contains the names of the type's attributes. So a rename of an attribute changes every key, and
the service reads the table again, and publishes a delete for each old key.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.site import Site
from tests.servers import VERSIONS, fresh_database, server_name

TABLES = """
CREATE TYPE co AS (x text, y int);
CREATE TABLE item (c co PRIMARY KEY, n int NOT NULL);
ALTER TABLE item REPLICA IDENTITY FULL;
INSERT INTO item SELECT ROW('a', k)::co, 0 FROM generate_series(1, 5) AS k;
"""

ENTITIES = """
[entities.item]
table = "public.item"
[schemas]
on_incompatible = "publish"
"""

RENAME = "ALTER TYPE co RENAME ATTRIBUTE x TO later"


# PostgreSQL 14 also streams transactions without rows. So on this version, the service learns at which position an
# ALTER TYPE committed. Newer versions do not stream such transactions.
@pytest.fixture(params=[VERSIONS[0], VERSIONS[-1]])
def site(request: pytest.FixtureRequest, tmp_path: Path, starts_servers: None) -> Iterator[Site]:
    with fresh_database(request.getfixturevalue(server_name(request.param))) as dsn:
        new_site = Site(dsn, tmp_path)
        new_site.sql(TABLES)
        new_site.configure(ENTITIES)
        yield new_site


def key(number: int, name: str = "x") -> str:
    """Returns the entity key of a row. `name` is the name of the composite's first attribute. The key lists the
    attributes in alphabetical order.
    """
    return f'{{"{name}":"a","y":{number}}}' if name < "y" else f'{{"y":{number},"{name}":"a"}}'


def expected_rows(first: int, last: int, n: int) -> dict[str, Any]:
    """Returns the rows, by key, that the changelog must have after the rename: the rows from `first` to `last`."""
    return {key(k, "later"): {"c": {"later": "a", "y": k}, "n": n} for k in range(first, last + 1)}


def test_rows_have_only_their_new_keys(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        assert set(site.state("item")) == {key(k) for k in range(1, 6)}
        site.sql("UPDATE item SET n = 1", RENAME, "UPDATE item SET n = 2")
        service.until(lambda: site.is_read() and site.state("item") == expected_rows(1, 5, 2))
        site.sql("DELETE FROM item WHERE (c).y > 3", "UPDATE item SET n = 3")
        service.until(lambda: site.state("item") == expected_rows(1, 3, 3))


def test_a_type_may_be_altered_while_the_service_is_stopped(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
    site.sql("UPDATE item SET n = 1", RENAME, "UPDATE item SET n = 2", "DELETE FROM item WHERE (c).y > 3")
    with site.running() as service:
        service.until(lambda: site.is_read() and site.state("item") == expected_rows(1, 3, 2))


def test_an_attribute_may_be_renamed_and_renamed_back(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(RENAME, "UPDATE item SET n = 1", "ALTER TYPE co RENAME ATTRIBUTE later TO x", "UPDATE item SET n = 2")
        unchanged = {key(k): {"c": {"x": "a", "y": k}, "n": 2} for k in range(1, 6)}
        service.until(lambda: site.is_read() and site.state("item") == unchanged)


def test_while_a_type_is_being_altered_no_row_is_published_under_another_key(site: Site) -> None:
    with site.running() as service, psycopg.connect(site.dsn) as migration:
        service.until(site.is_read)
        with psycopg.connect(site.dsn, autocommit=True) as writer:
            writer.execute("UPDATE item SET n = 1")
            service.until(lambda: all(row["n"] == 1 for row in site.state("item").values()))
            migration.execute(RENAME)
            writer.execute("UPDATE item SET n = 2")
            service.until(lambda: service.said("opening the source again"))
            migration.rollback()
            writer.execute("UPDATE item SET n = 3")
            service.until(lambda: all(row["n"] == 3 for row in site.state("item").values()))
    assert {entity_key for _, entity_key in site.ops("item")} == {key(k) for k in range(1, 6)}
    assert sorted(site.ops("item")).count(("update", key(1))) == 3
