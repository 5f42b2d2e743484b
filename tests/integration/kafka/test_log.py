"""The reader over a real broker: what is committed, and nothing else, in an order that can be relied on."""

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

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.client import Client
from changelog.connectors.sinks.kafka.encoding.messages import JSON, headers
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope import key
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Place, Record, Stamp
from changelog.envelope.position import UNPLACED, at_offset
from changelog.envelope.versions import Look, Versions
from changelog.schemas.types import Primitive, Struct
from tests.integration.kafka.topics import settled
from tests.patience import PATIENCE_S
from tests.unit.records import checkpoint, record

NAME = "app"
PARTITIONS = 3

ELSEWHERE = (key.partition(b"42", PARTITIONS) + 1) % PARTITIONS
"""A partition that key 42 does not choose."""


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
    """A prefix of its own for each test."""
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    return KafkaSettings(client=client, name=NAME, prefix=own_name)


def opened(settings: KafkaSettings) -> KafkaLog:
    return KafkaLog(settings.client, JSON, prefix=settings.prefix, name=settings.name)


@contextlib.contextmanager
def writing(settings: KafkaSettings, *entities: Entity) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, JSON)) as made:
        made.prepare(entities or [entity()])
        made.recover()
        yield made


def change(commit: int, text: str, *, at: int | None = None, entity: str = "order") -> Record:
    """A change of the key `text`, in that key's partition unless `at` names another."""
    made = record(Op.CREATE, f'{{"id":"{text}"}}', commit=commit, key=text, entity=entity)
    number = key.partition(text.encode(), PARTITIONS) if at is None else at
    return replace(made, place=Place(key=text, partition=number))


def version(of: Entity, commit: int) -> Record:
    """What the commit's first row announces: the columns, and the settings of the entity."""
    look = Look(columns=Struct(fields=(("id", Primitive.STRING),)))
    versions = Versions([], accepted={}, filled=lambda *_: ())
    return versions.announce(of, look, change(commit, "42").envelope.provenance).record


def visible(settings: KafkaSettings, parts: Iterable[tuple[str, int]]) -> None:
    """Waits until readers see all of these partitions: entity and number."""
    settled(settings.client, [(f"{settings.prefix}.{name}", number) for name, number in parts])


def store(into: KafkaSink, commit: int, *records: Record) -> None:
    into.add([batch.from_records(records)])
    shapes = {"order": entity().shape()}
    into.commit(replace(checkpoint(commit), settings=shapes))
    visible(into._settings, {("positions", 0), *((each.entity, each.place.partition) for each in records)})


def commits(rows: Sequence[pa.RecordBatch]) -> list[int]:
    return [each.envelope.provenance.source.position.commit for one in rows for each in batch.records(one)]


def once() -> bool:
    return False


def raw(
    settings: KafkaSettings, name: str, records: Sequence[Record], *, commit: bool, values: Sequence[bytes] = ()
) -> None:
    """What another producer's transaction brings to the topic `name`."""
    producer = Producer(settings.client.config(transactional_id=uuid.uuid4().hex))
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    rows = batch.from_records(records)
    for each, value, heads in zip(records, values or JSON.encode(rows), headers(rows), strict=True):
        producer.produce(
            f"{settings.prefix}.{name}", value, each.place.key.encode(), each.place.partition, headers=list(heads)
        )
    assert producer.flush(PATIENCE_S) == 0
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)
    visible(settings, {(name, each.place.partition) for each in records})


def test_all_that_is_committed_is_read_and_nothing_else(settings: KafkaSettings) -> None:
    stored = [change(commit, str(commit)) for commit in range(1, 9)]
    with writing(settings) as made:
        for number, each in enumerate(stored, 1):
            store(made, number, each)
        raw(settings, "order", [change(9, "5")], commit=False)
        made.add([batch.from_records([change(10, "6")])])  # and an open transaction behind
        log = opened(settings)
        found = [each for rows in log.read() for each in batch.records(rows)]
        assert sorted(commits(list(log.read()))) == list(range(1, 9))
    assert {each.place.key: each for each in found} == {each.place.key: each for each in stored}


def test_a_delete_is_read_once_and_moves_with_it(settings: KafkaSettings) -> None:
    there = Place(key="8", partition=1)
    gone = record(Op.DELETE, None, '{"id":42}', commit=2, moved_to=there)
    with writing(settings) as made:
        store(made, 1, record(Op.CREATE, '{"id":42}'))
        store(made, 2, gone)
    [rows] = opened(settings).read(entity="order", after=checkpoint(1).position)
    assert list(batch.records(rows)) == [gone]


def test_a_key_is_read_across_partitions_by_position(settings: KafkaSettings) -> None:
    """As one that was moved by its guest and back."""
    placed = entity(partition_by="guest_id")
    with writing(settings, placed) as made:
        for commit in range(1, 10):
            made.add([batch.from_records([change(commit, "42", at=commit % PARTITIONS), change(commit, "7")])])
            made.commit(replace(checkpoint(commit), settings={"order": placed.shape()}))
    visible(settings, [("order", number) for number in range(PARTITIONS)])
    assert commits(list(opened(settings).read(entity="order", key="42"))) == list(range(1, 10))


def test_of_a_key_that_places_itself_only_its_partition_is_read(settings: KafkaSettings) -> None:
    with writing(settings) as made:
        store(made, 1, version(entity(), 1), change(1, "42"), change(1, "7"))
        raw(settings, "order", [change(2, "42", at=ELSEWHERE)], commit=True)
    assert commits(list(opened(settings).read(entity="order", key="42"))) == [1]


@pytest.mark.parametrize("placed_by", [["guest_id"], ["guest_id", "id"], ["id", "guest_id", "id"], []])
def test_a_key_is_read_from_all_partitions_unless_it_always_placed_its_rows(
    settings: KafkaSettings, placed_by: Sequence[str]
) -> None:
    """The checkpoint says that it does now; `placed_by` has what each version says, oldest first."""
    versions = [version(entity(partition_by=column), 1) for column in placed_by]
    with writing(settings) as made:
        store(made, 1, *versions, change(1, "42", at=ELSEWHERE))
        store(made, 2, change(2, "42"))
    log = opened(settings)
    assert commits(list(log.read(entity="order", key="42"))) == [1, 2]
    assert commits(list(log.follow(entity="order", key="42", last=5, wait=once))) == [1, 2]


@pytest.mark.parametrize("last", [0, 1, 5, 40])
def test_the_last_are_the_newest_by_position(settings: KafkaSettings, last: int) -> None:
    with writing(settings, entity(), entity("guest", partitions=1)) as made:
        store(made, 1, change(1, "g", at=0, entity="guest"))
        for commit in range(2, 31):
            store(made, commit, change(commit, str(commit)))
    assert commits(list(opened(settings).follow(last=last, wait=once))) == list(range(max(31 - last, 1), 31))


def test_the_last_of_a_rare_key_are_looked_for_further_back(settings: KafkaSettings) -> None:
    with writing(settings, entity(partitions=1)) as made:
        store(made, 1, change(1, "rare", at=0))
        for commit in range(2, 5):
            store(made, commit, *(change(commit, f"often{n}", at=0) for n in range(200)))
    log = opened(settings)
    assert commits(list(log.follow(entity="order", key="rare", last=1, wait=once))) == [1]


def test_who_follows_sees_what_is_committed_meanwhile(settings: KafkaSettings) -> None:
    with writing(settings) as made:
        store(made, 1, change(1, "1"))
        coming, seen = itertools.count(2), list[int]()
        deadline = time.monotonic() + PATIENCE_S

        def wait() -> bool:
            commit = next(coming)
            if commit == 4:
                with suppress(ChangelogError):  # where the row was not sent yet, the broker knows no transaction
                    made.abandon()
                made.recover()
            elif commit < 7:
                made.add([batch.from_records([change(commit, str(commit))])])
                if commit != 3:
                    made.commit(checkpoint(commit))
            else:
                time.sleep(0.1)  # what is committed is visible a little later
            return commit < 20 or (6 not in seen and time.monotonic() < deadline)

        for rows in opened(settings).follow(last=10, wait=wait):
            seen += commits([rows])
        assert seen == [1, 2, 5, 6]


def test_who_follows_sees_new_entities(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changelog.connectors.sinks.kafka.reading.log.TOPICS_S", 0.0)
    with writing(settings) as made:
        store(made, 1, change(1, "1"))
        seen: list[int] = []
        steps, deadline = itertools.count(), time.monotonic() + PATIENCE_S

        def wait() -> bool:
            if next(steps) == 0:
                made.prepare([entity(), entity("guest", partitions=1)])
                store(made, 2, change(2, "g", at=0, entity="guest"))
            else:
                time.sleep(0.1)  # what is committed is visible a little later
            return len(seen) < 2 and time.monotonic() < deadline

        for rows in opened(settings).follow(last=10, wait=wait):
            seen += commits([rows])
        assert seen == [1, 2]


def test_an_unknown_entity_is_named_with_those_there_are(settings: KafkaSettings) -> None:
    with writing(settings, entity(), entity("guest", partitions=1)):
        pass
    with pytest.raises(ChangelogError, match=r"has no entity ordr; it has: dead, gaps, guest, order$") as caught:
        list(opened(settings).read(entity="ordr"))
    assert caught.value.kind is Kind.USAGE
    assert list(opened(settings).read(entity="order")) == []


def test_no_changelog_is_said(settings: KafkaSettings) -> None:
    log = opened(settings)
    with pytest.raises(ChangelogError, match=f"there is no topic of the changelog {settings.prefix} at ") as caught:
        list(log.follow(wait=once))
    assert caught.value.kind is Kind.PRECONDITION
    assert log.counts() == {}
    assert log.checkpoint() is None
    assert log.stored_at() is None


def test_how_far_it_is_and_how_much(settings: KafkaSettings) -> None:
    with writing(settings) as made:
        before = opened(settings).stored_at()
        store(made, 1, change(1, "1"))
        log = opened(settings)
        first = log.stored_at()
        store(made, 2, change(2, "2"))
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


def test_a_message_that_is_none_of_ours_is_named(settings: KafkaSettings) -> None:
    with writing(settings):
        raw(settings, "order", [change(1, "1", at=2)], commit=True, values=[b"secret"])
    with pytest.raises(ChangelogError) as caught:
        list(opened(settings).read())
    assert str(caught.value) == f"a message is not an envelope in JSON: {settings.prefix}.order, partition 2, offset 0"


def test_an_event_has_the_position_that_kafka_gave_it(settings: KafkaSettings) -> None:
    made = change(1, "e", at=1, entity="event")
    provenance = made.envelope.provenance
    source = replace(provenance.source, position=UNPLACED, id="one")
    event = replace(made, envelope=replace(made.envelope, provenance=replace(provenance, source=source)))
    with writing(settings, entity("event")):
        raw(settings, "event", [event, event], commit=True)
    [rows] = opened(settings).read(entity="event")
    assert rows.column("position").to_pylist() == [str(at_offset(1, 0)), str(at_offset(1, 1))]


def test_what_was_too_large_is_read_whole(settings: KafkaSettings) -> None:
    small = TopicSettings(settings={"max.message.bytes": "4000"})
    limited = replace(settings, entities={"order": small}, on_too_large="dead-letter")
    text = "x" * 3_000_000
    large = [record(Op.CREATE, f'{{"id":{n},"note":"{text}"}}', ordinal=2 * n, key=str(n)) for n in range(2)]
    with writing(limited) as made:
        store(made, 1, *large)
    found = [each for rows in opened(limited).read(entity="dead") for each in batch.records(rows)]
    assert [each.envelope for each in found] == [each.envelope for each in large]
    assert [each.place.key for each in found] == [str(each.envelope.provenance.source.position) for each in large]
