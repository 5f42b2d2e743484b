"""Tests that the service notices edits of the publication, changes of keys, and tables that exchange their names. It
must then repair the changelog.

By default, the database's log does not show such changes. The service notices them when it reads the catalogue: at
intervals, and whenever the server's stream describes a table. In these tests, a *reading* is one such read of the
catalogue. If the event trigger `ddl.SCRIPT` is installed, the log says when a table or the publication was edited.
"""

from pathlib import Path
from typing import Any

import pytest

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.sources.postgres.admin import ddl
from changelog.connectors.sources.postgres.noticed import Noticed
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.catalog_readings import CatalogReadings
from tests.integration.site import Running, Site

ITEM = """
[entities.item]
table = "public.item"
"""

PUBLISH_INCOMPATIBLE = """
schemas = { on_incompatible = "publish" }
"""

ROWS = 20


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    new_site = Site(database, tmp_path)
    new_site.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, {ROWS}) AS n",
    )
    new_site.configure(ITEM)
    return new_site


def begin(site: Site) -> None:
    """Runs a service until it has read the table, and stops the service."""
    with site.running() as service:
        service.until(site.is_read)


def is_same(site: Site, entity: str = "item") -> bool:
    """Returns whether the changelog has the same rows as the table."""
    table = {str(row["id"]): row for (row,) in site.sql(f"SELECT to_json(t) FROM {entity} AS t")}
    return site.state(entity) == table


def until_repaired(site: Site, service: Running, entity: str = "item") -> None:
    service.until(lambda: site.is_read() and not site.checkpoint.repairs.get("open") and is_same(site, entity))


def warnings(service: Running) -> list[dict[str, Any]]:
    return [event for event in service.events() if event["event"] == "changes may be missing from the log"]


def log_end(site: Site) -> int:
    [(lsn,)] = site.sql("SELECT pg_current_wal_insert_lsn()::text")
    return parse_lsn(lsn)


def hide(site: Site) -> None:
    """Removes the table from the publication, changes some of its rows, and adds the table again."""
    site.sql(
        f'ALTER PUBLICATION "{site.name}" DROP TABLE item',
        "UPDATE item SET name = 'hidden' WHERE id < 5",
        "DELETE FROM item WHERE id = 10",
        f'ALTER PUBLICATION "{site.name}" ADD TABLE ONLY item',
    )


@pytest.mark.parametrize("trigger", [False, True])
def test_a_table_that_leaves_the_publication_between_two_readings_is_read_again(
    site: Site, readings: CatalogReadings, trigger: bool
) -> None:
    if trigger:
        site.sql(ddl.SCRIPT)
    with site.running() as service:
        service.until(site.is_read)
        before = log_end(site)
        with readings.held():
            hide(site)
        after = log_end(site)
        if not trigger:  # the stream describes the table again before this row, so the service reads the catalogue
            site.sql("INSERT INTO item VALUES (50, 'seen')")
        until_repaired(site, service)
        [warning] = warnings(service)
    bounds = parse_lsn(warning["since"]), parse_lsn(warning["until"])
    assert bounds[0] <= after
    assert bounds[1] > before
    if trigger:
        assert before <= bounds[0] < bounds[1] <= after


@pytest.mark.parametrize("trigger", [False, True])
def test_an_edit_while_the_service_is_stopped_is_noticed(site: Site, trigger: bool) -> None:
    if trigger:
        site.sql(ddl.SCRIPT)
    begin(site)
    before = log_end(site)
    hide(site)
    after = log_end(site)
    with site.running() as service:
        until_repaired(site, service)
        [warning] = warnings(service)
    if trigger:
        assert before <= parse_lsn(warning["since"]) < parse_lsn(warning["until"]) <= after
    with site.running() as service:
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: is_same(site))
        assert warnings(service) == []


def test_a_foreign_row_filter_stops_the_service_until_it_is_removed(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            f'ALTER PUBLICATION "{site.name}" SET TABLE ONLY item WHERE (id < 15)',
            "INSERT INTO item VALUES (50, 'hidden')",
            "DELETE FROM item WHERE id = 20",
            "UPDATE item SET name = 'seen' WHERE id = 1",
        )
        error = str(service.ended())
    assert "disagree on the row filter of table public.item" in error
    assert "may be missing" in error
    assert "disagree on the row filter" in site.refused()
    site.sql(f'ALTER PUBLICATION "{site.name}" SET TABLE ONLY item')
    with site.running() as service:
        until_repaired(site, service)


def test_the_service_stops_at_an_edit_or_ignores_it_as_its_policy_says(site: Site) -> None:
    site.configure(ITEM + 'on_unlogged = "stop"\n')
    begin(site)
    hide(site)
    for _ in range(2):
        error = site.refused()
        assert "the table was removed from the publication and added again" in error
        assert 'set on_unlogged = "rebuild" in [entities.item]' in error
    site.configure(ITEM + 'on_unlogged = "ignore"\n')
    with site.running() as service:
        service.until(lambda: bool(warnings(service)))
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: "50" in site.state("item"))
        assert not is_same(site)
    site.configure(ITEM)
    with site.running() as service:
        site.sql("INSERT INTO item VALUES (51, 'seen')")
        service.until(lambda: "51" in site.state("item"))
        assert warnings(service) == []  # the ignored edit is not reported again


def test_rows_that_were_read_before_the_service_stops_are_published(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.running() as service:
        service.until(site.is_read)
        before = site.checkpoint.position

        def stop_after_the_row(_: Noticed, checkpoint: Checkpoint, repairs: Repairs) -> tuple[Checkpoint, Repairs]:
            if checkpoint.position != before:
                raise ChangelogError(Kind.GAP, "changes made meanwhile may be missing")
            return checkpoint, repairs

        monkeypatch.setattr(Noticed, "settle", stop_after_the_row)
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        assert "may be missing" in str(service.ended())
    assert is_same(site)


def test_edits_that_hide_no_change_are_not_reported(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        reads = len(site.ops("item"))
        site.sql(
            "CREATE TABLE other (id int PRIMARY KEY)",
            f'ALTER PUBLICATION "{site.name}" ADD TABLE other',
            f'ALTER PUBLICATION "{site.name}" SET TABLE ONLY item, other',
            f'CREATE ROLE "{site.name}_owner" SUPERUSER',
            f'ALTER PUBLICATION "{site.name}" OWNER TO "{site.name}_owner"',
            f'ALTER TABLE item OWNER TO "{site.name}_owner"',
            "ALTER TABLE item ADD COLUMN more int",
            "ALTER TABLE item DROP COLUMN more",
            "VACUUM FREEZE pg_publication",
            "VACUUM FULL pg_publication_rel",
            "REINDEX TABLE CONCURRENTLY item",
            "VACUUM FULL item",
            "INSERT INTO item VALUES (50, 'seen')",
        )
        service.until(lambda: "50" in site.state("item"))
        site.sql("ANALYZE item", "INSERT INTO item VALUES (51, 'seen')")
        service.until(lambda: "51" in site.state("item"))
    with site.running() as next_service:
        site.sql("INSERT INTO item VALUES (52, 'seen')")
        next_service.until(lambda: "52" in site.state("item"))
    assert warnings(service) == warnings(next_service) == []
    assert site.ops("item")[reads:] == [("create", "50"), ("create", "51"), ("create", "52")]
    site.sql(f'REASSIGN OWNED BY "{site.name}_owner" TO CURRENT_USER', f'DROP ROLE "{site.name}_owner"')


def test_a_table_that_temporarily_had_another_name_is_read_again(site: Site, readings: CatalogReadings) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with readings.held():
            site.sql(
                "ALTER TABLE item RENAME TO elsewhere",
                "DELETE FROM elsewhere WHERE id = 10",
                "ALTER TABLE elsewhere RENAME TO item",
                "INSERT INTO item VALUES (50, 'seen')",
            )
        until_repaired(site, service)
        assert [warning["why"] for warning in warnings(service)] == ["the table had another name or schema for a while"]


def test_a_table_is_read_again_if_its_publication_temporarily_left_out_changes(
    site: Site, readings: CatalogReadings
) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with readings.held():
            site.sql(
                f"ALTER PUBLICATION \"{site.name}\" SET (publish = 'insert')",
                "DELETE FROM item WHERE id = 10",
                f"ALTER PUBLICATION \"{site.name}\" SET (publish = 'insert, update, delete, truncate')",
                "INSERT INTO item VALUES (50, 'seen')",
            )
        until_repaired(site, service)
        assert [warning["why"] for warning in warnings(service)] == ["the publication was edited or made again"]


@pytest.mark.parametrize("trigger", [False, True])
def test_a_key_without_a_unique_index_stops_the_service_before_the_next_row(site: Site, trigger: bool) -> None:
    if trigger:
        site.sql(ddl.SCRIPT)
    with site.running() as service:
        service.until(site.is_read)
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: is_same(site))
        site.sql("ALTER TABLE item DROP CONSTRAINT item_pkey", "INSERT INTO item VALUES (1, 'twice')")
        assert "has no unique index on (id)" in str(service.ended())
    assert site.ops("item")[-1] == ("create", "50")
    assert "public.item has no primary key" in site.refused(code=2)
    site.sql("DELETE FROM item WHERE name = 'item 1'", "ALTER TABLE item ADD PRIMARY KEY (id)")
    with site.running() as service:
        until_repaired(site, service)


def test_a_table_is_read_again_if_it_had_no_primary_key_while_the_service_was_stopped(site: Site) -> None:
    begin(site)
    site.sql(
        "ALTER TABLE item DROP CONSTRAINT item_pkey",
        "INSERT INTO item VALUES (1, 'twice')",
        "DELETE FROM item WHERE name = 'item 1'",
        "ALTER TABLE item ADD PRIMARY KEY (id)",
    )
    with site.running() as service:
        until_repaired(site, service)
        assert len(warnings(service)) == 1


@pytest.mark.parametrize("running", [True, False])
def test_after_a_change_of_the_keys_type_no_old_keys_remain(site: Site, running: bool) -> None:
    site.configure(ITEM + PUBLISH_INCOMPATIBLE)
    statements = ("ALTER TABLE item ALTER id TYPE numeric(6, 2)", "INSERT INTO item VALUES (50, 'seen')")
    if not running:
        begin(site)
        site.sql(*statements)
    with site.running() as service:
        if running:
            service.until(site.is_read)
            site.sql(*statements)
        service.until(lambda: "1.00" in site.state("item") and not site.checkpoint.repairs.get("open"))
        service.until(lambda: set(site.state("item")) == {f"{n}.00" for n in (*range(1, ROWS + 1), 50)})


def test_a_table_whose_key_grows_to_bigint_is_not_read_again(site: Site) -> None:
    site.configure(ITEM + PUBLISH_INCOMPATIBLE)
    with site.running() as service:
        service.until(site.is_read)
        before = len(site.ops("item"))
        site.sql("ALTER TABLE item ALTER id TYPE bigint", "INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: "50" in site.state("item"))
        assert warnings(service) == []
    assert site.ops("item")[before:] == [("create", "50")]


@pytest.mark.parametrize("running", [True, False])
def test_two_tables_that_swap_names_are_both_read_again(site: Site, readings: CatalogReadings, running: bool) -> None:
    site.sql(
        "CREATE TABLE other (id int PRIMARY KEY, name text)",
        "ALTER TABLE other REPLICA IDENTITY FULL",
        "INSERT INTO other SELECT n, 'other ' || n FROM generate_series(10, 40) AS n",
    )
    site.configure(ITEM + '[entities.other]\ntable = "public.other"\n')
    swap = (
        "ALTER TABLE item RENAME TO passing",
        "ALTER TABLE other RENAME TO item",
        "ALTER TABLE passing RENAME TO other",
        "UPDATE item SET name = 'seen' WHERE id = 40",
    )
    if not running:
        begin(site)
        site.sql(*swap)
    with site.running() as service:
        if running:
            service.until(site.is_read)
            with readings.held():
                site.sql(*swap)
        until_repaired(site, service)
        until_repaired(site, service, "other")


def test_the_event_trigger_prevents_no_statement(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The test installs the trigger that `init --event-trigger` prints."""
    role = f"{site.name}_app"
    assert site.call("init", "--event-trigger") == (0, [])
    site.sql(
        capsys.readouterr().out,
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC",
        f'CREATE ROLE "{role}"',
        f'CREATE SCHEMA app AUTHORIZATION "{role}"',
    )
    try:
        site.sql(f'SET ROLE "{role}"; CREATE TABLE app.t (id int); ALTER TABLE app.t ADD n int; DROP TABLE app.t')
        assert site.sql("SELECT to_regclass('app.t')") == [(None,)]
    finally:
        site.sql(f'DROP SCHEMA app; DROP ROLE "{role}"')
