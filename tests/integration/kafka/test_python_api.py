"""Tests that the Python API can read a changelog in Kafka."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

import changelog
from changelog.connectors.servers.kafka import Broker
from changelog.envelope.model import Op, position_of
from tests.integration.kafka.site import Site
from tests.patience import PATIENCE_S

STAMP = '{"serviceName": "billing", "identifier": "r-1"}'


def test_a_changelog_in_kafka_is_read(database: str, broker: Broker, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, price numeric(12,2))")
        connection.execute("INSERT INTO item SELECT n, n FROM generate_series(1, 9) AS n")
    site = Site(database, broker, tmp_path, tables={"item": 3})
    with site.running() as service:
        service.until(site.is_read)
        log = changelog.open(site.config)
        new_changes = log.follow("item", timeout=PATIENCE_S)
        with psycopg.connect(database) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'provenance', %s)", [STAMP])
            connection.execute("UPDATE item SET price = price / 2 WHERE id < 3")
        updates = [next(new_changes), next(new_changes)]
        site.sql("DELETE FROM item WHERE id = 1")
        position = position_of(next(new_changes))
    assert log.entities() == ["item"]
    assert log.position() is not None
    assert {change.place.key for change in updates} == {"1", "2"}
    assert len(list(log.changes("item"))) == 12
    assert log.history("item", 1)["op"].to_pylist() == [Op.READ, Op.UPDATE, Op.DELETE]
    assert log.blame("item", 2)["service_name"].to_pylist() == [None, "billing"]
    assert sorted(map(position_of, log.changes(service="billing", identifier="r-1"))) == sorted(
        map(position_of, updates)
    )
    old_table = log.table("item", as_of=max(map(position_of, updates))).sort_by("id").to_pydict()
    assert [float(price) for price in old_table["price"]] == [0.5, 1, *range(3, 10)]
    assert log.table("item", as_of=position).sort_by("id")["id"].to_pylist() == list(range(2, 10))
    assert log.table("item", as_of=datetime.now(UTC) + timedelta(days=1)).num_rows == 8
    with pytest.raises(changelog.ChangelogError, match=r"has no entity items; it has: .*item"):
        log.table("items")
