"""Tests the options of the Kafka client. Users may set all of them, except those that the service manages."""

import pytest

from changelog.connectors.kafka.client import Client
from changelog.envelope.errors import ChangelogError, Kind


@pytest.mark.parametrize(("text", "nbytes"), [("2097152", 2_097_152), ("0x200000", 2_097_152)])
def test_the_size_of_messages_comes_from_the_options(text: str, nbytes: int) -> None:
    assert Client(bootstrap_servers="a:1", options={"message.max.bytes": text}).message_bytes == nbytes


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("message.max.bytes", "1MB", "message.max.bytes is not a number of bytes"),
        ("acks", "1", "acks is managed by the service"),
    ],
)
def test_invalid_and_managed_options_are_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(ChangelogError) as caught:
        Client(bootstrap_servers="a:1", options={name: text})
    assert caught.value.kind is Kind.USAGE
    assert caught.value.message == f"[sink] client: {problem}"
