"""Fixtures of the tests on Kafka."""

import pytest

from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from tests.integration.kafka.topics import NAME


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    """Settings with a prefix that only this test uses, so that it has its own topics."""
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name=NAME, prefix=own_name)
