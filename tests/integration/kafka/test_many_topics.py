"""A changelog of a thousand tables."""

import time

import pytest

from connectors.servers.kafka import temporary_broker
from connectors.sinks.kafka.client import Client
from connectors.sinks.kafka.topics import ensure, findings, missing, topics_of
from tests.integration.kafka.test_sink import entity
from tests.patience import PATIENCE_S
from tests.servers import kafka_lib

COUNT = 1_000


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.xdist_group("kafka")
def test_a_thousand_tables_find_their_topics() -> None:
    wanted = topics_of("many", [entity(f"table_{number:04}") for number in range(COUNT)], {})
    with temporary_broker(kafka_lib()) as broker:
        client = Client(bootstrap_servers=broker.bootstrap_servers)
        ensure(client, wanted, create=True, replication_factor=None)
        deadline = time.monotonic() + PATIENCE_S
        while missing(client, wanted) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = list(findings(client, wanted, create=False))
        broker.kill()  # stopped, it would close each topic
    assert [each.status for each in found] == ["ok"] * (1 + len(wanted))
