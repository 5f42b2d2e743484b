"""Tests the reader of a changelog in Kafka on a real broker. The reader must return only committed messages, and the
messages of one key in the order of their positions.
"""

import contextlib
import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.encoding.messages import JSON, headers
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope import key
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Place, Record, Stamp
from changelog.envelope.position import UNPLACED, at_offset
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import Primitive, Struct
from tests.integration.kafka.topics import settled
from tests.patience import PATIENCE_S
from tests.unit.records import checkpoint, record

NAME = "app"
PARTITIONS = 3

ELSEWHERE = (key.partition(b"42", PARTITIONS) + 1) % PARTITIONS
"""A partition to which the key 42 does not belong."""


def entity(name: str = "order", *, partition_by: str = "id", partitions: int = PARTITIONS) -> Entity:
    return Entity(
        name=name,
        table=("public", name),
        key=("id",),
        partition_by=(partition_by,),
        partitions=partitions,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    """The settings of a sink. Each test has a prefix of its own, and so topics of its own."""
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    return KafkaSettings(client=client, name=NAME, prefix=own_name)


def log_of(settings: KafkaSettings) -> KafkaLog:
    return KafkaLog(settings.client, JSON, prefix=settings.prefix, name=settings.name)


@contextlib.contextmanager
def writing(settings: KafkaSettings, *entities: Entity) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, JSON)) as sink:
        sink.prepare(entities or [entity()])
        sink.recover()
        yield sink


def change(commit: int, text: str, *, at: int | None = None, entity: str = "order") -> Record:
    """Returns a change of the key `text`. The change is in the partition of that key, unless `at` names another
    partition.
    """
    creation = record(Op.CREATE, f'{{"id":"{text}"}}', commit=commit, key=text, entity=entity)
    number = key.partition(text.encode(), PARTITIONS) if at is None else at
    return replace(creation, place=Place(key=text, partition=number))


def version(entity_: Entity, commit: int) -> Record:
    """Returns the message that announces the entity's columns and settings before the first row of a commit."""
    table = TableColumns(columns=Struct(fields=(("id", Primitive.STRING),)))
    versions = Versions([], accepted={}, filled=lambda *_: ())
    return versions.announce(entity_, table, change(commit, "42").envelope.provenance).record


def wait_until_visible(settings: KafkaSettings, parts: Iterable[tuple[str, int]]) -> None:
    """Waits until readers see all messages of these partitions. Each partition is given as an entity and a number."""
    settled(settings.client, [(f"{settings.prefix}.{name}", number) for name, number in parts])


def store(sink: KafkaSink, commit: int, *records: Record) -> None:
    sink.add([batch.from_records(records)])
    shapes = {"order": entity().shape()}
    sink.commit(replace(checkpoint(commit), settings=shapes))
    wait_until_visible(
        sink._settings, {("positions", 0), *((record.entity, record.place.partition) for record in records)}
    )


def commits(rows: Sequence[pa.RecordBatch]) -> list[int]:
    return [record.envelope.provenance.source.position.commit for chunk in rows for record in batch.records(chunk)]


def stop() -> bool:
    """Ends `follow` when it has read all messages."""
    return False


def raw(
    settings: KafkaSettings, name: str, records: Sequence[Record], *, commit: bool, values: Sequence[bytes] = ()
) -> None:
    """Sends records to the topic `name` in a transaction of another producer. `values`, if there are any, take the
    place of the encoded records.
    """
    producer = Producer(settings.client.config(transactional_id=uuid.uuid4().hex))
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    rows = batch.from_records(records)
    for item, value, item_headers in zip(records, values or JSON.encode(rows), headers(rows), strict=True):
        producer.produce(
            f"{settings.prefix}.{name}",
            value,
            item.place.key.encode(),
            item.place.partition,
            headers=list(item_headers),
        )
    assert producer.flush(PATIENCE_S) == 0
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)
    wait_until_visible(settings, {(name, item.place.partition) for item in records})


def test_only_committed_messages_are_read(settings: KafkaSettings) -> None:
    stored = [change(commit, str(commit)) for commit in range(1, 9)]
    with writing(settings) as sink:
        for number, item in enumerate(stored, 1):
            store(sink, number, item)
        raw(settings, "order", [change(9, "5")], commit=False)
        sink.add([batch.from_records([change(10, "6")])])  # leaves a transaction open at the end
        log = log_of(settings)
        records = [item for rows in log.read() for item in batch.records(rows)]
        assert sorted(commits(list(log.read()))) == list(range(1, 9))
        assert commits(list(log.read(identifier="req-3"))) == [3]
    assert {item.place.key: item for item in records} == {item.place.key: item for item in stored}


def test_a_delete_of_a_moved_row_is_read_once_with_its_new_place(settings: KafkaSettings) -> None:
    new_place = Place(key="8", partition=1)
    delete = record(Op.DELETE, None, '{"id":42}', commit=2, moved_to=new_place)
    with writing(settings) as sink:
        store(sink, 1, record(Op.CREATE, '{"id":42}'))
        store(sink, 2, delete)
    [rows] = log_of(settings).read(entity="order", after=checkpoint(1).position)
    assert list(batch.records(rows)) == [delete]


def test_rows_of_a_key_in_several_partitions_are_read_in_the_order_of_positions(settings: KafkaSettings) -> None:
    """Here, another column than the key chooses the partition. So a key has rows in several partitions if the value of
    that column has changed.
    """
    order = entity(partition_by="guest_id")
    with writing(settings, order) as sink:
        for commit in range(1, 10):
            sink.add([batch.from_records([change(commit, "42", at=commit % PARTITIONS), change(commit, "7")])])
            sink.commit(replace(checkpoint(commit), settings={"order": order.shape()}))
    wait_until_visible(settings, [("order", number) for number in range(PARTITIONS)])
    assert commits(list(log_of(settings).read(entity="order", key="42"))) == list(range(1, 10))
    assert commits(list(log_of(settings).follow(entity="order", key="42", wait=stop))) == list(range(1, 10))


def test_only_one_partition_is_read_if_the_key_chooses_the_partition(settings: KafkaSettings) -> None:
    with writing(settings) as sink:
        store(sink, 1, version(entity(), 1), change(1, "42"), change(1, "7"))
        raw(settings, "order", [change(2, "42", at=ELSEWHERE)], commit=True)
    assert commits(list(log_of(settings).read(entity="order", key="42"))) == [1]


@pytest.mark.parametrize("partition_columns", [["guest_id"], ["guest_id", "id"], ["id", "guest_id", "id"], []])
def test_a_key_is_read_from_all_partitions_unless_it_always_chose_the_partition(
    settings: KafkaSettings, partition_columns: Sequence[str]
) -> None:
    """In the settings of the newest checkpoint, the key chooses the partition.

    For each of `partition_columns`, oldest first, the changelog announces a version of the entity in which this column
    chose the partition.
    """
    versions = [version(entity(partition_by=column), 1) for column in partition_columns]
    with writing(settings) as sink:
        store(sink, 1, *versions, change(1, "42", at=ELSEWHERE))
        store(sink, 2, change(2, "42"))
    log = log_of(settings)
    assert commits(list(log.read(entity="order", key="42"))) == [1, 2]
    assert commits(list(log.follow(entity="order", key="42", last=5, wait=stop))) == [1, 2]


@pytest.mark.parametrize("last", [0, 1, 5, 40])
def test_the_last_messages_are_the_newest_by_position(settings: KafkaSettings, last: int) -> None:
    with writing(settings, entity(), entity("guest", partitions=1)) as sink:
        store(sink, 1, change(1, "g", at=0, entity="guest"))
        for commit in range(2, 31):
            store(sink, commit, change(commit, str(commit)))
    assert commits(list(log_of(settings).follow(last=last, wait=stop))) == list(range(max(31 - last, 1), 31))


def test_the_recent_rows_are_the_newest_of_each_partition(settings: KafkaSettings) -> None:
    with writing(settings, entity(partitions=1), entity("guest", partitions=1)) as sink:
        store(sink, 1, change(1, "g", at=0, entity="guest"))
        for commit in range(2, 31):
            store(sink, commit, change(commit, str(commit), at=0))
    recent = commits(list(log_of(settings).recent(20)))
    assert recent[0] == 1
    assert recent[-1] == 30
    assert 3 <= len(recent) <= 11  # each partition also holds markers of transactions, which count as messages
    assert commits(list(log_of(settings).recent(1000))) == list(range(1, 31))


def test_the_last_message_of_a_rare_key_is_found_however_old_it_is(settings: KafkaSettings) -> None:
    with writing(settings, entity(partitions=1)) as sink:
        store(sink, 1, change(1, "rare", at=0))
        for commit in range(2, 5):
            store(sink, commit, *(change(commit, f"often{n}", at=0) for n in range(200)))
    log = log_of(settings)
    assert commits(list(log.follow(entity="order", key="rare", last=1, wait=stop))) == [1]


def test_a_follower_reads_new_commits(settings: KafkaSettings) -> None:
    with writing(settings) as sink:
        store(sink, 1, change(1, "1", at=0))
        numbers, received = itertools.count(2), list[int]()
        deadline = time.monotonic() + PATIENCE_S

        def wait() -> bool:
            commit = next(numbers)
            if commit == 4:
                with suppress(ChangelogError):  # if the client has not sent the row yet, the broker has no transaction
                    sink.abandon()
                sink.recover()
            elif commit < 7:
                sink.add([batch.from_records([change(commit, str(commit), at=0)])])
                if commit != 3:
                    sink.commit(checkpoint(commit))
            else:
                time.sleep(0.1)  # a commit becomes visible a little later
            return commit < 20 or (6 not in received and time.monotonic() < deadline)

        for rows in log_of(settings).follow(last=10, wait=wait):
            received += commits([rows])
        assert received == [1, 2, 5, 6]


def test_a_follower_reads_new_entities(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changelog.connectors.sinks.kafka.reading.log.TOPICS_S", 0.0)
    with writing(settings) as sink:
        store(sink, 1, change(1, "1"))
        received: list[int] = []
        steps, deadline = itertools.count(), time.monotonic() + PATIENCE_S

        def wait() -> bool:
            if next(steps) == 0:
                sink.prepare([entity(), entity("guest", partitions=1)])
                store(sink, 2, change(2, "g", at=0, entity="guest"))
            else:
                time.sleep(0.1)  # a commit becomes visible a little later
            return len(received) < 2 and time.monotonic() < deadline

        for rows in log_of(settings).follow(last=10, wait=wait):
            received += commits([rows])
        assert received == [1, 2]


def test_the_error_of_an_unknown_entity_lists_the_entities(settings: KafkaSettings) -> None:
    with writing(settings, entity(), entity("guest", partitions=1)):
        pass
    with pytest.raises(ChangelogError, match=r"has no entity ordr; it has: dead, gaps, guest, order$") as caught:
        list(log_of(settings).read(entity="ordr"))
    assert caught.value.kind is Kind.USAGE
    assert list(log_of(settings).read(entity="order")) == []


def test_a_changelog_without_topics_is_an_error(settings: KafkaSettings) -> None:
    log = log_of(settings)
    with pytest.raises(ChangelogError, match=f"there is no topic of the changelog {settings.prefix} at ") as caught:
        list(log.follow(wait=stop))
    assert caught.value.kind is Kind.PRECONDITION
    assert log.counts() == {}
    assert log.checkpoint() is None
    assert log.stored_at() is None


def test_the_log_shows_its_checkpoint_and_the_counts_of_messages(settings: KafkaSettings) -> None:
    with writing(settings) as sink:
        before = log_of(settings).stored_at()
        store(sink, 1, change(1, "1"))
        log = log_of(settings)
        first = log.stored_at()
        store(sink, 2, change(2, "2"))
    assert before is None
    stored = log.checkpoint()
    assert stored is not None
    assert stored.position == checkpoint(2).position
    second = log.stored_at()
    assert first is not None
    assert second is not None
    assert first < second
    assert log.counts()["dead"] == {"messages": 0}
    assert log.counts()["order"]["messages"] >= 2


def test_the_error_of_a_foreign_message_says_where_it_is(settings: KafkaSettings) -> None:
    with writing(settings):
        raw(settings, "order", [change(1, "1", at=2)], commit=True, values=[b"secret"])
    with pytest.raises(ChangelogError) as caught:
        list(log_of(settings).read())
    assert (
        str(caught.value)
        == f"a message is not an envelope in JSON: topic {settings.prefix}.order, partition 2, offset 0"
    )


def test_an_event_has_the_position_that_kafka_gave_it(settings: KafkaSettings) -> None:
    creation = change(1, "e", at=1, entity="event")
    provenance = creation.envelope.provenance
    source = replace(provenance.source, position=UNPLACED, id="one")
    event = replace(creation, envelope=replace(creation.envelope, provenance=replace(provenance, source=source)))
    with writing(settings, entity("event")):
        raw(settings, "event", [event, event], commit=True)
    [rows] = log_of(settings).read(entity="event")
    assert rows.column("position").to_pylist() == [str(at_offset(1, 0)), str(at_offset(1, 1))]


def test_a_row_in_the_dead_letter_topic_is_read_completely(settings: KafkaSettings) -> None:
    small = TopicSettings(settings={"max.message.bytes": "4000"})
    limited = replace(settings, entities={"order": small}, on_too_large="dead-letter")
    text = "x" * 3_000_000
    large = [record(Op.CREATE, f'{{"id":{n},"note":"{text}"}}', ordinal=2 * n, key=str(n)) for n in range(2)]
    with writing(limited) as sink:
        store(sink, 1, *large)
    dead_letters = [item for rows in log_of(limited).read(entity="dead") for item in batch.records(rows)]
    assert [item.envelope for item in dead_letters] == [item.envelope for item in large]
    assert [item.place.key for item in dead_letters] == [
        str(item.envelope.provenance.source.position) for item in large
    ]
