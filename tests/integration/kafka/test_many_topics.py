"""Tests that the service can publish very many tables."""

import os
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.sinks.kafka.admin.topic_check import findings
from changelog.connectors.sinks.kafka.admin.topics import ensure, missing, topics_of
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns._audit.topics import messages
from tests.integration.kafka.site import Site
from tests.integration.kafka.topics import entity
from tests.patience import PATIENCE_S
from tests.servers import kafka_lib

TOPICS = 1_000
TABLES = int(os.environ.get("CHANGELOG_TEST_TABLES", "60"))
"""The number of tables that the service publishes. The campaign `audit_kafka` publishes a thousand."""


@pytest.mark.usefixtures("starts_servers")
def test_the_topics_of_a_thousand_tables_are_created() -> None:
    topics = topics_of("many", [entity(f"table_{number:04}") for number in range(TOPICS)], {})
    with temporary_broker(kafka_lib()) as broker:
        client = Client(bootstrap_servers=broker.bootstrap_servers)
        ensure(client, topics, create=True, replication_factor=None)
        deadline = time.monotonic() + PATIENCE_S
        while missing(client, topics) and time.monotonic() < deadline:
            time.sleep(0.05)
        statuses = list(findings(client, topics, create=False))
        broker.kill()  # a normal stop would take long, because the broker closes each topic
    assert [finding.status for finding in statuses] == ["ok"] * (1 + len(topics))


def stored_lsn(site: Site) -> int:
    stored = site.checkpoint
    assert stored is not None
    return through_lsn(stored)


def test_each_of_many_tables_is_read_and_streamed(broker: Broker, database: str, tmp_path: Path) -> None:
    """Each topic holds exactly the rows of its table and their later changes, in order."""
    names = [f"small_{number:04}" for number in range(TABLES)]
    with psycopg.connect(database, autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)".encode())
            connection.execute(f"INSERT INTO {name} VALUES (1, '{name}'), (2, NULL)".encode())
        site = Site(database, broker, tmp_path, tables=dict.fromkeys(names, 1))
        with site.running() as running:
            running.until(site.is_read)
            for name in names:
                connection.execute(f"UPDATE {name} SET note = 'changed' WHERE id = 2".encode())
            end = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
            assert end is not None
            connection.execute(f"DELETE FROM {names[0]} WHERE id = 1".encode())
            running.until(lambda: stored_lsn(site) > int(end[0]))
    changes: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    for (topic, _), message in messages(broker.direct_servers, [(f"{site.settings.prefix}.{n}", 0) for n in names]):
        if message.value() is not None:
            headers: Any = dict(message.headers() or [])
            changes[topic.rpartition(".")[2]].append((headers["op"].decode(), (message.key() or b"").decode()))
    expected_changes = [("read", "1"), ("read", "2"), ("update", "2")]
    assert changes == {name: expected_changes + [("delete", "1")] * (name == names[0]) for name in names}
