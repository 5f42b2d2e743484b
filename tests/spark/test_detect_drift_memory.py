"""Tests that the job `detect_drift` needs only the interface `Database`: it runs on a database in memory.

The service and its repairs use the same interface. *Drift* is a difference between a table and its changelog. The tests
cause drift by editing the tables without a trace in the log.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from changelog.connectors.sources import Database
from changelog.connectors.wiring import sources
from changelog.spark_jobs.detect_drift import JOB
from tests.integration.site import Running, Site
from tests.spark.ran import Ran, Run
from tests.unit.memory.database import MemoryDatabase
from tests.unit.memory.world import KEYS, Row, World

TABLES = ("item", "sale")
ROWS = KEYS // 2
"""The number of rows that each table has at first."""

ENTITIES = """
[drift]
severe_ppm = 1e6
[entities.item]
table = "shop.item"
[entities.sale]
table = "shop.sale"
partitions = 3
"""


class Shop:
    """A database, the running service that publishes it, and the job that compares it with its changelog."""

    def __init__(self, site: Site, database: MemoryDatabase, service: Running, run: Run) -> None:
        self.site, self.database, self.service, self._run = site, database, service, run

    def detect(self, *arguments: str, code: int = 0) -> Ran:
        return self._run(JOB, self.site.config, *arguments, code=code)

    def change(self, name: str, rows: dict[int, Row | None], *, visible: bool = True) -> None:
        """Commits the rows, and waits until they are published. If not `visible`, readers of the table do not see the
        commit.
        """
        with self.database.world.lock:
            self.database.world.change(name, rows, seen=visible)
        self.service.until(lambda: all(self.published(name).get(key) == row for key, row in rows.items()))

    def edit_unlogged(self, name: str, rows: dict[int, Row | None]) -> None:
        with self.database.world.lock:
            for key, row in rows.items():
                self.database.world.edit_unlogged(name, key, row)

    def rows(self, name: str) -> dict[int, Row]:
        """Returns the rows that a reader of the table sees."""
        with self.database.world.lock:
            return self.database.world.tables[name].rows(self.database.world.snapshot())

    def published(self, name: str) -> dict[int, Row]:
        return {int(key): row for key, row in self.site.state(name).items()}

    def free(self, name: str) -> list[int]:
        """Returns keys that the table does not have."""
        return [key for key in range(KEYS) if key not in self.rows(name)]


@pytest.fixture
def shop(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A service that has read all tables. The configuration names PostgreSQL, but the service and the job open a
    database in memory instead.
    """
    database = MemoryDatabase(World(Random(7), TABLES))
    facade: Database = database
    monkeypatch.setattr(sources, "PostgresDatabase", lambda _settings: facade)
    site = Site("host=nobody.invalid dbname=shop", tmp_path)
    site.configure(ENTITIES)
    with site.running() as service:
        service.until(site.is_read)
        yield Shop(site, database, service, run)


def row(key: int, status: str) -> Row:
    return {"id": key, "status": status}


def counts(report: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns five counts for each entity: rows in the source, rows in the changelog, and missing, extra and changed
    keys.
    """
    names = ("sourceRows", "changelogRows", "missing", "extra", "changed")
    return {entity: tuple(figures[name] for name in names) for entity, figures in report["entities"].items()}


def test_a_changelog_that_equals_its_tables_is_clean(shop: Shop) -> None:
    changed, deleted, *_ = shop.rows("item")
    free = shop.free("item")[0]
    shop.change("item", {deleted: None, free: row(free, "new"), changed: row(changed, 'it\'s "two"')})
    report = shop.detect().report
    assert (report["verdict"], report["exact"], report["why"]) == ("clean", True, None)
    assert counts(report) == dict.fromkeys(TABLES, (ROWS, ROWS, 0, 0, 0))
    assert report["source"]["database"] == "memory"
    assert report["fence"]["snapshot"].startswith("before ")
    inside = sum(6 <= key < 17 for key in shop.rows("item"))
    report = shop.detect("--entities", "item", "--from", "6", "--below", "17").report
    assert counts(report) == {"item": (inside, inside, 0, 0, 0)}, "the range has a part of both leaves"


def test_each_kind_of_drift_is_found_exactly_and_healed_by_signals(shop: Shop) -> None:
    deleted, *more = shop.rows("item")
    altered = more[-1]
    inserted = shop.free("item")[0]
    shop.edit_unlogged("item", {deleted: None, inserted: row(inserted, "unlogged"), altered: row(altered, "unlogged")})
    ran = shop.detect("--partitions", "7", "--repair", code=1)
    assert ran.drifted() == {
        str(inserted): ("missing", []),
        str(deleted): ("extra", []),
        str(altered): ("changed", ["status"]),
    }
    assert counts(ran.report) == {"item": (ROWS, ROWS, 1, 1, 1), "sale": (ROWS, ROWS, 0, 0, 0)}
    [sample] = [sample for sample in ran.report["entities"]["item"]["samples"] if sample["kind"] == "changed"]
    assert sample["columns"] == {"status": {"source": "unlogged", "changelog": f"first {altered}"}}
    assert ran.report["entities"]["item"]["repaired"]["signals"]
    healed = shop.detect()
    assert (healed.report["verdict"], healed.drifted()) == ("clean", {})
    assert healed.report["entities"]["item"]["history"]["verified"] == 3
    for name in TABLES:
        assert shop.published(name) == shop.rows(name)
    repaired = shop.site.ops("item")[ROWS:]
    assert sorted(repaired) == [("delete", str(deleted)), *sorted(("read", str(key)) for key in (altered, inserted))]


def test_commits_between_the_fence_and_its_scan_are_not_drift(shop: Shop) -> None:
    """The fence is a message in the log. The job compares nothing before the changelog has reached this message.

    In this test, commits follow the fence, and they are in the changelog before the tables are read. Drift from before
    the fence must still be found.
    """
    changed, deleted, drifted, *_ = shop.rows("item")
    free, made_up = shop.free("item")[:2]
    shop.edit_unlogged("item", {drifted: row(drifted, "unlogged"), made_up: row(made_up, "unlogged")})
    shop.database.at_fence = lambda: shop.change(
        "item",
        {
            changed: row(changed, "later"),
            deleted: None,
            free: row(free, "later"),
            made_up: row(made_up, "later"),  # the original of this change is the row as it was at the fence
        },
    )
    ran = shop.detect("--entities", "item", code=1)
    assert ran.drifted() == {str(drifted): ("changed", ["status"])}
    assert counts(ran.report) == {"item": (ROWS + 1, ROWS + 1, 0, 0, 1)}


def test_a_commit_that_is_in_the_log_and_not_visible_is_not_drift(shop: Shop) -> None:
    changed, deleted, *_ = shop.rows("item")
    free = shop.free("item")[0]
    rows = {changed: row(changed, "held"), deleted: None, free: row(free, "held")}
    shop.change("item", rows, visible=False)
    shop.change("sale", {key: row(key, "after it") for key in shop.rows("sale")})
    assert free not in shop.rows("item")
    report = shop.detect().report
    assert (report["verdict"], report["why"]) == ("clean", None)
    assert counts(report) == dict.fromkeys(TABLES, (ROWS, ROWS, 0, 0, 0))


def test_nothing_is_compared_before_the_changelog_has_caught_up(shop: Shop) -> None:
    shop.service.stop()
    key, *_ = shop.rows("item")
    with shop.database.world.lock:
        shop.database.world.change("item", {key: row(key, "unpublished")})
    report = shop.detect("--wait", "0", code=5).report
    assert (report["verdict"], report["entities"]) == ("not caught up", {})
    assert ", but the fence is at " in report["why"]
