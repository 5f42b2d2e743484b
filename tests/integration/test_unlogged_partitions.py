"""Tests that the service repairs the changelog after a partition was truncated, detached, dropped or attached.

The log shows none of these as a change of the partitioned table. The service notices them when it reads the catalogue:
at intervals, and whenever the server's stream describes a table, for example before the first row of a partition. In
these tests, a *reading* is one such read of the catalogue.
"""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors.sources.postgres import watch
from changelog.connectors.sources.postgres.admin import ddl, evidence
from changelog.connectors.sources.postgres.snapshot.chunk_reader import signature
from tests.integration.catalog_readings import CatalogReadings
from tests.integration.site import Running, Site
from tests.integration.test_unlogged import begin, warnings

CONFIGURATION = """
[entities.event]
table = "public.event"
key = ["id", "day"]
"""

PARTITIONED = (
    "CREATE TABLE event (id int, day int, name text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
    "CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM (20) TO (30) PARTITION BY LIST (day)",
    "CREATE TABLE event_2a PARTITION OF event_2 FOR VALUES IN (20, 21)",
    "INSERT INTO event SELECT n, 10, 'old' FROM generate_series(1, 10) AS n",
    "INSERT INTO event SELECT n, 20, 'new' FROM generate_series(1, 10) AS n",
    "CREATE TABLE event_4 PARTITION OF event FOR VALUES FROM (40) TO (50)",
    "CREATE TABLE event_3 (LIKE event INCLUDING ALL)",
    "INSERT INTO event_3 SELECT n, 30, 'outside' FROM generate_series(1, 10) AS n",
)

FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"


@pytest.fixture(params=["database", "database_14"])
def site(request: pytest.FixtureRequest, starts_servers: None, tmp_path: Path) -> Site:
    new_site = Site(request.getfixturevalue(request.param), tmp_path)
    new_site.sql(*PARTITIONED, *(FULL.format(name) for name in ("event", "event_1", "event_2a", "event_3", "event_4")))
    new_site.configure(CONFIGURATION)
    return new_site


def is_same(site: Site) -> bool:
    table = {f'["{row["id"]}","{row["day"]}"]': row for (row,) in site.sql("SELECT to_json(t) FROM event AS t")}
    return site.state("event") == table


def until_repaired(site: Site, service: Running) -> None:
    service.until(lambda: site.is_read() and not site.checkpoint.repairs.get("open") and is_same(site))


DROPPED = ("DROP TABLE event_1",)
TRUNCATED = ("TRUNCATE event_1", "INSERT INTO event SELECT n, 11, 'again' FROM generate_series(1, 3) AS n")
DETACHED = ("ALTER TABLE event DETACH PARTITION event_2",)
ATTACHED = ("ALTER TABLE event ATTACH PARTITION event_3 FOR VALUES FROM (30) TO (40)",)
ATTACHED_AGAIN = (
    "ALTER TABLE event_2 DETACH PARTITION event_2a",
    "DELETE FROM event_2a WHERE id = 1; UPDATE event_2a SET name = 'outside' WHERE id = 2",
    "ALTER TABLE event_2 ATTACH PARTITION event_2a FOR VALUES IN (20, 21)",
)


@pytest.mark.parametrize(
    ("site", "running"), [("database", True), ("database", False), ("database_14", True)], indirect=["site"]
)
@pytest.mark.parametrize(
    ("statements", "reads", "deletes"),
    [
        pytest.param(DROPPED, 0, 10, id="dropped"),
        pytest.param(TRUNCATED, 0, 10, id="truncated"),
        pytest.param(DETACHED, 0, 10, id="detached"),
        pytest.param(ATTACHED, 10, 0, id="attached"),
        pytest.param(ATTACHED_AGAIN, 9, 1, id="attached again"),
    ],
)
def test_only_the_changed_partition_is_read_again(
    site: Site, readings: CatalogReadings, running: bool, statements: tuple[str, ...], reads: int, deletes: int
) -> None:
    with site.running() as service:
        service.until(site.is_read)
        before = len(site.ops("event"))
        if running:
            with readings.held():
                site.sql(*statements, "INSERT INTO event VALUES (99, 40, 'its description requests a reading')")
            until_repaired(site, service)
    if not running:
        site.sql(*statements)
        with site.running() as service:
            until_repaired(site, service)
    ops = [op for op, _ in site.ops("event")[before:]]
    assert (ops.count("read"), ops.count("delete")) == (reads, deletes)


def test_partitions_that_are_rewritten_or_new_are_not_read(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        before = len(site.ops("event"))
        site.sql(
            "VACUUM FULL event_1",
            "CLUSTER event_2a USING event_2a_pkey",
            "CREATE TABLE event_5 PARTITION OF event FOR VALUES FROM (50) TO (60)",
            "CREATE TABLE event_6 PARTITION OF event FOR VALUES FROM (60) TO (70) PARTITION BY LIST (day)",
            "CREATE TABLE event_6a PARTITION OF event_6 FOR VALUES IN (60, 61)",
            "INSERT INTO event VALUES (1, 60, 'before the reading'), (1, 40, 'its description requests a reading')",
        )
        service.until(lambda: is_same(site))
        site.sql("INSERT INTO event VALUES (1, 50, 'seen')")
        service.until(lambda: is_same(site))
    site.sql("VACUUM FULL event_1", "REINDEX TABLE event_1", "VACUUM FREEZE event_1")
    with site.running() as next_service:
        site.sql("INSERT INTO event VALUES (2, 50, 'seen')")
        next_service.until(lambda: is_same(site))
    assert warnings(service) == warnings(next_service) == []
    assert [op for op, _ in site.ops("event")[before:]] == ["create", "create", "create", "create"]


def test_partitions_filled_in_the_transaction_that_attaches_them_are_read(site: Site) -> None:
    begin(site)
    site.sql(
        """
        BEGIN; CREATE TABLE event_5 (LIKE event INCLUDING ALL); SAVEPOINT filled;
        INSERT INTO event_5 VALUES (1, 50, 'outside'); RELEASE filled;
        ALTER TABLE event ATTACH PARTITION event_5 FOR VALUES FROM (50) TO (60); COMMIT
        """
    )
    with site.running() as service:
        until_repaired(site, service)


def test_a_new_partition_without_read_permission_does_not_stop_the_service(site: Site) -> None:
    role = f"{site.name}_run"
    site.configure(CONFIGURATION)
    begin(site)
    site.sql(
        f'CREATE ROLE "{role}" LOGIN REPLICATION',
        f'GRANT SELECT ON event, event_1, event_2, event_2a, event_4 TO "{role}"',
        f'GRANT USAGE ON SCHEMA public TO "{role}"',
    )
    try:
        site.configure(CONFIGURATION, dsn=psycopg.conninfo.make_conninfo(site.dsn, user=role))
        with site.running() as service:
            service.until(lambda: service.said("streaming"))
            site.sql(
                "CREATE TABLE event_5 PARTITION OF event FOR VALUES FROM (50) TO (60)",
                "INSERT INTO event VALUES (1, 50, 'seen')",
                "VACUUM FULL event_1",
                "INSERT INTO event VALUES (2, 50, 'seen')",
            )
            service.until(lambda: is_same(site))
            assert warnings(service) == []
    finally:
        site.sql(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def test_a_reading_that_meets_a_locked_partition_is_repeated_later(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with psycopg.connect(site.dsn) as connection:
            connection.execute("LOCK TABLE event_1 IN ACCESS EXCLUSIVE MODE")
            site.sql("DROP TABLE event_2", "INSERT INTO event VALUES (1, 40, 'its description requests a reading')")
            waiting_since = (
                "SELECT waitstart FROM pg_locks WHERE NOT granted AND relation = 'event_1'::regclass"
                " AND waitstart IS NOT NULL"
            )
            service.until(lambda: bool(site.sql(waiting_since)))
            first_wait = site.sql(waiting_since)
            service.until(
                lambda: site.sql(waiting_since) not in ([], first_wait)
            )  # the first reading has timed out, and the next one waits
        until_repaired(site, service)
        assert not service.said("connection lost")


def test_the_error_of_a_stop_counts_the_changed_partitions(site: Site) -> None:
    site.configure(CONFIGURATION + 'on_unlogged = "stop"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("DROP TABLE event_1", "INSERT INTO event VALUES (99, 20, 'seen')")
        assert "partitions changed: 1 detached or dropped" in str(service.ended())
    assert "partitions changed" in site.refused()
    assert site.call("check")[0] == 1
    site.configure(CONFIGURATION)
    with site.running() as service:
        until_repaired(site, service)


def test_check_reports_partitions_that_changed_after_the_last_reading(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.running() as service:
        service.until(site.is_read)
    assert site.call("check") == (0, [])
    assert "edits are noticed by comparing the catalogue" in capsys.readouterr().out
    site.sql(ddl.SCRIPT, "TRUNCATE event_1", *ATTACHED)
    assert site.call("check")[0] == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "partitions changed: 1 attached, 1 truncated after log position" in output
    assert "the event trigger is installed" in output
    assert "ready:" not in output


def test_a_truncate_of_the_whole_table_is_in_the_log(site: Site) -> None:
    site.configure(CONFIGURATION + 'on_truncate = "publish"\non_unlogged = "stop"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql("TRUNCATE event", "INSERT INTO event VALUES (1, 10, 'after'), (1, 20, 'after')")
        service.until(lambda: len(site.ops("event")) >= 23)
        site.sql("ALTER TABLE event ADD COLUMN more int", "INSERT INTO event VALUES (2, 10, 'requests a reading', 1)")
        service.until(lambda: "2" in str(site.state("event")))
    assert not service.said("changes may be missing from the log")
    assert [op for op, _ in site.ops("event")[20:]] == ["truncate", "create", "create", "create"]


def test_a_partition_that_is_dropped_during_a_reading_is_noticed_by_the_next_one(
    site: Site, readings: CatalogReadings, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = evidence._probe

    def probe_and_drop(connection: psycopg.Connection[Any], leaf: int) -> evidence._PartitionProbe | None:
        partition = probe(connection, leaf)
        if partition is not None and partition.name == "event_1":
            site.sql(*DROPPED)
        return partition

    with site.running() as service:
        service.until(site.is_read)
        with readings.held():
            monkeypatch.setattr(evidence, "_probe", probe_and_drop)
            site.sql("VACUUM FULL event_1", "INSERT INTO event VALUES (99, 40, 'its description requests a reading')")
        until_repaired(site, service)


def test_a_reading_that_loses_its_connection_while_it_describes_a_table_is_repeated(
    site: Site, readings: CatalogReadings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signature_after_a_lost_connection(connection: psycopg.Connection[Any], table: tuple[str, str]) -> str:
        monkeypatch.setattr(watch, "signature", signature)
        site.sql(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 60000)")
        return signature(connection, table)

    with site.running() as service:
        service.until(site.is_read)
        with readings.held():
            monkeypatch.setattr(watch, "signature", signature_after_a_lost_connection)
            site.sql(*ATTACHED, "INSERT INTO event VALUES (99, 40, 'its description requests a reading')")
        service.until(lambda: service.said("connection lost"))
        until_repaired(site, service)
