"""Tests that the web console shows a changelog in Kafka, and the state of the service and of the database."""

from pathlib import Path

import psycopg

from changelog.connectors import config
from changelog.connectors.servers.kafka import Broker
from tests.integration.kafka.site import Site
from tests.patience import until
from tests.unit.console.client import Client

STAMP = '{"serviceName": "billing", "apiVersion": "v7", "identifier": "r-1"}'


def test_the_console_shows_a_changelog_in_kafka(database: str, broker: Broker, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, price numeric(12,2))")
        connection.execute("INSERT INTO item SELECT n, n FROM generate_series(1, 9) AS n")
    site = Site(database, broker, tmp_path, tables={"item": 3})
    with site.running() as service:
        service.until(site.is_read)
        with psycopg.connect(database) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [STAMP])
            connection.execute("UPDATE item SET price = price / 2 WHERE id < 3")
        client = Client(config.load(site.config, {}))
        until(lambda: client.json("/who?identifier=r-1")["total"] == 2, "the changes are not published")
        home = client.json("/")
        assert home["status"]["problems"] == []
        assert home["status"]["service"]["running"]
        assert home["status"]["slot"]["status"] == "reserved"
        assert "The service is running. Lag " in client.get("/").text
    assert [(item["name"], item["total"] >= 11) for item in home["entities"]] == [("item", True)]
    assert {change["key"] for change in home["newest"][:2]} == {"1", "2"}
    assert home["shares"][0]["application"] == 2
    row = client.json("/e/item/2")
    assert [(item["path"], item["value"]["json"], item["service"]) for item in row["attributes"]] == [
        ("id", 2, ""),
        ("price", "1.00", "billing"),
    ]
    assert client.get("/search?q=2").headers["location"] == "/e/item/2"
    assert [hit["key"] for hit in client.json("/e/item?prefix=2")["hits"]] == ["2"]
    assert [change["key"] for change in client.json("/tail?entity=item&service=billing")["changes"]] in (
        ["1", "2"],
        ["2", "1"],
    )
    (version,) = client.json("/schemas/item")["versions"]
    assert [column["name"] for column in version["columns"]] == ["id", "price"]
