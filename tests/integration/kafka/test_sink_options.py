"""Tests the options of the sink's Kafka client, and the errors if this client cannot reach a broker."""

from dataclasses import replace

import pytest

from changelog.connectors.kafka import client
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.kafka.topics import NAME, entity
from tests.servers import kafka_lib


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(10, 60), (80, 80), (900, 100)])
def test_calls_are_repeated_as_long_as_a_transaction_may_be_open(timeout_s: int, patience_s: float) -> None:
    client = Client(bootstrap_servers="127.0.0.1:1")
    assert (
        KafkaSettings(client=client, name=NAME, prefix=NAME, transaction_timeout_s=timeout_s).patience_s == patience_s
    )


def test_users_cannot_set_options_that_exactly_once_depends_on(broker: Broker) -> None:
    with pytest.raises(ChangelogError, match="acks is managed by the service"):
        Client(bootstrap_servers=broker.bootstrap_servers, options={"acks": "1"})


def test_the_error_of_an_unknown_option_names_it(settings: KafkaSettings) -> None:
    client = Client(bootstrap_servers=settings.client.bootstrap_servers, options={"no.such": "x"})
    with pytest.raises(ChangelogError, match=r"no\.such") as caught:
        KafkaSink(replace(settings, client=client), JsonValues()).prepare([entity()])
    assert caught.value.kind is Kind.PRECONDITION


@pytest.mark.usefixtures("starts_servers")
def test_wrong_credentials_and_a_wrong_address_are_different_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both cases, the Kafka client reports only that the transport failed."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_changelog="right";'
    rules = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": login,
    }

    def error_of(password: str, servers: str) -> ChangelogError | None:
        login_settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "changelog",
        }
        options = {**login_settings, "sasl.password": password}
        try:
            Client(bootstrap_servers=servers, options=options).admin().topics()
        except ChangelogError as error:
            return error
        return None

    with temporary_broker(kafka_lib(), settings=rules) as broker:
        assert error_of("right", broker.bootstrap_servers) is None
        wrong_password = error_of("wrong", broker.bootstrap_servers)
        monkeypatch.setattr(client, "TIMEOUT_S", 4.0)
        unreachable = error_of("right", "127.0.0.1:1")
    assert wrong_password is not None
    assert wrong_password.kind is Kind.ACCESS
    assert "wrong" not in str(wrong_password)
    assert unreachable is not None
    assert unreachable.kind is Kind.CONNECTION
    assert "Connection refused" in unreachable.message
