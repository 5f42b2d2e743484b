"""The job against a real database and the real service, under load and with drift planted behind its back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors.embedded import Server
from spark_jobs.detect_drift import JOB
from spark_jobs.job import main
from tests.integration.site import Running, Site
from tests.servers import fresh_database

TABLES = """
CREATE TABLE thing (
    id int PRIMARY KEY, note text, padded char(5), price float8, ratio real, amount numeric, born timestamptz, doc json,
    docb jsonb, raw bytea, tags text[], open boolean, day date
);
INSERT INTO thing SELECT n, 'note ' || n, 'ab', n / 7.0, n / 3.0, n / 9.0, timestamptz '2026-11-21 03:10:02.5+00',
    '{"b": 1, "a": [1, 2]}', '{"b": 1.50, "a": null}', '\\x00ff', ARRAY['x', NULL, 'y'], n % 2 = 0, 'infinity'
FROM generate_series(1, 40) AS n;
"""
ENTITIES = """
[entities.thing]
table = "public.thing"
"""

Detect = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def site(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fresh_database(server) as dsn:
        found = Site(dsn, tmp_path_factory.mktemp("drift"))
        found.sql(TABLES)
        found.configure(ENTITIES)
        yield found


@pytest.fixture(scope="module")
def service(site: Site) -> Iterator[Running]:
    with site.running() as running:
        running.until(lambda: running.said("snapshot complete"))
        yield running


@pytest.fixture
def detect(spark: SparkSession, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Detect:
    """Runs the job; gives its report."""

    def detect(*words: str, code: int = 0) -> dict[str, Any]:
        given = main(JOB, ["--config", str(site.config), "--out", str(tmp_path / "drift"), *words])
        said = capsys.readouterr()
        assert given == code, said
        summary = json.loads(said.out.splitlines()[-1])
        report: dict[str, Any] = json.loads(Path(summary["report"]).with_name("report.json").read_bytes())
        report["lines"] = said.err.splitlines()
        return report

    return detect


def test_a_consistent_pair_is_clean(site: Site, service: Running, detect: Detect) -> None:
    report = detect("--entities", "thing")
    thing = report["entities"]["thing"]
    assert (report["verdict"], report["exact"], thing["verdict"]) == ("clean", True, "clean")
    assert (thing["sourceRows"], thing["changelogRows"], thing["drifted"]) == (40, 40, 0)
