"""Tests a message that is too large for its topic. The Kafka sink stops at the message's position. If the operator
decides so, the sink instead skips the message, or stores it in the dead-letter topic.
"""

import json
from dataclasses import replace

import pytest
from confluent_kafka import Message

from changelog.connectors.kafka.client import Client
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.encoding import oversized
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.envelope.checkpoint import Decisions
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record
from changelog.envelope.position import Position
from tests.integration.kafka.topics import opened, read, store
from tests.unit.records import checkpoint, record


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    return list(dict(message.headers() or ()).items())  # type: ignore[arg-type]


def limit(settings: KafkaSettings, nbytes: int) -> KafkaSettings:
    return replace(settings, entities={"order": TopicSettings(settings={"max.message.bytes": str(nbytes)})})


def large(commit: int) -> list[Record]:
    text = json.dumps({"id": 1, "note": "x" * 5000})
    return [record(Op.CREATE, '{"id":0}', commit=commit), record(Op.CREATE, text, commit=commit, ordinal=4, key="7")]


def test_the_sink_stops_at_the_position_of_a_message_that_is_too_large(settings: KafkaSettings) -> None:
    with opened(limit(settings, 4000)) as app_sink:
        with pytest.raises(
            ChangelogError, match=r"a message to topic \S+ has \d+ bytes, and the topic takes at most 4000"
        ) as caught:
            app_sink.add([batch.from_records(large(1))])
        assert caught.value.kind is Kind.STOP
        assert str(caught.value.position) == "00000001/0000000000000001/00000004"
        assert "changelog accept" in str(caught.value)
        store(app_sink, 2, record(Op.CREATE, "{}", commit=2))
    assert len(read(settings, "order")) == 1


def test_the_limit_of_the_client_may_be_lower_than_the_limit_of_the_topic(settings: KafkaSettings) -> None:
    """The Kafka client has its own error for a message that is too large. That error does not have the position of the
    message.
    """
    client = Client(bootstrap_servers=settings.client.bootstrap_servers, options={"message.max.bytes": "4000"})
    limited = replace(settings, client=client)
    with opened(limited) as app_sink:
        with pytest.raises(ChangelogError, match=r"bytes, and \[sink\] client takes at most 4000") as caught:
            app_sink.add([batch.from_records(large(1))])
        assert caught.value.kind is Kind.STOP
        assert str(caught.value.position) == "00000001/0000000000000001/00000004"
        assert "raise message.max.bytes in [sink] client" in str(caught.value)
    with opened(replace(limited, on_too_large="dead-letter")) as app_sink:
        store(app_sink, 1, *large(1))
    assert [message.key() for message in read(settings, "order")] == [b"42"]
    assert len(read(settings, "dead")) == 2


def test_a_row_that_was_read_from_the_table_cannot_be_accepted_by_position(settings: KafkaSettings) -> None:
    """When the row is read again, it gets another position."""
    with opened(limit(settings, 2000)) as app_sink:
        with pytest.raises(ChangelogError, match=r'set \[sink\] on_too_large = "dead-letter"') as caught:
            app_sink.add([batch.from_records([record(Op.READ, '{"id":42,"note":"' + "x" * 2000 + '"}')])])
        assert caught.value.kind is Kind.STOP
        assert "accept" not in str(caught.value)


@pytest.mark.parametrize("decision", ["skip", "dead-letter"])
def test_a_message_that_is_too_large_is_handled_as_decided(settings: KafkaSettings, decision: str) -> None:
    settings = limit(settings, 4000)
    with opened(settings) as app_sink:
        app_sink.commit(replace(checkpoint(1), decisions=Decisions({Position(1, 2, 4): decision})))
        app_sink.recover()
        store(app_sink, 2, *large(2))
    assert [message.key() for message in read(settings, "order")] == [b"42"]
    dead_letters = read(settings, "dead")
    assert bool(dead_letters) == (decision == "dead-letter")


def test_a_message_can_be_restored_from_the_dead_letter_topic(settings: KafkaSettings) -> None:
    settings = replace(limit(settings, 4000), on_too_large="dead-letter")
    with opened(settings) as app_sink:
        store(app_sink, 1, *large(1))
    parts = [
        oversized.ProducerRecord(
            topic=message.topic() or "",
            partition=0,
            key=message.key() or b"",
            value=message.value(),
            headers=headers_of(message),
            timestamp_ms=message.timestamp()[1],
        )
        for message in read(settings, "dead")
    ]
    restored = oversized.whole(parts)
    assert (restored.topic, restored.key) == (f"{settings.prefix}.order", b"7")
    assert json.loads(restored.value or b"")["current"] == {"id": 1, "note": "x" * 5000}
    assert dict(restored.headers)["op"] == b"create"
