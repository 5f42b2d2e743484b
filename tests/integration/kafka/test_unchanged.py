"""A changelog whose topics are no longer those that its checkpoint was stored beside is not gone on with."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka import sink as sinks
from changelog.connectors.sinks.kafka.client import Client
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.reading.unchanged import LOOK_S, read_ids
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
    """A prefix of its own for each test."""
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name="booking", prefix=own_name)


class Time:
    """A clock that tests set."""

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


def begun(commit: int) -> Checkpoint:
    return replace(checkpoint(commit), settings={"order": {}})


def store(sink: KafkaSink, commit: int, op: Op = Op.CREATE) -> None:
    states = (None, '{"id":42}') if op is Op.DELETE else ('{"id":42}',)
    sink.add([batch.from_records([record(op, *states, commit=commit)])])
    sink.commit(begun(commit))


def write_checkpoint(settings: KafkaSettings, stored: Checkpoint) -> None:
    """As somebody does who means well and restores a copy."""
    producer = Producer(settings.client.config())
    producer.produce(f"{settings.prefix}.positions", stored.to_json(), settings.name.encode(), 0)
    assert producer.flush(PATIENCE_S) == 0


def create_again(settings: KafkaSettings, name: str, partitions: int = PARTITIONS) -> None:
    """Deletes a topic and creates it, and waits until the broker has heard of both."""
    topic = f"{settings.prefix}.{name}"
    admin = settings.client.admin()
    before = read_ids(admin, {topic})
    delete(settings.client, topic)
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result()
    until(lambda: read_ids(admin, {topic}) not in ({}, before), "the broker does not show the new topic")


def refusal(settings: KafkaSettings, *entities: Entity) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught, opened(settings, *entities):
        pass
    assert "changelog run --over-gap" in str(caught.value)
    assert "drop" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("last", [Op.UPDATE, Op.DELETE])
def test_an_older_checkpoint_that_was_written_over_the_newer_one_is_refused(settings: KafkaSettings, last: Op) -> None:
    with opened(settings) as sink:
        store(sink, 1)
        store(sink, 2, last)
        for _ in range(3):  # what is aborted stands after the last row, for whoever looks from the end
            sink.add([batch.from_records([record(Op.CREATE, "{}", commit=3, ordinal=n) for n in range(2, 40, 2)])])
            sink.abandon()
    write_checkpoint(settings, begun(1))
    error = refusal(settings)
    assert error.kind is Kind.DIVERGED
    assert f"{settings.prefix}.positions ends at 00000001/0000000000000001/00000002" in error.message
    assert "holds a row at 00000001/0000000000000002/00000002" in error.message
    write_checkpoint(settings, replace(begun(1), position=None))
    assert refusal(settings).kind is Kind.DIVERGED
    write_checkpoint(settings, begun(2))
    with opened(settings) as sink:
        store(sink, 3)


def test_rows_of_another_source_and_of_a_new_entity_prove_nothing(settings: KafkaSettings) -> None:
    """An entity may have been another source's before; the positions of two sources have no order."""
    with opened(settings) as sink:
        store(sink, 9)
    other = replace(settings, name="other")
    write_checkpoint(other, begun(1))
    write_checkpoint(settings, replace(begun(9), settings={"guest": {}}))
    with opened(other) as sink:
        assert sink.recover() == begun(1)
    write_checkpoint(other, replace(begun(1), settings={}))
    write_checkpoint(settings, replace(begun(1), settings={"guest": {}}))
    with opened(settings) as sink:
        store(sink, 10)


@pytest.mark.parametrize("position", [b"42", b"\xff", b""])
def test_a_message_of_another_program_proves_nothing_whatever_its_header_position_holds(
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
        assert sink.recover() == begun(1)


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


def test_a_topic_that_is_created_again_while_the_service_runs_is_noticed(settings: KafkaSettings) -> None:
    """The broker takes what is sent there: nothing but the topic's id tells."""
    clock = Time()
    with opened(settings, clock=clock) as sink:
        store(sink, 1)
        create_again(settings, "order")
        store(sink, 2)
        clock.now_s += LOOK_S
        with pytest.raises(ChangelogError, match=r"order was deleted and created again") as caught:
            store(sink, 3)
        assert caught.value.kind is Kind.GAP
    assert [Checkpoint.from_json(stored.value() or b"").through for stored in read(settings, "positions")] == [
        checkpoint(1).through,
        checkpoint(2).through,
    ]
    assert refusal(settings).kind is Kind.GAP


def test_a_topic_that_is_deleted_while_the_service_runs_is_found_out_by_a_new_recovery(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka says no more than that it does not know the topic, which may pass: a lost connection is recovered from."""
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
    assert error.message == f"topic {settings.prefix}.order does not exist, and the changelog was begun with it"


def test_a_checkpoint_without_ids_is_gone_on_with_and_gets_them(settings: KafkaSettings) -> None:
    """An older program wrote none."""
    with opened(settings) as sink:
        store(sink, 1)
    create_again(settings, "order")
    write_checkpoint(settings, begun(1))
    with opened(settings, entity(partitions=PARTITIONS), entity("guest")) as sink:
        assert sink.recover() == begun(1), "what only the sink reads, nobody else sees"
        store(sink, 2)
    create_again(settings, "guest", partitions=1)
    assert refusal(settings, entity(partitions=PARTITIONS), entity("guest")).kind is Kind.GAP
    with opened(settings):
        """An entity that is no longer published is not missed."""


def test_a_message_that_is_no_checkpoint_is_named_with_its_place(settings: KafkaSettings) -> None:
    with opened(settings) as sink:
        store(sink, 1)
    producer = Producer(settings.client.config())
    producer.produce(f"{settings.prefix}.positions", b"{", settings.name.encode(), 0)
    assert producer.flush(PATIENCE_S) == 0
    error = refusal(settings)
    assert error.kind is Kind.GAP
    said = (
        rf"the message at offset [12] of {settings.prefix}\.positions is not a checkpoint"  # where a commit's mark is
    )
    assert re.fullmatch(said, error.message)
    with closing(KafkaSink(settings, JsonValues(), over_gap=True)) as sink:
        sink.prepare([entity(partitions=PARTITIONS)])
        assert sink.recover() is None
        store(sink, 2)
    with opened(settings) as sink:
        assert sink.recover() == begun(2)
