"""Tests that the embedded Debezium restores the history of table schemas. MariaDB's connector needs this history."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from changelog.connectors.servers.mysql import MysqlServer
from changelog.debezium import ChangeEvent, DebeziumEngine, FileStore
from tests.servers import engine_jars
from tests.servers.mysql import fresh_mysql_database


def test_the_engine_knows_columns_from_the_history_after_a_restart(mariadb: MysqlServer, tmp_path: Path) -> None:
    jars = engine_jars("mariadb")
    with fresh_mysql_database(mariadb) as database:
        properties: dict[str, str | int | float | bool] = {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "topic.prefix": "shop",
            "database.hostname": mariadb.host,
            "database.port": mariadb.port,
            "database.user": "root",
            "database.password": "",
            "database.server.id": 4711,
            "database.ssl.mode": "disable",
            "database.include.list": database,
            "include.schema.changes": False,
            "poll.interval.ms": 20,
        }
        engine = DebeziumEngine(properties, store=FileStore(tmp_path), jars=jars)
        events: list[ChangeEvent] = []

        def execute(*statements: str) -> None:
            with mariadb.connect(database) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                connection.commit()

        def run(at_first_batch: Callable[[], None], count: int) -> list[object]:
            """Runs the engine until the handler has received `count` events. Returns the rows of these events.

            Calls `at_first_batch` when the first events arrive.
            """
            events.clear()

            def handle(batch: Sequence[ChangeEvent]) -> None:
                if not events:
                    at_first_batch()
                events.extend(batch)
                if len(events) >= count:
                    engine.close()

            engine.run(handle)
            return [json.loads(event.value or b"")["after"] for event in events]

        execute("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 10)")
        change = ("ALTER TABLE t ADD b int", "INSERT INTO t VALUES (2, 20, 200)")
        assert run(lambda: execute(*change), 2) == [{"id": 1, "a": 10}, {"id": 2, "a": 20, "b": 200}]
        execute("INSERT INTO t VALUES (3, 30, 300)", "ALTER TABLE t DROP a", "INSERT INTO t VALUES (4, 400)")
        assert run(lambda: None, 2) == [{"id": 3, "a": 30, "b": 300}, {"id": 4, "b": 400}]
    history = (tmp_path / "history.jsonl").read_text("utf-8").splitlines()
    assert any("ADD b int" in json.loads(line)["ddl"] for line in history)
