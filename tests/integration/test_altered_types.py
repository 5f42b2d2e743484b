"""Tests ALTER TYPE of a composite type: a type whose values have named attributes. PostgreSQL's stream of changes does
not contain this statement.

The tests check which attribute names the published values have. A row may have been written before or after the ALTER
TYPE. If the service cannot know which names were valid when the row was written, it publishes the value as text.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors import config
from changelog.connectors.service.service import Service
from changelog.connectors.sources.postgres.admin import ddl
from changelog.connectors.sources.postgres.snapshot.chunk_reader import signature
from changelog.envelope.entity import SCHEMAS
from tests.integration.site import Running, Site
from tests.servers import VERSIONS, fresh_database, server_name

TABLES = """
CREATE TYPE inside AS (p int, q text);
CREATE TYPE co AS (x text, y int, deep inside);
CREATE DOMAIN wrapped AS co;
CREATE TYPE span AS RANGE (subtype = inside);
CREATE TABLE part (a int, b text);
CREATE TABLE item (id int PRIMARY KEY, c co, many co[], d wrapped, r span, row part);
ALTER TABLE item REPLICA IDENTITY FULL;
"""

FIRST = """INSERT INTO item VALUES (1, ROW('hello', 9, ROW(1, 'q')), ARRAY[ROW('hello', 9, ROW(1, 'q'))::co],
ROW('hello', 9, ROW(1, 'q')), span(ROW(1, 'q'), ROW(2, 'q')), ROW(1, 'b'))"""

ENTITIES = """
[entities.item]
table = "public.item"
[schemas]
on_incompatible = "publish"
"""

OLD = {"x": "hello", "y": 9, "deep": {"p": 1, "q": "q"}}
NEW = {"later": "hello", "y": 9, "deep": {"p": 1, "q": "q"}}
TEXT = '(hello,9,"(1,q)")'

Row = dict[str, Any]


@pytest.fixture(params=[VERSIONS[0], VERSIONS[-1]])  # only the oldest version streams transactions without rows
def site(request: pytest.FixtureRequest, starts_servers: None, tmp_path: Path) -> Iterator[Site]:
    """A site in a fresh database, on the oldest and on the newest version. It has one table. All of its columns but the
    key contain values of composite types.
    """
    with fresh_database(request.getfixturevalue(server_name(request.param))) as dsn:
        new_site = Site(dsn, tmp_path)
        new_site.sql(TABLES, FIRST)
        new_site.configure(ENTITIES)
        yield new_site


def currents(site: Site, key: int = 1) -> list[Row]:
    return [message["value"]["current"] for message in site.messages("item") if message["key"] == str(key)]


def test_after_alter_type_rows_have_the_new_names(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET id = 1")
        service.until(lambda: len(currents(site)) == 2)
        site.sql(
            "ALTER TYPE co DROP ATTRIBUTE x",
            "ALTER TYPE co ADD ATTRIBUTE w int",
            "ALTER TYPE inside RENAME ATTRIBUTE p TO first",
            "ALTER TABLE part DROP COLUMN a",
            "ALTER TABLE part ADD COLUMN z boolean",
            "UPDATE item SET id = 1",
        )
        service.until(lambda: len(site.messages(SCHEMAS)) == 2 and site.is_read())
        site.sql("UPDATE item SET c.w = 7, row.z = true")
        service.until(lambda: "7" in json.dumps(currents(site)[-1]["c"]))
    deep = {"first": 1, "q": "q"}
    new = {"y": 9, "deep": deep, "w": None}
    assert currents(site)[1]["c"] == OLD
    assert currents(site)[-1] == {
        "id": 1,
        "c": {"y": 9, "deep": deep, "w": 7},
        "many": [new],
        "d": new,
        "r": {"lower": deep, "upper": {"first": 2, "q": "q"}, "bounds": "[)"},
        "row": {"b": "b", "z": True},
    }
    assert currents(site)[-2]["c"] == new  # the row was read again
    [_, version] = [message["value"]["current"] for message in site.messages(SCHEMAS)]
    assert sorted(change["column"] for change in version["changes"]) == ["c", "d", "many", "r", "row"]
    assert {change["kind"] for change in version["changes"]} == {"retyped"}
    assert version["restated"] == ["c", "many", "d", "r", "row"]


def test_each_row_has_the_attribute_names_that_were_valid_when_it_was_written(site: Site) -> None:
    """An attribute is renamed again and again while rows are written. Each row holds the number of the last rename
    before the row was written.
    """
    with site.running() as service:
        service.until(site.is_read)
        key = 1
        for turn in range(12):
            site.sql(f"ALTER TYPE inside RENAME ATTRIBUTE {'p' if turn == 0 else f'p{turn - 1}'} TO p{turn}")
            for _ in range(4):
                key += 1
                site.sql(f"INSERT INTO item (id, c) VALUES ({key}, ROW('{turn}', 0, ROW({turn}, 'q')))")
        service.until(lambda: bool(currents(site, key)))
        service.until(site.is_read)
        service.until(lambda: all(deep(row).keys() == {"p11", "q"} for row in site.state("item").values()))
    for message in site.messages("item"):
        if message["value"]["provenance"]["source"]["op"] == "create":
            check(message["value"]["current"]["c"])


def deep(row: Row) -> Row:
    return {} if isinstance(row["c"], str) else dict(row["c"]["deep"])


def check(composite: Any) -> None:
    """Checks that the value has the names that were valid when it was written, or is the text from the database."""
    if isinstance(composite, str):
        assert composite.startswith("(")
    else:
        deep = composite["deep"]
        assert deep == {f"p{composite['x']}": int(composite["x"]), "q": "q"}


@pytest.mark.parametrize("has_trigger", [False, True], ids=["bare", "with the event trigger"])
def test_a_service_that_lags_gives_no_newer_name_to_an_older_row(site: Site, *, has_trigger: bool) -> None:
    """If the stream shows the transaction that alters the type, the service knows which rows were written after it.

    The stream of PostgreSQL 14 always shows the transaction. The stream of newer versions shows it only if the event
    trigger writes a message.
    """
    if has_trigger:
        site.sql(ddl.SCRIPT)
    with site.running() as service:
        service.until(site.is_read)
    site.sql(
        "UPDATE item SET id = 1",
        "ALTER TYPE co RENAME ATTRIBUTE x TO later",
        "UPDATE item SET id = 1",
    )
    with site.running() as service:
        service.until(lambda: len(currents(site)) >= 3 and site.is_read())
        site.sql("UPDATE item SET id = 1")
        service.until(lambda: currents(site)[-1]["c"] == NEW)
    boundary_known = has_trigger or site.sql("SHOW server_version_num")[0][0] < "150000"
    assert [row["c"] for row in currents(site)][:3] == [OLD, TEXT, NEW if boundary_known else TEXT]


def test_an_incompatible_change_of_a_type_stops_the_service(site: Site) -> None:
    site.configure(ENTITIES.replace("publish", "stop"))
    with site.running() as service:
        service.until(site.is_read)
        site.sql("ALTER TYPE co RENAME ATTRIBUTE x TO later", "UPDATE item SET id = 1")
        error = service.ended()
    assert str(error).startswith("the columns of entity item changed in a way that is not compatible")
    assert str(site.refused()) == str(error)
    assert site.call("schemas", "accept", "item", str(error.position))[0] == 0
    with site.running() as service:
        service.until(lambda: site.is_read() and currents(site)[-1]["c"] == NEW)


def test_a_table_may_take_the_name_of_a_table_with_composites(site: Site) -> None:
    """The stream describes both tables. After the swap, the types of the old table's columns no longer matter."""
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET id = 1")
        service.until(lambda: len(currents(site)) == 2)
        with psycopg.connect(site.dsn) as migration:  # in one transaction
            migration.execute("ALTER TABLE item RENAME TO former")
            migration.execute("CREATE TABLE item (LIKE former INCLUDING ALL)")
            migration.execute("ALTER TABLE item REPLICA IDENTITY FULL")
            migration.execute(f"ALTER PUBLICATION {site.name} ADD TABLE item".encode())
            migration.execute('INSERT INTO item SELECT 2, c, many, d, r, "row" FROM former')
        service.until(lambda: site.is_read() and set(site.state("item")) == {"2"})
        site.sql("UPDATE former SET id = 3", "INSERT INTO item (id) VALUES (4)")
        service.until(lambda: set(site.state("item")) == {"2", "4"})
    assert currents(site, 2)[-1]["c"] == OLD


def test_while_a_type_is_being_altered_its_values_are_published_as_text(site: Site) -> None:
    with site.running() as service, psycopg.connect(site.dsn) as migration:
        service.until(site.is_read)
        with psycopg.connect(site.dsn, autocommit=True) as writer:
            writer.execute("UPDATE item SET id = 1")
            service.until(lambda: len(currents(site)) == 2)
            migration.execute("ALTER TYPE co RENAME ATTRIBUTE x TO later")
            writer.execute("UPDATE item SET id = 1")
            service.until(lambda: len(currents(site)) == 3)
            migration.rollback()
            writer.execute("UPDATE item SET id = 1")
            service.until(lambda: len(currents(site)) == 4)
    assert [row["c"] for row in currents(site)] == [OLD, OLD, TEXT, OLD]
    assert len(site.messages(SCHEMAS)) == 1


def test_a_type_that_is_created_together_with_its_first_rows_is_known(site: Site) -> None:
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "CREATE TYPE fresh AS (k int); ALTER TABLE item ADD COLUMN f fresh; UPDATE item SET f = ROW(5)",
        )
        service.until(lambda: len(currents(site)) == 2)
    assert currents(site)[-1]["f"] == {"k": 5}


def test_a_chunk_is_read_again_if_a_type_is_altered_while_it_is_read(database: str, tmp_path: Path) -> None:
    site = Site(database, tmp_path)
    site.sql(TABLES, FIRST)
    site.configure(ENTITIES)
    points: list[str] = []

    def alter(point: str) -> None:
        if point == "window:begun" and point not in points:
            points.append(point)
            site.sql("ALTER TYPE co RENAME ATTRIBUTE x TO later")

    service = Running(Service(config.load(site.config, {}), reach=alter))
    try:
        service.until(site.is_read)
    finally:
        service.stop()
    service.check()
    assert [row["c"] for row in currents(site)] == [NEW]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TYPE co RENAME ATTRIBUTE x TO later",
        "ALTER TYPE inside ADD ATTRIBUTE z int",
        "ALTER TABLE part DROP COLUMN b",
        "ALTER TABLE item DROP COLUMN c",
    ],
)
def test_altering_a_type_changes_the_signature_of_tables_that_use_it(database: str, statement: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        before = signature(connection, ("public", "item"))
        connection.execute("CREATE TABLE other (id int)")
        assert signature(connection, ("public", "item")) == before
        connection.execute(statement.encode())
        assert signature(connection, ("public", "item")) != before
