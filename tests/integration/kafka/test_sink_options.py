"""The options of the sink's client, and what is said where it cannot reach a broker."""

from dataclasses import replace

import pytest

from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.sinks.kafka import client
from changelog.connectors.sinks.kafka.client import Client
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.errors import ChangelogError, Kind
from tests.integration.kafka.topics import NAME, entity
from tests.servers import kafka_lib


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(10, 60), (80, 80), (900, 100)])
def test_a_call_is_insisted_on_while_a_transaction_may_be_open(timeout_s: int, patience_s: float) -> None:
    client = Client(bootstrap_servers="127.0.0.1:1")
    assert (
        KafkaSettings(client=client, name=NAME, prefix=NAME, transaction_timeout_s=timeout_s).patience_s == patience_s
    )


def test_options_on_which_exactly_once_rests_are_not_the_users(broker: Broker) -> None:
    with pytest.raises(ChangelogError, match="acks is managed by the service"):
        Client(bootstrap_servers=broker.bootstrap_servers, options={"acks": "1"})


def test_an_option_that_is_none_is_named(settings: KafkaSettings) -> None:
    client = Client(bootstrap_servers=settings.client.bootstrap_servers, options={"no.such": "x"})
    with pytest.raises(ChangelogError, match=r"no\.such") as caught:
        KafkaSink(replace(settings, client=client), JsonValues()).prepare([entity()])
    assert caught.value.kind is Kind.PRECONDITION


@pytest.mark.usefixtures("starts_servers")
def test_wrong_credentials_and_a_wrong_address_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says of both that the transport failed."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_changelog="right";'
    rules = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": login,
    }

    def reached(password: str, servers: str) -> ChangelogError | None:
        named = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "changelog"}
        options = {**named, "sasl.password": password}
        try:
            Client(bootstrap_servers=servers, options=options).admin().topics()
        except ChangelogError as error:
            return error
        return None

    with temporary_broker(kafka_lib(), settings=rules) as broker:
        assert reached("right", broker.bootstrap_servers) is None
        refused = reached("wrong", broker.bootstrap_servers)
        monkeypatch.setattr(client, "TIMEOUT_S", 4.0)
        away = reached("right", "127.0.0.1:1")
    assert refused is not None
    assert refused.kind is Kind.ACCESS
    assert "wrong" not in str(refused)
    assert away is not None
    assert away.kind is Kind.CONNECTION
    assert "Connection refused" in away.message
