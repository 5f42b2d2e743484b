"""Tests that the Kafka sink refuses to continue if a topic was deleted or created again: its messages are then lost (a
*gap*).

The sink also refuses if a topic has rows that are newer than the checkpoint. Then an older checkpoint has overwritten
the newer one, and the sink would publish these rows again.
"""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import written_ends
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka import sink as sinks
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.reading.unchanged import CHECK_INTERVAL_S
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from tests.integration.kafka.topics import delete, entity, read
from tests.patience import PATIENCE_S, until
from tests.unit.records import checkpoint, record

PARTITIONS = 3


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    """The settings of a sink. Each test has a prefix of its own, and so topics of its own."""
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name="booking", prefix=own_name)


class Time:
    """A clock whose time the tests set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def opened(settings: KafkaSettings, *entities: Entity, clock: Time | None = None) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, JsonValues(), clock=clock or Time())) as sink:
        sink.prepare(entities or [entity(partitions=PARTITIONS)])
        sink.recover()
        yield sink


def order_checkpoint(commit: int) -> Checkpoint:
    return replace(checkpoint(commit), settings={"order": {}})


def store(sink: KafkaSink, commit: int, op: Op = Op.CREATE) -> None:
    states = (None, '{"id":42}') if op is Op.DELETE else ('{"id":42}',)
    sink.add([batch.from_records([record(op, *states, commit=commit)])])
    sink.commit(order_checkpoint(commit))


def abort_rows(settings: KafkaSettings, sink: KafkaSink) -> None:
    """Adds rows, and aborts their transaction once the first of these rows has reached the broker. Before that, the
    broker would not know the transaction.
    """
    admin, parts = settings.client.admin(), [(f"{settings.prefix}.order", number) for number in range(PARTITIONS)]
    before = written_ends(admin, parts)
    sink.add([batch.from_records([record(Op.CREATE, "{}", commit=3, ordinal=n) for n in range(2, 40, 2)])])
    until(lambda: written_ends(admin, parts) != before, "no row arrives")
    sink.abandon()


def write_checkpoint(settings: KafkaSettings, replacement: Checkpoint) -> None:
    """Writes a checkpoint without the service, like an operator who restores an older checkpoint from a copy."""
    producer = Producer(settings.client.config())
    producer.produce(f"{settings.prefix}.positions", replacement.to_json(), settings.name.encode(), 0)
    assert producer.flush(PATIENCE_S) == 0


def create_again(settings: KafkaSettings, name: str, partitions: int = PARTITIONS) -> None:
    """Deletes a topic and creates it again. Waits until the broker shows the new topic."""
    topic = f"{settings.prefix}.{name}"
    admin = settings.client.admin()
    before = read_ids(admin, {topic})
    delete(settings.client, topic)
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result()
    until(lambda: read_ids(admin, {topic}) not in ({}, before), "the broker does not show the new topic")


def refusal(settings: KafkaSettings, *entities: Entity) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught, opened(settings, *entities):
        pass
    assert "changelog run --over-gap" in str(caught.value)
    assert "drop" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("last", [Op.UPDATE, Op.DELETE])
def test_an_older_checkpoint_that_replaces_the_newer_one_is_refused(settings: KafkaSettings, last: Op) -> None:
    with opened(settings) as sink:
        store(sink, 1)
        store(sink, 2, last)
        for _ in range(3):
            abort_rows(settings, sink)  # each abort leaves aborted messages after the last committed row
    write_checkpoint(settings, order_checkpoint(1))
    error = refusal(settings)
    assert error.kind is Kind.DIVERGED
    assert f"{settings.prefix}.positions ends at 00000001/0000000000000001/00000002" in error.message
    assert "holds a row at 00000001/0000000000000002/00000002" in error.message
    write_checkpoint(settings, replace(order_checkpoint(1), position=None))
    assert refusal(settings).kind is Kind.DIVERGED
    write_checkpoint(settings, order_checkpoint(2))
    with opened(settings) as sink:
        store(sink, 3)


def test_rows_of_another_source_or_of_a_new_entity_are_not_compared(settings: KafkaSettings) -> None:
    """Another source may have published the entity earlier. The positions of two sources cannot be compared."""
    with opened(settings) as sink:
        store(sink, 9)
    other = replace(settings, name="other")
    write_checkpoint(other, order_checkpoint(1))
    write_checkpoint(settings, replace(order_checkpoint(9), settings={"guest": {}}))
    with opened(other) as sink:
        assert sink.recover() == order_checkpoint(1)
    write_checkpoint(other, replace(order_checkpoint(1), settings={}))
    write_checkpoint(settings, replace(order_checkpoint(1), settings={"guest": {}}))
    with opened(settings) as sink:
        store(sink, 10)


@pytest.mark.parametrize("position", [b"42", b"\xff", b""])
def test_a_foreign_message_is_ignored_whatever_its_header_position_holds(
    settings: KafkaSettings, position: bytes
) -> None:
    producer = Producer(settings.client.config())

    def send() -> None:
        for part in range(PARTITIONS):
            producer.produce(f"{settings.prefix}.order", b"{}", b"42", part, headers={"position": position})
        assert producer.flush(PATIENCE_S) == 0

    with opened(settings):
        send()
    with opened(settings) as sink:
        store(sink, 1)
        send()
    with opened(settings) as sink:
        assert sink.recover() == order_checkpoint(1)


@pytest.mark.parametrize("name", ["order", "schemas"])
def test_a_topic_that_was_created_again_while_the_service_was_stopped_is_a_gap(
    settings: KafkaSettings, name: str
) -> None:
    with opened(settings) as sink:
        store(sink, 1)
    create_again(settings, name, partitions=1 if name == "schemas" else PARTITIONS)
    error = refusal(settings)
    assert error.kind is Kind.GAP
    assert error.message.startswith(f"topic {settings.prefix}.{name} was deleted and created again")


def change_checkpoint(settings: KafkaSettings) -> None:
    """Stores the last checkpoint again through a sink that was not prepared with any entities, as `changelog accept`
    does.
    """
    with closing(KafkaSink(settings, JsonValues())) as sink:
        last_checkpoint = sink.recover()
        assert last_checkpoint is not None
        sink.commit(last_checkpoint)


def test_a_topic_that_was_created_again_before_or_after_a_command_changed_the_checkpoint_is_a_gap(
    settings: KafkaSettings,
) -> None:
    with opened(settings) as sink:
        store(sink, 1)
    change_checkpoint(settings)
    create_again(settings, "order")
    assert refusal(settings).kind is Kind.GAP
    with pytest.raises(ChangelogError, match=r"order was deleted and created again") as caught:
        change_checkpoint(settings)
    assert caught.value.kind is Kind.GAP
    assert refusal(settings).kind is Kind.GAP


def test_a_topic_that_is_created_again_while_the_service_runs_is_noticed(settings: KafkaSettings) -> None:
    """The broker also accepts messages for the new topic. Only the topic's id shows that it is another topic."""
    clock = Time()
    with opened(settings, clock=clock) as sink:
        store(sink, 1)
        create_again(settings, "order")
        store(sink, 2)
        clock.now_s += CHECK_INTERVAL_S
        with pytest.raises(ChangelogError, match=r"order was deleted and created again") as caught:
            store(sink, 3)
        assert caught.value.kind is Kind.GAP
    assert [Checkpoint.from_json(message.value() or b"").through for message in read(settings, "positions")] == [
        checkpoint(1).through,
        checkpoint(2).through,
    ]
    assert refusal(settings).kind is Kind.GAP


def test_a_topic_that_is_deleted_while_the_service_runs_is_noticed_at_the_next_recovery(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's error says only that the topic is unknown, and this may be temporary. So the service treats the error as
    a lost connection, and recovers.
    """
    with opened(settings) as sink:
        store(sink, 1)
        monkeypatch.setattr(sinks, "PATIENCE_S_MAX", 5.0)
        delete(settings.client, f"{settings.prefix}.order")
        with pytest.raises(ChangelogError) as caught:
            store(sink, 2)
        assert caught.value.kind is Kind.CONNECTION
    monkeypatch.undo()
    error = refusal(settings)
    assert error.kind is Kind.GAP
    assert error.message == f"topic {settings.prefix}.order no longer exists, although the changelog was begun with it"


def test_a_checkpoint_without_topic_ids_is_continued_and_gets_them(settings: KafkaSettings) -> None:
    """Older versions of the program stored no ids."""
    with opened(settings) as sink:
        store(sink, 1)
    create_again(settings, "order")
    write_checkpoint(settings, order_checkpoint(1))
    with opened(settings, entity(partitions=PARTITIONS), entity("guest")) as sink:
        assert sink.recover() == order_checkpoint(1), "recover must not return the topic ids: only the sink needs them"
        store(sink, 2)
    create_again(settings, "guest", partitions=1)
    assert refusal(settings, entity(partitions=PARTITIONS), entity("guest")).kind is Kind.GAP
    with opened(settings):
        pass  # the topic of an entity that is no longer published does not matter


def test_the_error_of_an_invalid_checkpoint_says_where_it_is(settings: KafkaSettings) -> None:
    with opened(settings) as sink:
        store(sink, 1)
    producer = Producer(settings.client.config())
    producer.produce(f"{settings.prefix}.positions", b"{", settings.name.encode(), 0)
    assert producer.flush(PATIENCE_S) == 0
    error = refusal(settings)
    assert error.kind is Kind.GAP
    message = rf"the message at offset [12] of topic {settings.prefix}\.positions is not a checkpoint"
    assert re.fullmatch(message, error.message)
    with closing(KafkaSink(settings, JsonValues(), over_gap=True)) as sink:
        sink.prepare([entity(partitions=PARTITIONS)])
        assert sink.recover() is None
        store(sink, 2)
    with opened(settings) as sink:
        assert sink.recover() == order_checkpoint(2)
