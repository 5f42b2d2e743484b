"""The topics that a test has for itself."""

import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.client import Client
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from tests.integration.kafka.topics import NAME


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    """A prefix of its own for each test."""
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name=NAME, prefix=own_name)
