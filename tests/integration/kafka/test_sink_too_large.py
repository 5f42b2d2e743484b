"""Messages that are too large: stopped at with their position, left out, or set aside whole."""

import json
from dataclasses import replace

import pytest
from confluent_kafka import Message

from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.client import Client
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


def test_a_message_that_is_too_large_stops_with_its_position(settings: KafkaSettings) -> None:
    with opened(limit(settings, 4000)) as made:
        with pytest.raises(
            ChangelogError, match=r"a message to \S+ has \d+ bytes, and the topic takes at most 4000"
        ) as caught:
            made.add([batch.from_records(large(1))])
        assert caught.value.kind is Kind.STOP
        assert str(caught.value.position) == "00000001/0000000000000001/00000004"
        assert "changelog accept" in str(caught.value)
        store(made, 2, record(Op.CREATE, "{}", commit=2))
    assert len(read(settings, "order")) == 1


def test_the_client_may_take_less_than_the_topic(settings: KafkaSettings) -> None:
    """It would refuse the message without saying where it stands."""
    client = Client(bootstrap_servers=settings.client.bootstrap_servers, options={"message.max.bytes": "4000"})
    narrow = replace(settings, client=client)
    with opened(narrow) as made:
        with pytest.raises(ChangelogError, match=r"bytes, and \[sink\] client takes at most 4000") as caught:
            made.add([batch.from_records(large(1))])
        assert caught.value.kind is Kind.STOP
        assert str(caught.value.position) == "00000001/0000000000000001/00000004"
        assert "raise its message.max.bytes" in str(caught.value)
    with opened(replace(narrow, on_too_large="dead-letter")) as made:
        store(made, 1, *large(1))
    assert [message.key() for message in read(settings, "order")] == [b"42"]
    assert len(read(settings, "dead")) == 2


def test_of_a_row_that_is_read_no_position_is_accepted(settings: KafkaSettings) -> None:
    """Read again, it stands at another one."""
    with opened(limit(settings, 2000)) as made:
        with pytest.raises(ChangelogError, match=r'set \[sink\] on_too_large = "dead-letter"') as caught:
            made.add([batch.from_records([record(Op.READ, '{"id":42,"note":"' + "x" * 2000 + '"}')])])
        assert caught.value.kind is Kind.STOP
        assert "accept" not in str(caught.value)


@pytest.mark.parametrize("decision", ["skip", "dead-letter"])
def test_a_message_that_is_too_large_goes_where_it_was_decided(settings: KafkaSettings, decision: str) -> None:
    settings = limit(settings, 4000)
    with opened(settings) as made:
        made.commit(replace(checkpoint(1), decisions=Decisions({Position(1, 2, 4): decision})))
        made.recover()
        store(made, 2, *large(2))
    assert [message.key() for message in read(settings, "order")] == [b"42"]
    set_aside = read(settings, "dead")
    assert bool(set_aside) == (decision == "dead-letter")


def test_what_is_set_aside_can_be_replayed(settings: KafkaSettings) -> None:
    settings = replace(limit(settings, 4000), on_too_large="dead-letter")
    with opened(settings) as made:
        store(made, 1, *large(1))
    parts = [
        oversized.Message(
            topic=message.topic() or "",
            partition=0,
            key=message.key() or b"",
            value=message.value(),
            headers=headers_of(message),
            timestamp_ms=message.timestamp()[1],
        )
        for message in read(settings, "dead")
    ]
    found = oversized.whole(parts)
    assert (found.topic, found.key) == (f"{settings.prefix}.order", b"7")
    assert json.loads(found.value or b"")["current"] == {"id": 1, "note": "x" * 5000}
    assert dict(found.headers)["op"] == b"create"
