"""Tests, on real MySQL and MariaDB servers, that the job `detect_drift` finds exactly the differences between a
changelog and its tables.

The tests make these differences (*drift*) by editing the changelog's files.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from changelog.spark_jobs.detect_drift import JOB
from tests.campaigns._plant import last_only, latest, lost, rewrite, setting
from tests.integration.mysql.site import MysqlSite
from tests.integration.site import Running
from tests.spark.ran import Ran, Run

ROWS = 60

ITEM = """
({n}, 'name é {n}', {n} / 3, {n} / 8, '{{"b": [1, null], "a": {n}}}', x'00ff', '2026-11-21 03:10:02.5',
    1 + {n} % 2, {n} % 2)"""

TABLES = f"""
CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(40), ratio FLOAT, price DECIMAL(9,2), doc JSON, raw BLOB,
    at DATETIME(6), kind ENUM('a', 'b'), open BOOLEAN);
CREATE TABLE person (name VARCHAR(20) CHARACTER SET latin1, unit INT UNSIGNED, email TEXT, phone TEXT,
    PRIMARY KEY (name, unit));
CREATE TABLE emptied (id BIGINT PRIMARY KEY);
CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL);
INSERT INTO item VALUES {", ".join(ITEM.format(n=number) for number in range(1, ROWS + 1))};
UPDATE item SET name = NULL, ratio = NULL, doc = 'null', raw = '' WHERE id = 7;
INSERT INTO person VALUES ('ann', 1, 'ann@example.org', '1'), ('béa', 2, NULL, NULL), ('béa', 9, '', '');
INSERT INTO emptied VALUES (1), (2)
"""
ENTITIES = """
[drift]
severe_ppm = 1e6
[mask]
key = "a secret of sixteen"
[entities.item]
table = "{database}.item"
[entities.person]
table = "{database}.person"
where = "unit < 9"
mask = {{ email = "sha256", phone = "null" }}
[entities.emptied]
table = "{database}.emptied"
on_truncate = "publish"
"""

Detect = Callable[..., Ran]


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    new_site = MysqlSite(mysql_server, mysql_database, tmp_path)
    new_site.sql(*TABLES.split(";\n"))
    new_site.configure(ENTITIES.format(database=mysql_database))
    return new_site


@pytest.fixture
def service(site: MysqlSite) -> Iterator[Running]:
    """A service that has read all tables."""
    with site.running() as running:
        running.until(site.is_read)
        yield running


@pytest.fixture
def detect(run: Run, site: MysqlSite, service: Running) -> Detect:
    """Returns a function that runs the job."""

    def detect(*arguments: str, code: int = 0) -> Ran:
        return run(JOB, site.config, "--out", str(site.folder / "drift"), *arguments, code=code)

    return detect


def test_equal_tables_are_clean(site: MysqlSite, service: Running, detect: Detect) -> None:
    site.sql("TRUNCATE emptied", "UPDATE item SET name = '' WHERE id = 8", "DELETE FROM item WHERE id = 9")
    report = detect().report
    assert (report["verdict"], report["exact"]) == ("clean", True)
    assert {name: (entity["sourceRows"], entity["changelogRows"]) for name, entity in report["entities"].items()} == {
        "item": (ROWS - 1, ROWS - 1),
        "person": (2, 2),
        "emptied": (0, 0),
    }


def test_planted_drift_is_found_and_healed(site: MysqlSite, service: Running, detect: Detect) -> None:
    service.until(lambda: len(site.state("item")) == ROWS)
    row = latest(site.log, "item")["item", "3"]
    rewrite(
        site.log,
        {
            ("item", "1"): lost,
            ("item", "2"): setting({"price": '"0.250"', "name": '"name e\u0301 2"'}),
            ("item", "3"): last_only(row["position"], lambda row: [row, {**row, "key": "1003"}]),
            ("item", "4"): setting({"doc": '{ "a": 4, "b":[1,null]}'}),
            ("item", "7"): setting({"doc": '"null"', "raw": "null"}),
            ("person", '["ann","1"]'): setting({"email": '"ann@example.org"'}),
        },
    )
    assert detect("--repair", code=1).drifted() == {
        "1": ("missing", []),
        "2": ("changed", ["name", "price"]),
        "7": ("changed", ["doc", "raw"]),
        "1003": ("extra", []),
        '["ann","1"]': ("changed", ["email"]),
    }
    service.until(lambda: ("delete", "1003") in site.ops("item"))
    service.until(lambda: len(site.ops("person")) == 3)
    assert detect().report["verdict"] == "clean"


def test_ranges_and_samples_read_the_same_keys_of_both_sides(site: MysqlSite, detect: Detect) -> None:
    rewrite(site.log, {("item", str(number)): lost for number in (10, 30, 50)})
    ranged = ("--entities", "item", "--from", "11", "--below", "40")
    ran = detect(*ranged, code=1)
    assert ran.drifted() == {"30": ("missing", [])}
    assert ran.report["entities"]["item"]["sourceRows"] == 29
    ran = detect("--entities", "person", "--from", "b")
    assert ran.report["entities"]["person"]["sourceRows"] == 1
    assert detect("--entities", "item", "--sample", "0.5", code=1).drifted().keys() <= {"10", "30", "50"}


def test_an_idle_server_that_began_a_new_binary_log_is_compared_soon(
    site: MysqlSite, service: Running, detect: Detect
) -> None:
    site.sql("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)", "FLUSH BINARY LOGS")
    assert detect("--wait", "20").report["verdict"] == "clean"


def test_a_service_that_is_stopped_has_not_caught_up(run: Run, site: MysqlSite) -> None:
    with site.running() as running:
        running.until(site.is_read)
    site.sql("UPDATE item SET name = 'later' WHERE id = 1")
    ran = run(JOB, site.config, "--out", str(site.folder / "drift"), "--wait", "0.5", code=5)
    assert ran.report["verdict"] == "not caught up"
