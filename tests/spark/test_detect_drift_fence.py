"""Tests that the job `detect_drift` compares nothing if the result would not be exact.

*Drift* is a difference between a table and its changelog. A commit that is in the log, but not yet visible, must not
count as drift.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.spark_jobs.detect_drift import JOB
from tests.campaigns._plant import last_only, latest, lost, rewrite
from tests.integration.site import Site
from tests.patience import until
from tests.servers import fresh_database
from tests.spark.ran import Run

TABLES = """
CREATE TABLE known (id int PRIMARY KEY, note text);
CREATE TABLE unknown (id int PRIMARY KEY, note text);
ALTER TABLE known REPLICA IDENTITY FULL;
INSERT INTO known SELECT n, 'before' FROM generate_series(1, 5) AS n;
INSERT INTO unknown SELECT n, 'before' FROM generate_series(1, 5) AS n;
"""
"""The log has the old rows of `known`. For `unknown`, it has at most their keys."""

ENTITIES = """
[drift]
severe_ppm = 1e6
[entities.known]
table = "public.known"
[entities.unknown]
table = "public.unknown"
"""

HELD_BACK = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"

Detect = Callable[..., tuple[dict[str, Any], list[str]]]


@pytest.fixture(scope="module")
def own(starts_servers: None) -> Iterator[PostgresServer]:
    """A server that only this module uses, because the tests hold back its commits."""
    with temporary_server(settings={"fsync": "off"}) as running:
        yield running


@pytest.fixture
def site(own: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with fresh_database(own) as dsn:
        new_site = Site(dsn, tmp_path)
        new_site.sql(TABLES)
        new_site.configure(ENTITIES)
        yield new_site


@pytest.fixture
def detect(run: Run, site: Site) -> Detect:
    """Returns a function that runs the job, checks its summary, and returns the report and the lines that the job
    prints.
    """

    def detect(*arguments: str, code: int = 0) -> tuple[dict[str, Any], list[str]]:
        ran = run(JOB, site.config, *arguments, code=code)
        report = ran.report
        assert (report["verdict"], report["why"]) == (ran.summary["verdict"], ran.summary.get("why"))
        return report, ran.lines

    return detect


def all_rows_read(site: Site) -> bool:
    return site.is_read() and len(site.state("known")) == len(site.state("unknown")) == 5


@contextlib.contextmanager
def held_back(site: Site, *statements: str) -> Iterator[None]:
    """Commits each statement on its own. Until the `with` block ends, the commits are in the log, but not visible: the
    server waits for a synchronous standby that does not exist.
    """

    def commit(statement: str) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    administer(site, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    released = threading.Event()
    threads = [threading.Thread(target=_commit_until, args=(site, released))]
    threads[0].start()
    try:
        until(lambda: bool(site.sql(HELD_BACK)), "the server holds no commit back")
        for text in statements:
            threads.append(threading.Thread(target=commit, args=(text,)))
            threads[-1].start()
        yield
    finally:
        released.set()
        administer(site, "ALTER SYSTEM RESET synchronous_standby_names")
        for thread in threads:
            thread.join()


def _commit_until(site: Site, released: threading.Event) -> None:
    """Commits empty messages until one of these commits is held back, because the setting takes effect with a delay.

    Returns when the commits are released.
    """
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        while not released.wait(0.02):
            connection.execute("SELECT pg_logical_emit_message(true, 'probe', '')")


def administer(site: Site, statement: str) -> None:
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute(statement.encode())
        connection.execute("SELECT pg_reload_conf()")


def test_a_service_that_is_stopped_has_not_caught_up(site: Site, detect: Detect) -> None:
    report, lines = detect("--wait", "0", code=5)
    assert report["verdict"] == "not caught up"
    with site.running() as service:
        service.until(lambda: all_rows_read(site))
    site.sql("UPDATE known SET note = 'after'")
    report, lines = detect("--wait", "0.5", code=5)
    assert (report["verdict"], report["entities"], report["keys"]) == ("not caught up", {}, None)
    [line] = lines
    assert line.startswith("detect_drift: not caught up: the changelog in ")
    assert "check that the service runs" in line
    assert report["fence"]["lsn"]
    assert report["fence"]["caughtUpAt"] is None


def test_a_table_that_stays_locked_is_not_compared(site: Site, detect: Detect) -> None:
    with (
        site.running() as service,
        psycopg.connect(site.dsn) as connection,
    ):
        service.until(lambda: all_rows_read(site))
        connection.execute("LOCK TABLE unknown")
        report, _ = detect("--wait", "0.5", code=5)
        assert "locked" in report["why"]


def test_another_cluster_is_refused(site: Site, own: PostgresServer, detect: Detect) -> None:
    with site.running() as service:
        service.until(lambda: all_rows_read(site))
    with temporary_server(settings={"fsync": "off"}) as other, fresh_database(other) as dsn:
        elsewhere = Site(dsn, site.folder)
        elsewhere.sql(TABLES)
        elsewhere.configure(ENTITIES)
        report, lines = detect("--wait", "0", code=5)
    assert report["verdict"] == "refused"
    assert "another database cluster" in lines[0]


def test_a_standby_is_refused_with_a_hint(site: Site, own: PostgresServer, detect: Detect) -> None:
    with site.running() as service:
        service.until(lambda: all_rows_read(site))
    folder = own.data_dir.parent / "standby"
    own.run("pg_basebackup", "-D", str(folder), "-d", own.dsn(), "-c", "fast", "-R")
    with PostgresServer(own.bin_dir, folder, settings={"fsync": "off", "hot_standby": "on"}) as standby:
        site.configure(ENTITIES, dsn=make_conninfo(site.dsn, port=str(standby.port)))
        report, lines = detect("--wait", "0", code=5)
    assert report["verdict"] == "refused"
    assert "standby" in lines[0]
    assert "target_session_attrs=read-write" in lines[0]


def test_a_commit_that_is_not_visible_yet_is_not_drift(site: Site, detect: Detect) -> None:
    """The changelog has lost the earlier messages of key 1, and has only an update that is not visible yet. The message
    of the update contains the row as it was before. The job compares this row with the table.
    """
    with site.running() as service:
        service.until(lambda: all_rows_read(site))
        rewrite(site.log, {("known", "1"): lost})
        updates = (
            "UPDATE known SET note = 'held' WHERE id < 3",
            "DELETE FROM known WHERE id = 3",
            "INSERT INTO known VALUES (6)",
        )
        with held_back(site, *updates):
            service.until(lambda: len(site.ops("known")) == 8)
            report, _ = detect("--entities", "known")
            entity = report["entities"]["known"]
            assert (entity["verdict"], entity["sourceRows"], entity["changelogRows"]) == ("clean", 5, 5)
        report, _ = detect("--entities", "known")
        assert report["entities"]["known"]["sourceRows"] == 5


def test_keys_of_an_invisible_commit_are_compared_again_when_it_is_visible(site: Site, detect: Detect) -> None:
    with site.running() as service:
        service.until(lambda: all_rows_read(site))
        rewrite(site.log, {("unknown", "1"): lost, ("unknown", "2"): lost})
        with held_back(site, "UPDATE unknown SET note = 'held' WHERE id = 1"):
            service.until(lambda: len(site.ops("unknown")) == 4)
            report, _ = detect("--entities", "unknown", "--wait", "5", code=1)
            unknown = report["entities"]["unknown"]
            assert (unknown["missing"], unknown["drifted"]) == (1, 1)
            assert unknown["why"].startswith("1 key could not be compared")
            timer = threading.Timer(0.5, administer, (site, "ALTER SYSTEM RESET synchronous_standby_names"))
            timer.start()
            report, _ = detect("--entities", "unknown", code=1)
            timer.join()
        unknown = report["entities"]["unknown"]
        assert (unknown["why"], unknown["drifted"], unknown["changelogRows"]) == (None, 1, 4)
        row = latest(site.log, "unknown")["unknown", "1"]
        rewrite(site.log, {("unknown", "1"): last_only(row["position"], lambda change: [{**change, "op": "delete"}])})
        report, _ = detect("--entities", "unknown", code=1)
        assert report["entities"]["unknown"]["missing"] == 2
