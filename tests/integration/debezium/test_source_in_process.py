"""Tests a service that reads a database through a Debezium that it runs itself. No change is lost or repeated if the
service is restarted or Debezium is killed.

Debezium keeps no schema history for PostgreSQL. For MariaDB, it keeps one, and the service stores this history in the
checkpoint. A *gap* is a span of the log whose changes are lost.
"""

import json
import os
from pathlib import Path

import pytest

from changelog.connectors import config, gaps
from changelog.connectors.failpoints import nowhere
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources.debezium.inputs.engine.history import unpacked
from tests.integration.debezium.in_process import InProcess, create_orders, over_postgres
from tests.integration.debezium.site import java_of, kill
from tests.patience import until
from tests.servers import engine_jars
from tests.servers.mysql import fresh_mysql_database


@pytest.fixture
def postgres(database: str, tmp_path: Path) -> InProcess:
    site = over_postgres(database, tmp_path, {"slot.drop.on.stop": "false"})
    create_orders(site)
    return site


def test_changes_from_before_an_alter_table_are_read_correctly_after_it(postgres: InProcess) -> None:
    """PostgreSQL 18.6 crashes in this case if the session that reads the log used the table earlier."""
    postgres.publish(40)
    postgres.sql(
        "UPDATE orders SET status = repeat('x', 50) WHERE id <= 10",
        "ALTER TABLE orders ALTER amount TYPE text",
        "UPDATE orders SET amount = 'much' WHERE id <= 10",
        "ALTER TABLE orders DROP COLUMN status",
        "UPDATE orders SET amount = 'little' WHERE id <= 10",
    )
    postgres.publish(70)
    states = [message["value"]["current"] for message in postgres.messages("orders")[40::10]]
    assert states == [
        {"id": 1, "status": "x" * 50, "amount": "0.25"},
        {"id": 1, "status": "x" * 50, "amount": "much"},
        {"id": 1, "amount": "little"},
    ]


def test_postgresql_is_read_exactly_once_over_restarts_and_kills(postgres: InProcess) -> None:
    with postgres.running() as service:
        service.until(lambda: len(postgres.messages("orders")) == 40)
        postgres.sql("UPDATE orders SET status = 'PAID' WHERE id <= 10", "UPDATE orders SET id = 100 WHERE id = 1")
        service.until(lambda: len(postgres.messages("orders")) == 52)
        process = java_of(os.getpid())
        assert process is not None
        kill(process)
        postgres.sql("UPDATE orders SET status = 'SENT' WHERE id = 40")
        service.until(lambda: len(postgres.messages("orders")) == 53)
        assert service.said("connection lost")
    postgres.sql("DELETE FROM orders WHERE id = 2", "INSERT INTO orders VALUES (7777, 'é\"', NULL)")
    postgres.publish(55)
    ops = [op for op, _ in postgres.ops("orders")]
    assert ops == ["read"] * 40 + ["update"] * 10 + ["delete", "create", "update", "delete", "create"]
    departure, arrival = postgres.messages("orders")[50:52]
    assert (departure["movedTo"]["key"], arrival["movedFrom"]["key"]) == ("100", "1")
    [rows] = postgres.sql("SELECT json_object_agg(id, to_json(orders) ORDER BY id) FROM orders")
    state = postgres.state("orders")
    for row in state.values():
        row["amount"] = None if row["amount"] is None else float(row["amount"])
    assert state == rows[0]
    assert positions(postgres) == sorted(set(positions(postgres)))
    assert postgres.call("check") == (0, [])
    assert postgres.call("status") == (0, [])


def positions(site: InProcess) -> list[str]:
    return [message["value"]["provenance"]["source"]["position"] for message in site.messages("orders")]


def test_rows_deleted_between_an_aborted_snapshot_and_the_next_one_get_a_delete(postgres: InProcess) -> None:
    """The snapshot sleeps in its second table until the test kills Debezium. The service then starts Debezium again,
    and the snapshot begins anew.
    """
    postgres.sql(
        "CREATE TABLE sleeping AS SELECT true",
        "CREATE TABLE zone (id int PRIMARY KEY)",
        "CREATE FUNCTION nap() RETURNS int LANGUAGE plpgsql AS "
        "'BEGIN IF EXISTS (SELECT FROM sleeping) THEN PERFORM pg_sleep(600); END IF; RETURN 1; END'",
        "INSERT INTO zone VALUES (1)",
    )
    text = postgres.config.read_text("utf-8")
    property_ = "snapshot.select.statement.overrides"
    query = "SELECT zone.* FROM public.zone WHERE nap() IS DISTINCT FROM 2"
    overrides = f'"{property_}" = "public.zone"\n"{property_}.public.zone" = "{query}"\n'
    text = text.replace("[source.properties]\n", f"[source.properties]\n{overrides}")
    postgres.config.write_text(f'{text}[entities.zone]\ntable = "public.zone"\nkey = ["id"]\n', "utf-8")
    with postgres.running() as service:
        service.until(lambda: len(postgres.messages("orders")) >= 39)
        process = java_of(os.getpid())
        assert process is not None
        kill(process)
        postgres.sql(
            "DELETE FROM orders WHERE id = 5",
            "DELETE FROM sleeping",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT zone%'",
        )
        service.until(lambda: ("delete", "5") in postgres.ops("orders"))
        postgres.sql("INSERT INTO orders VALUES (5, 'AGAIN', 1)")
        service.until(lambda: postgres.ops("orders")[-1] == ("create", "5"))
    assert [key for op, key in postgres.ops("orders") if op == "delete"] == ["5"]
    delete = next(message for message in postgres.messages("orders") if message["value"]["current"] is None)
    assert delete["value"]["original"] == {"id": 5, "status": "NEW", "amount": "1.25"}
    assert positions(postgres) == sorted(set(positions(postgres)))
    rows = [id_ for (id_,) in postgres.sql("SELECT id::text FROM orders")]
    assert postgres.state("orders").keys() == set(rows)
    assert postgres.state("zone") == {"1": {"id": 1}}


def wait_for_gap(settings: config.Config) -> gaps.GapAtStart:
    """Returns the gap. One search waits only a limited time for Debezium to start, so the search is repeated."""
    gap: gaps.GapAtStart | None = None

    def search() -> bool:
        nonlocal gap
        gap = gaps.find(settings, accept_settings=False, reach=nowhere)
        return gap is not None

    until(search, "there is no gap")
    assert gap is not None
    return gap


def test_a_lost_slot_is_a_gap(postgres: InProcess) -> None:
    postgres.publish(40)
    postgres.sql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    settings = config.load(postgres.config, os.environ)
    gap = wait_for_gap(settings)
    assert gap.error.message.startswith("Debezium: ")
    gaps.cross(settings, gap, accept_settings=False, reach=nowhere)
    postgres.publish(80)
    assert {position[:9] for position in positions(postgres)[40:]} == {"00000002/"}
    assert [message["entity"] for message in postgres.messages("gaps")] == ["gaps"]


def test_mariadb_continues_with_its_history_of_schemas(mariadb: MysqlServer, tmp_path: Path) -> None:
    with fresh_mysql_database(mariadb) as database:
        properties = {
            "database.hostname": str(mariadb.host),
            "database.port": str(mariadb.port),
            "database.user": "root",
            "database.password": "",
            "database.server.id": "4712",
            "database.ssl.mode": "disable",
            "poll.interval.ms": "20",
        }
        site = InProcess(tmp_path, "app", "mariadb", properties, engine_jars("mariadb"), f"{database}.orders")

        def execute(*statements: str) -> None:
            with mariadb.connect(database) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                connection.commit()

        execute("CREATE TABLE orders (id int PRIMARY KEY, a int)", "INSERT INTO orders VALUES (1, 10)")
        with site.running() as service:
            service.until(lambda: len(site.messages("orders")) == 1)
            execute("ALTER TABLE orders ADD b int", "INSERT INTO orders VALUES (2, 20, 200)")
            service.until(lambda: len(site.messages("orders")) == 2)
        execute("UPDATE orders SET b = 5 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
        site.publish(4)
    assert site.ops("orders") == [("read", "1"), ("create", "2"), ("update", "1"), ("delete", "2")]
    assert site.messages("orders")[-1]["value"]["original"] == {"id": 2, "a": 20, "b": 200}
    history = [json.loads(record)["ddl"] for record in unpacked(site.checkpoint.source["identity"]["history"])]
    assert any("ADD b int" in ddl for ddl in history)
    assert [len(message["value"]["current"]["columns"]) for message in site.messages("schemas")] == [2, 3]


def test_errors_are_reported_in_one_line(postgres: InProcess) -> None:
    text = postgres.config.read_text("utf-8")
    text_with_managed_property = text.replace("[source.properties]", '[source.properties]\n"offset.storage" = "x"')
    postgres.config.write_text(text_with_managed_property, "utf-8")
    assert postgres.refused("run", code=2).startswith(
        "the property offset.storage is managed by the engine; remove it from"
    )
    postgres.config.write_text(text.replace("jars = ", 'jars = "nowhere" # '), "utf-8")
    assert "Debezium's jars are not in " in postgres.refused()
    postgres.config.write_text(text.replace('key = ["id"]', ""), "utf-8")
    refusal = "configuration: entities.orders.table: there is no event of the table public.orders"
    assert postgres.refused("run", code=2).startswith(refusal)
