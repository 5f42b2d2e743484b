"""Changes that the log does not tell: edits of the publication, keys, and tables that take each other's names."""

from pathlib import Path
from typing import Any

import pytest

from changelog.connectors.sources.postgres.admin import ddl
from changelog.connectors.sources.postgres.values.lsn import parse_lsn
from tests.integration.looks import Looks
from tests.integration.site import Running, Site

ITEM = """
[entities.item]
table = "public.item"
"""

PASS = """
schemas = { on_incompatible = "publish" }
"""

ROWS = 20


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    found = Site(database, tmp_path)
    found.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        f"INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, {ROWS}) AS n",
    )
    found.configure(ITEM)
    return found


def begun(site: Site) -> None:
    """A changelog that has the table, and no service."""
    with site.running() as service:
        service.until(site.is_read)


def same(site: Site, entity: str = "item") -> bool:
    """Whether the changelog says what the table does."""
    table = {str(row["id"]): row for (row,) in site.sql(f"SELECT to_json(t) FROM {entity} AS t")}
    return site.state(entity) == table


def until_repaired(site: Site, service: Running, entity: str = "item") -> None:
    service.until(lambda: site.is_read() and not site.checkpoint.repairs.get("open") and same(site, entity))


def told(service: Running) -> list[dict[str, Any]]:
    return [event for event in service.events() if event["event"] == "changes may be missing from the log"]


def log_end(site: Site) -> int:
    [(lsn,)] = site.sql("SELECT pg_current_wal_insert_lsn()::text")
    return parse_lsn(lsn)


def hide(site: Site) -> None:
    """Changes while the table is off the publication, which then is as it was."""
    site.sql(
        f'ALTER PUBLICATION "{site.name}" DROP TABLE item',
        "UPDATE item SET name = 'hidden' WHERE id < 5",
        "DELETE FROM item WHERE id = 10",
        f'ALTER PUBLICATION "{site.name}" ADD TABLE ONLY item',
    )


@pytest.mark.parametrize("trigger", [False, True])
def test_a_table_that_leaves_the_publication_between_two_looks_is_read_again(
    site: Site, looks: Looks, trigger: bool
) -> None:
    if trigger:
        site.sql(ddl.SCRIPT)
    with site.running() as service:
        service.until(site.is_read)
        before = log_end(site)
        with looks.held():
            hide(site)
        after = log_end(site)
        if not trigger:  # else the statement itself asks for a look; so does a row, whose table is described again
            site.sql("INSERT INTO item VALUES (50, 'seen')")
        until_repaired(site, service)
        [change] = told(service)
    bounds = parse_lsn(change["since"]), parse_lsn(change["until"])
    assert bounds[0] <= after
    assert bounds[1] > before
    if trigger:
        assert before <= bounds[0] < bounds[1] <= after


@pytest.mark.parametrize("trigger", [False, True])
def test_an_edit_while_the_service_is_stopped_is_noticed(site: Site, trigger: bool) -> None:
    if trigger:
        site.sql(ddl.SCRIPT)
    begun(site)
    before = log_end(site)
    hide(site)
    after = log_end(site)
    with site.running() as service:
        until_repaired(site, service)
        [change] = told(service)
    if trigger:
        assert before <= parse_lsn(change["since"]) < parse_lsn(change["until"]) <= after
    with site.running() as service:
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: same(site))
        assert told(service) == []


def test_a_row_filter_of_others_stops_the_service_until_it_is_gone(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            f'ALTER PUBLICATION "{site.name}" SET TABLE ONLY item WHERE (id < 15)',
            "INSERT INTO item VALUES (50, 'hidden')",
            "DELETE FROM item WHERE id = 20",
            "UPDATE item SET name = 'seen' WHERE id = 1",
        )
        stopped = str(service.ended())
    assert "disagree on the row filter of public.item" in stopped
    assert "may be missing" in stopped
    assert "disagree on the row filter" in site.refused()
    site.sql(f'ALTER PUBLICATION "{site.name}" SET TABLE ONLY item')
    with site.running() as service:
        until_repaired(site, service)


def test_what_the_policy_says_is_done(site: Site) -> None:
    site.configure(ITEM + 'on_unlogged = "stop"\n')
    begun(site)
    hide(site)
    for _ in range(2):
        stopped = site.refused()
        assert "the table was taken off the publication and added again" in stopped
        assert 'set on_unlogged = "rebuild" in [entities.item]' in stopped
    site.configure(ITEM + 'on_unlogged = "ignore"\n')
    with site.running() as service:
        service.until(lambda: bool(told(service)))
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: "50" in site.state("item"))
        assert not same(site)
    site.configure(ITEM)
    with site.running() as service:
        site.sql("INSERT INTO item VALUES (51, 'seen')")
        service.until(lambda: "51" in site.state("item"))
        assert told(service) == []  # it was let pass


def test_edits_that_hide_nothing_are_let_pass(site: Site) -> None:
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
    with site.running() as again:
        site.sql("INSERT INTO item VALUES (52, 'seen')")
        again.until(lambda: "52" in site.state("item"))
    assert told(service) == told(again) == []
    assert site.ops("item")[reads:] == [("create", "50"), ("create", "51"), ("create", "52")]
    site.sql(f'REASSIGN OWNED BY "{site.name}_owner" TO CURRENT_USER', f'DROP ROLE "{site.name}_owner"')


def test_a_table_that_had_another_name_for_a_while(site: Site, looks: Looks) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with looks.held():
            site.sql(
                "ALTER TABLE item RENAME TO elsewhere",
                "DELETE FROM elsewhere WHERE id = 10",
                "ALTER TABLE elsewhere RENAME TO item",
                "INSERT INTO item VALUES (50, 'seen')",
            )
        until_repaired(site, service)
        assert [change["why"] for change in told(service)] == ["the table had another name or schema for a while"]


def test_a_publication_that_sent_less_for_a_while(site: Site, looks: Looks) -> None:
    with site.running() as service:
        service.until(site.is_read)
        with looks.held():
            site.sql(
                f"ALTER PUBLICATION \"{site.name}\" SET (publish = 'insert')",
                "DELETE FROM item WHERE id = 10",
                f"ALTER PUBLICATION \"{site.name}\" SET (publish = 'insert, update, delete, truncate')",
                "INSERT INTO item VALUES (50, 'seen')",
            )
        until_repaired(site, service)
        assert [change["why"] for change in told(service)] == ["the publication was edited or made again"]


@pytest.mark.parametrize("trigger", [False, True])
def test_a_key_that_nothing_keeps_unique_stops_before_its_next_row(site: Site, trigger: bool) -> None:
    if trigger:
        site.sql(ddl.SCRIPT)
    with site.running() as service:
        service.until(site.is_read)
        site.sql("INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: same(site))
        site.sql("ALTER TABLE item DROP CONSTRAINT item_pkey", "INSERT INTO item VALUES (1, 'twice')")
        assert "has no unique index on (id)" in str(service.ended())
    assert site.ops("item")[-1] == ("create", "50")
    assert "public.item has no primary key" in site.refused(code=2)
    site.sql("DELETE FROM item WHERE name = 'item 1'", "ALTER TABLE item ADD PRIMARY KEY (id)")
    with site.running() as service:
        until_repaired(site, service)


def test_a_primary_key_that_was_away_while_the_service_was(site: Site) -> None:
    begun(site)
    site.sql(
        "ALTER TABLE item DROP CONSTRAINT item_pkey",
        "INSERT INTO item VALUES (1, 'twice')",
        "DELETE FROM item WHERE name = 'item 1'",
        "ALTER TABLE item ADD PRIMARY KEY (id)",
    )
    with site.running() as service:
        until_repaired(site, service)
        assert len(told(service)) == 1


@pytest.mark.parametrize("running", [True, False])
def test_a_key_column_of_another_type_leaves_no_keys_of_the_old_one(site: Site, running: bool) -> None:
    site.configure(ITEM + PASS)
    statements = ("ALTER TABLE item ALTER id TYPE numeric(6, 2)", "INSERT INTO item VALUES (50, 'seen')")
    if not running:
        begun(site)
        site.sql(*statements)
    with site.running() as service:
        if running:
            service.until(site.is_read)
            site.sql(*statements)
        service.until(lambda: "1.00" in site.state("item") and not site.checkpoint.repairs.get("open"))
        service.until(lambda: set(site.state("item")) == {f"{n}.00" for n in (*range(1, ROWS + 1), 50)})


def test_a_key_that_grows_to_bigint_is_not_read_again(site: Site) -> None:
    site.configure(ITEM + PASS)
    with site.running() as service:
        service.until(site.is_read)
        before = len(site.ops("item"))
        site.sql("ALTER TABLE item ALTER id TYPE bigint", "INSERT INTO item VALUES (50, 'seen')")
        service.until(lambda: "50" in site.state("item"))
        assert told(service) == []
    assert site.ops("item")[before:] == [("create", "50")]


@pytest.mark.parametrize("running", [True, False])
def test_two_tables_that_swap_names_are_both_read_again(site: Site, looks: Looks, running: bool) -> None:
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
        begun(site)
        site.sql(*swap)
    with site.running() as service:
        if running:
            service.until(site.is_read)
            with looks.held():
                site.sql(*swap)
        until_repaired(site, service)
        until_repaired(site, service, "other")


def test_the_event_trigger_lets_every_statement_pass(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` prints it."""
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
