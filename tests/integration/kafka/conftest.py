"""Defines the settings of a Kafka sink that many tests in this folder use."""

import pytest

from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from tests.integration.kafka.topics import NAME


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    """The settings of a sink. Each test has a prefix of its own, and so topics of its own."""
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name=NAME, prefix=own_name)
