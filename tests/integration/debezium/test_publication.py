"""Tests that the service itself creates the publication for Debezium, before it starts Debezium. If the service lacks a
right to do so, `changelog check` must say which one.

If the publication later loses a table, changes may be lost; the service calls this a *gap*.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changelog.connectors import config, gaps
from changelog.connectors.failpoints import nowhere
from changelog.connectors.findings import Finding
from changelog.connectors.sources.debezium.inputs.engine.publication import Publication, publication_of
from changelog.connectors.sources.debezium.inputs.engine.settings import MODE, defaults
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.debezium.in_process import InProcess, create_orders, over_postgres
from tests.integration.debezium.site import connector

PASSWORD = "secret-of-the-role"


def publication(dsn: str, *tables: str, **more: str) -> Publication:
    """Returns the publication `app` for these tables of the schema `public`.

    `more` are additional properties. Their names have underscores in place of dots. The publication counts as shared
    with other programs only if `more` has `publication_name`.
    """
    names = ("database.hostname", "database.port", "database.dbname", "database.user", "database.password")
    properties = {
        **defaults("postgresql", None, "app", [("public", table) for table in tables]),
        **{key: value for key, value in connector(dsn).items() if key in names},
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    result = publication_of("postgresql", properties, shared="publication_name" in more)
    assert result is not None
    return result


def sql(dsn: str, *statements: str) -> list[tuple[object, ...]]:
    """Runs each statement in a transaction of its own. Returns the rows of the last statement."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def published_tables(dsn: str) -> list[str]:
    """Returns the names of all tables that are in a publication of the database."""
    return [str(name) for (name,) in sql(dsn, "SELECT tablename FROM pg_publication_tables ORDER BY 1")]


def findings_of(publication: Publication, stored: list[str] | None = None, *, continues: bool = False) -> list[Finding]:
    return list(publication.findings(stored, continues=continues))


@pytest.fixture
def dsn(database: str) -> str:
    """The connection string of a database with several kinds of tables: plain, inheriting, unlogged and partitioned."""
    sql(
        database,
        "CREATE TABLE a (id int PRIMARY KEY)",
        'CREATE TABLE "B c" (id int PRIMARY KEY)',
        "CREATE TABLE heir () INHERITS (a)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parent FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE signals (id text PRIMARY KEY, type text, data text)",
    )
    return database


def test_the_publication_is_created_and_updated(dsn: str) -> None:
    first = publication(dsn, "a", "B c")
    [finding] = findings_of(first)
    assert finding.status == "ok"
    assert finding.message.endswith(
        'FOR TABLE ONLY "public"."B c", ONLY "public"."a" WITH (publish_via_partition_root = true)'
    )
    assert first.made(None, continues=False) == ["public.B c", "public.a"]
    assert published_tables(dsn) == ["B c", "a"]
    assert [finding.message for finding in findings_of(first)] == ["publication app has the tables that Debezium reads"]
    second = publication(dsn, "a", "parent", signal_data_collection="public.signals")
    assert findings_of(second)[0].message.startswith(
        "publication app lacks public.parent, public.signals and still has public.B c; "
    )
    assert second.made(["public.B c", "public.a"], continues=True) == ["public.a", "public.parent", "public.signals"]
    assert published_tables(dsn) == ["a", "parent", "signals"]


def test_a_named_publication_loses_no_table(dsn: str) -> None:
    sql(dsn, 'CREATE PUBLICATION app FOR TABLE "B c"')
    publication(dsn, "a", publication_name="app").made(None, continues=False)
    assert published_tables(dsn) == ["B c", "a"]


def test_a_publication_for_all_tables_is_used_as_it_is(dsn: str) -> None:
    all_tables = publication(dsn, "a", publication_autocreate_mode="all_tables")
    assert all_tables.made(None, continues=False) is None
    all_names = published_tables(dsn)
    assert "signals" in all_names
    publication(dsn, "a").made(None, continues=False)
    assert published_tables(dsn) == all_names


def test_partitions_are_published_under_the_name_of_their_table(dsn: str) -> None:
    sql(dsn, "CREATE PUBLICATION app FOR TABLE parent")
    assert published_tables(dsn) == ["part"]
    assert findings_of(publication(dsn, "parent"))[0].message.startswith(
        "publication app publishes partitions under their own names; "
    )
    publication(dsn, "parent").made(None, continues=True)
    assert published_tables(dsn) == ["parent"]


@pytest.mark.parametrize("pattern", ["public.(a|B C)", r"public\.[aB].*", "PUBLIC.A, public.b c"])
def test_tables_may_be_named_by_patterns(dsn: str, pattern: str) -> None:
    publication(dsn, table_include_list=pattern).made(None, continues=False)
    assert published_tables(dsn) == ["B c", "a"]


def test_a_table_that_does_not_exist_yet_is_added_later(dsn: str) -> None:
    [warning, _] = findings_of(publication(dsn, "a", "later"))
    assert (warning.status, warning.message.rpartition(" has ")[2]) == ("warn", "no table public.later yet")
    publication(dsn, "a", "later").made(None, continues=False)
    sql(dsn, "CREATE TABLE later (id int PRIMARY KEY)")
    assert publication(dsn, "a", "later").made(["public.a"], continues=True) == ["public.a", "public.later"]
    with pytest.raises(ChangelogError, match=r"has no table public\.never, so there is nothing to publish") as caught:
        publication(dsn, "never").made(None, continues=False)
    assert caught.value.kind is Kind.PRECONDITION


@pytest.mark.parametrize(
    ("statement", "loss"),
    [
        ("DROP PUBLICATION app", "there is no publication app any more"),
        ("ALTER PUBLICATION app DROP TABLE ONLY a", "publication app no longer has the table public.a"),
        (
            "DROP TABLE a CASCADE; CREATE TABLE a (id int PRIMARY KEY)",
            "publication app no longer has the table public.a",
        ),
    ],
)
def test_a_publication_that_lost_a_table_is_a_gap(dsn: str, statement: str, loss: str) -> None:
    both_tables = publication(dsn, "a", "B c")
    stored = both_tables.made(None, continues=False)
    assert stored is not None
    sql(dsn, *statement.split("; "))
    with pytest.raises(ChangelogError) as caught:
        both_tables.made(stored, continues=True)
    assert (caught.value.kind, caught.value.message) == (Kind.GAP, f"{loss}, so the log may lack changes")
    assert [finding.status for finding in findings_of(both_tables, list(stored), continues=True)] == ["fail"]
    assert both_tables.made(None, continues=False) == stored  # the first start after the gap


def test_a_publication_of_the_user_is_only_checked(dsn: str) -> None:
    user_publication = publication(dsn, "a", "B c", publication_autocreate_mode="disabled")
    assert not user_publication.is_ours
    [finding] = findings_of(user_publication)
    assert finding.message == f"publication app does not exist yet, and {MODE} is disabled"
    assert (finding.hint or "").startswith('run: CREATE PUBLICATION "app" FOR TABLE ONLY "public"."B c"')
    sql(dsn, "CREATE PUBLICATION app FOR TABLE ONLY a")
    assert findings_of(user_publication)[0].message == f"publication app lacks public.B c, and {MODE} is disabled"
    sql(dsn, 'ALTER PUBLICATION app ADD TABLE ONLY "B c"')
    assert findings_of(user_publication)[0].status == "ok"


@pytest.fixture
def role(dsn: str, own_name: str) -> Iterator[str]:
    """A role that may connect and replicate, but owns nothing."""
    sql(dsn, f"CREATE ROLE {own_name} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    yield own_name
    sql(dsn, f"DROP OWNED BY {own_name}", f"DROP ROLE {own_name}")


def test_check_says_which_right_is_missing(dsn: str, role: str) -> None:
    [(owner, name)] = sql(dsn, "SELECT current_user::text, current_database()::text")
    publication_of_role = publication(dsn, "a", database_user=role, database_password=PASSWORD)
    [finding] = findings_of(publication_of_role)
    assert finding.status == "fail"
    assert finding.message == (
        f"publication app does not exist yet, and role {role} may not change that: the role lacks CREATE on database "
        f"{name}; table public.a belongs to role {owner}"
    )
    assert (finding.hint or "").startswith('run, as a role that may do so: CREATE PUBLICATION "app"')
    with pytest.raises(ChangelogError) as caught:
        publication_of_role.made(None, continues=False)
    assert caught.value.kind is Kind.ACCESS
    assert caught.value.message == f"setting up publication app: permission denied for database {name}"
    publication(dsn, "a").made(None, continues=False)
    assert publication_of_role.made(None, continues=True) == ["public.a"]
    assert findings_of(publication_of_role)[0].status == "ok"
    larger_publication = publication(dsn, "a", "B c", database_user=role, database_password=PASSWORD)
    assert findings_of(larger_publication)[0].message.endswith(
        f"the publication belongs to role {owner}; table public.B c belongs to role {owner}"
    )
    all_tables = publication(
        dsn, "a", database_user=role, database_password=PASSWORD, publication_autocreate_mode="all_tables"
    )
    sql(dsn, "DROP PUBLICATION app")
    assert findings_of(all_tables)[0].message.endswith("only a superuser may publish all tables")


def test_errors_are_reported_in_one_line(dsn: str) -> None:
    for more, line in (
        ({"database_user": "nobody_here"}, 'role "nobody_here" does not exist'),
        ({"database_dbname": "no_such"}, 'database "no_such" does not exist'),
        ({"database_port": "1"}, "cannot connect to PostgreSQL"),
        ({"database_port": "x"}, "database.port is not a number: x"),
        ({"table_include_list": "public.("}, "public.( is not a pattern that the service understands"),
    ):
        [finding] = findings_of(publication(dsn, "a", **more))
        assert finding.status == "fail"
        assert line in finding.message
        assert "\n" not in finding.message


def test_a_publication_of_the_user_may_be_out_of_reach(dsn: str) -> None:
    """The finding is only a warning, because Debezium may be able to reach a server that libpq cannot reach."""
    [finding] = findings_of(publication(dsn, "a", publication_autocreate_mode="disabled", database_port="1"))
    assert finding.status == "warn"


# The service with Debezium


@pytest.fixture
def site(database: str, tmp_path: Path) -> InProcess:
    # Debezium waits before it streams, so that the table can be altered between the snapshot and the stream.
    site = over_postgres(database, tmp_path, {"streaming.delay.ms": "4000"})
    create_orders(site)
    return site


def test_rows_from_before_an_alter_table_at_the_first_start_are_read_correctly(site: InProcess) -> None:
    """If Debezium created the publication in its own session, PostgreSQL would decode the rows from before the ALTER
    TABLE wrongly.
    """
    with site.running() as service:
        service.until(lambda: len(site.messages("orders")) == 40)
        site.sql(
            "UPDATE orders SET status = repeat('x', 50) WHERE id <= 10",
            "ALTER TABLE orders ALTER amount TYPE text",
            "UPDATE orders SET amount = 'much' WHERE id <= 10",
        )
        service.until(lambda: len(site.messages("orders")) == 60)
        assert not service.said("connection lost")
    assert [message["value"]["current"] for message in site.messages("orders")[40::10]] == [
        {"id": 1, "status": "x" * 50, "amount": "0.25"},
        {"id": 1, "status": "x" * 50, "amount": "much"},
    ]


def test_a_publication_that_is_gone_is_a_gap_and_drop_drops_it(site: InProcess) -> None:
    site.publish(40)
    assert site.call("check") == (0, [])
    site.sql("DROP PUBLICATION app")
    assert site.refused("run").startswith("there is no publication app any more, so the log may lack changes; ")
    settings = config.load(site.config, os.environ)
    gap = gaps.find(settings, accept_settings=False, reach=nowhere)
    assert gap is not None
    gaps.cross(settings, gap, accept_settings=False, reach=nowhere)
    site.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
    site.publish(80)
    assert site.checkpoint.source["identity"]["published"] == ["public.orders"]
    assert published_tables(site.dsn) == ["orders"]
    assert site.call("drop", "--publication", "--yes") == (0, [])
    assert published_tables(site.dsn) == []


def test_changes_of_a_partitioned_table_are_published(site: InProcess) -> None:
    site.sql(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, status text) PARTITION BY RANGE (id)",
        "CREATE TABLE orders_low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE orders_high PARTITION OF orders FOR VALUES FROM (10) TO (20)",
        "INSERT INTO orders VALUES (1, 'NEW'), (11, 'NEW')",
    )
    with site.running() as service:
        service.until(lambda: len(site.messages("orders")) == 2)
        site.sql("INSERT INTO orders VALUES (2, 'NEW')", "UPDATE orders SET status = 'PAID' WHERE id = 11")
        service.until(lambda: len(site.messages("orders")) == 4)
    assert site.ops("orders")[2:] == [("create", "2"), ("update", "11")]
