"""Tests that the service can read tables with large rows.

The rows of one query are a chunk. The service divides a chunk that is too large, if necessary down to single rows. It
publishes a single row of any size.
"""

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._service import Service, is_read
from tests.integration.repairs import repair
from tests.integration.site import Site
from tests.patience import PATIENCE_S

ENTITIES = """
[entities.item]
table = "public.item"
"""

MIB = 1 << 20


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    new_site = Site(database, tmp_path)
    new_site.sql(
        "CREATE TABLE item (id int PRIMARY KEY, note text, body text)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
    )
    new_site.configure(ENTITIES)
    return new_site


def fill(site: Site, rows: int, nbytes: int, first: int = 1) -> None:
    """Inserts rows whose column `body` holds `nbytes` characters. This text compresses well, so all rows fit into few
    pages.
    """
    site.sql(
        f"INSERT INTO item SELECT n, '1', left(repeat(md5(n::text), {nbytes // 32 + 1}), {nbytes}) "
        f"FROM generate_series({first}, {first + rows - 1}) AS n"
    )


def table(site: Site) -> dict[str, str]:
    """Returns the digest of each row of the table, by key."""
    rows = site.sql("SELECT id, md5(note || body) FROM item")
    return {str(id_): digest for id_, digest in rows}


def published(site: Site) -> dict[str, str]:
    """Returns the digest of each row of the changelog, by key."""
    return {key: digest(row) for key, row in site.state("item").items()}


def digest(row: dict[str, Any]) -> str:
    return hashlib.md5((row["note"] + row["body"]).encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("rows", "nbytes"),
    [
        pytest.param(5_000, 8_000, id="many wide rows in 256 pages"),
        pytest.param(5, 10 * MIB, id="five rows of 10 MiB in one page"),
        pytest.param(1, 40 * MIB, id="one row of 40 MiB"),
    ],
)
def test_a_chunk_of_more_than_32_mib_is_read_in_parts(site: Site, rows: int, nbytes: int) -> None:
    fill(site, rows, nbytes)
    with site.running() as service:
        service.until(site.is_read)
        assert not service.said("connection lost")
    assert published(site) == table(site)
    assert sorted(site.ops("item")) == sorted(("read", key) for key in table(site))


def test_large_rows_that_are_republished_by_key_are_read_in_parts(site: Site) -> None:
    fill(site, 4, 10 * MIB)
    fill(site, 1, 40 * MIB, first=5)
    with site.running() as service:
        service.until(site.is_read)
        repair(site, service, "republish", ("1", "2", "3", "4", "5"))
        assert not service.said("connection lost")
    assert sorted(site.ops("item")[-5:]) == [("read", str(key)) for key in range(1, 6)]
    assert published(site) == table(site)


def test_the_service_continues_within_a_divided_page_while_rows_are_written(site: Site, seed: int) -> None:
    """The service is killed when it has published only some rows of a page. No change is lost or repeated, and no row
    returns to an older state.
    """
    rows = 8
    fill(site, rows, 5 * MIB)
    service = Service(site.config)
    try:
        with writing_to(site, rows, seed):
            while not inside_a_page(site):
                service.start("files:stored:1")
                assert service.wait(PATIENCE_S), service.said()[-2000:]
            service.start()
            service.until(site.log, is_read, PATIENCE_S)
        end = site.sql("SELECT pg_current_wal_lsn() - '0/0'")[0][0]
        service.until(site.log, lambda checkpoint: through_lsn(checkpoint) >= end, PATIENCE_S)
        service.stop()
    finally:
        service.kill()
    assert published(site) == table(site)
    last_numbers: dict[str, int] = {}
    for message in site.messages("item"):
        key, value = message["key"], message["value"]
        number = int(value["current"]["note"])
        if value["provenance"]["source"]["op"] == "update":
            assert number == last_numbers.get(key, number - 1) + 1
        else:
            assert number >= last_numbers.get(key, number)
        last_numbers[key] = number


def test_large_rows_are_streamed_among_small_ones(site: Site) -> None:
    """The large rows contain characters of several bytes in UTF-8. The service must not cut such a character in two.
    Other characters of these rows must be escaped in JSON.
    """
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "INSERT INTO item SELECT n, '1', 'small' FROM generate_series(1, 500) AS n",
            "INSERT INTO item SELECT n, '1', CASE WHEN n % 40 = 0 THEN repeat(E'aé\u20ac\U0001f600\"\n', 150000) "
            "ELSE 'small' END FROM generate_series(501, 700) AS n",
            "UPDATE item SET note = '2' WHERE id > 600",
            "SELECT pg_logical_emit_message(transactional, 'someone', repeat('x', 1000000)) "
            "FROM unnest(ARRAY[true, false]) AS transactional",
            "DELETE FROM item WHERE id % 80 = 0",
        )
        expected = table(site)
        service.until(lambda: site.state("item").keys() == expected.keys())
    assert published(site) == expected


def inside_a_page(site: Site) -> bool:
    """Returns whether some rows of a page are published and others are not."""
    checkpoint = read_checkpoint(site.log)
    if checkpoint is None:
        return False
    item = checkpoint.windows["item"]
    assert not item["complete"], "the service was not killed in time"
    bounds = [leaf["left"][0][0] for leaf in item.get("leaves", {}).values()]
    return any(isinstance(bound, list) and bound > [0, 1] for bound in bounds)


@contextmanager
def writing_to(site: Site, rows: int, seed: int) -> Iterator[None]:
    """While the body runs, a thread increments the note of random rows."""
    stop_event, rng = threading.Event(), random.Random(seed)

    def write() -> None:
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            for _ in range(40):
                if stop_event.wait(0.05):
                    return
                connection.execute(
                    "UPDATE item SET note = (note::int + 1)::text WHERE id = %s", [rng.randrange(rows) + 1]
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop_event.set()
        writer.join()
