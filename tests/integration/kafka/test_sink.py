"""The sink over a real broker: what a reader of committed messages sees, and what it never sees."""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType

from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.sinks.kafka import client, insistence, sink
from changelog.connectors.sinks.kafka.admin.cleanup import forget_checkpoint
from changelog.connectors.sinks.kafka.admin.topic_check import findings
from changelog.connectors.sinks.kafka.admin.topics import AHEAD, Topic, TopicSettings, ensure, topics_of
from changelog.connectors.sinks.kafka.client import Client
from changelog.connectors.sinks.kafka.encoding import oversized
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.reading import positions
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint, Decisions
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record, Stamp
from changelog.envelope.position import Position
from tests.servers import kafka_lib
from tests.unit.envelope.format_1 import reader
from tests.unit.records import BEGIN, checkpoint, record

NAME = "app"


def entity(name: str = "order", partitions: int = 1) -> Entity:
    return Entity(
        name=name,
        table=("public", name),
        key=("id",),
        partition_by=("id",),
        partitions=partitions,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    """A prefix of its own for each test."""
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name=NAME, prefix=own_name)


@contextlib.contextmanager
def opened(settings: KafkaSettings, *entities: Entity) -> Iterator[KafkaSink]:
    with closing(KafkaSink(settings, JsonValues())) as made:
        made.prepare(entities or [entity()])
        made.recover()
        yield made


def store(into: KafkaSink, commit: int, *records: Record) -> Checkpoint:
    into.add([batch.from_records(records)])
    into.commit(checkpoint(commit))
    return checkpoint(commit)


def read(settings: KafkaSettings, topic: str, *, committed: bool = True) -> list[Message]:
    """All messages of a topic's first partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.client.bootstrap_servers,
            "group.id": "test",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(f"{settings.prefix}.{topic}", 0, 0)])
    found: list[Message] = []
    with contextlib.closing(consumer):
        while True:
            message = consumer.poll(10)
            assert message is not None, "the broker is silent"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF"
                return found
            found.append(message)


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    return list(dict(message.headers() or ()).items())  # type: ignore[arg-type]


def values(messages: Sequence[Message]) -> list[Any]:
    return [None if message.value() is None else json.loads(message.value() or b"") for message in messages]


def limit(settings: KafkaSettings, nbytes: int) -> KafkaSettings:
    return replace(settings, entities={"order": TopicSettings(settings={"max.message.bytes": str(nbytes)})})


def test_a_commit_holds_rows_and_checkpoint(settings: KafkaSettings) -> None:
    with opened(settings) as made:
        stored = store(made, 1, record(Op.CREATE, '{"id":42}', commit=1))
        assert made.recover() == stored
    [message] = read(settings, "order")
    assert (message.key(), message.partition()) == (b"42", 0)
    assert values([message])[0]["current"] == {"id": 42}
    assert dict(message.headers() or ()) == {
        "op": b"create",
        "position": b"00000001/0000000000000001/00000002",
        "transaction": b"701",
        "serviceName": b"order-api",
    }
    assert message.timestamp()[1] == 1795230603886
    [kept] = read(settings, "positions")
    assert kept.key() == NAME.encode()
    found = Checkpoint.from_json(kept.value() or b"")
    assert sorted(found.sink["topics"]) == [f"{settings.prefix}.{name}" for name in ("gaps", "order", "schemas")]
    assert replace(found, sink={}) == stored


def test_the_program_that_knew_only_format_1_refuses_topics_of_format_2(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(settings) as made:
        store(made, 1, record(Op.CREATE, '{"id":42}', commit=1))
    monkeypatch.setattr(positions, "Checkpoint", reader().Checkpoint)
    with pytest.raises(ChangelogError, match="has format 2; this program knows 1") as caught, opened(settings):
        pass
    assert caught.value.kind is Kind.PRECONDITION
    assert "\n" not in str(caught.value)
    assert len(read(settings, "positions")) == 1


def test_a_new_changelog_has_no_checkpoint(settings: KafkaSettings) -> None:
    with closing(KafkaSink(settings, JsonValues())) as made:
        made.prepare([entity()])
        assert made.recover() is None


def test_a_delete_is_followed_by_its_tombstone(settings: KafkaSettings) -> None:
    with opened(settings) as made:
        store(
            made, 1, record(Op.CREATE, '{"id":42}', commit=1), record(Op.DELETE, None, '{"id":42}', commit=1, ordinal=4)
        )
    _, deleted, tombstone = read(settings, "order")
    assert values([deleted, tombstone])[0]["current"] is None
    assert tombstone.value() is None
    assert (tombstone.key(), tombstone.headers()) == (deleted.key(), deleted.headers())


def test_what_is_not_committed_is_never_seen(settings: KafkaSettings) -> None:
    with opened(settings) as made:
        store(made, 1, record(Op.CREATE, '{"id":1}', commit=1))
        made.add([batch.from_records([record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2)])])
        made.abandon()
        store(made, 3, record(Op.UPDATE, '{"id":3}', '{"id":1}', commit=3))
        made.add([batch.from_records([record(Op.UPDATE, '{"id":4}', '{"id":3}', commit=4)])])
    with opened(settings) as made:
        assert made.recover() == checkpoint(3)
    assert [each["current"]["id"] for each in values(read(settings, "order"))] == [1, 3]
    assert len(read(settings, "order", committed=False)) >= 2


def test_an_older_instance_stores_nothing_more(settings: KafkaSettings) -> None:
    with opened(settings) as older:
        store(older, 1, record(Op.CREATE, '{"id":1}', commit=1))
        older.add([batch.from_records([record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2)])])
        with opened(settings) as newer:
            store(newer, 2, record(Op.UPDATE, '{"id":5}', '{"id":1}', commit=2))
            with pytest.raises(ChangelogError, match="another instance of this service took over") as caught:
                older.commit(checkpoint(2))
            assert caught.value.kind is Kind.IN_USE
            store(newer, 3, record(Op.UPDATE, '{"id":6}', '{"id":5}', commit=3))
    assert [each["current"]["id"] for each in values(read(settings, "order"))] == [1, 5, 6]


def test_a_transaction_that_was_open_for_too_long_was_taken_by_nobody(settings: KafkaSettings) -> None:
    """The broker ends it, with the same answer to who comes later as when another instance took over."""
    now = 0.0
    with closing(KafkaSink(settings, JsonValues(), clock=lambda: now)) as older:
        older.prepare([entity()])
        older.recover()
        store(older, 1, record(Op.CREATE, '{"id":1}', commit=1))
        older.add([batch.from_records([record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2)])])
        with opened(settings):
            now += settings.transaction_timeout_s
            with pytest.raises(ChangelogError, match="open for more than 60 s") as caught:
                older.abandon()
            assert caught.value.kind is Kind.CONNECTION


def test_a_checkpoint_is_found_behind_what_another_source_left_open(settings: KafkaSettings) -> None:
    """A reader of committed messages comes no further than the first transaction that is open: that may be long."""
    crashing = KafkaSink(replace(settings, name="other", transaction_timeout_s=1), JsonValues(), reach=_crash)
    with opened(settings) as made:
        store(made, 1, record(Op.CREATE, '{"id":1}', commit=1))
        crashing.prepare([entity()])
        crashing.recover()
        with pytest.raises(ConnectionAbortedError):
            crashing.commit(checkpoint(7))
        while len(read(settings, "positions", committed=False)) < 2:
            pass
        store(made, 2, record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2))
        assert made.recover() == checkpoint(2)


def test_two_sources_do_not_write_one_topic(settings: KafkaSettings) -> None:
    with opened(replace(settings, name="other")) as other:
        other.commit(replace(checkpoint(1), settings={"guest": {}, "order": {}}))
        said = r"^other already publishes to \S+\.order, and so would app: "
        with pytest.raises(ChangelogError, match=said) as caught, opened(settings):
            pass
        assert caught.value.kind is Kind.PRECONDITION
        other.commit(replace(checkpoint(2), settings={"guest": {}}))
        with opened(settings) as made:
            store(made, 1, record(Op.CREATE, '{"id":1}', commit=1))
        other.commit(replace(checkpoint(3), settings={"order": {}}))
        forget_checkpoint(settings.client, settings.prefix, "other")
        with opened(settings) as made:
            assert made.recover() == checkpoint(1)


def _crash(point: str) -> None:
    if point == "kafka:positioned":
        raise ConnectionAbortedError


def test_a_broker_that_crashes_is_gone_for_a_while_only(
    settings: KafkaSettings, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(settings) as made:
        store(made, 1, record(Op.CREATE, '{"id":1}', commit=1))
        monkeypatch.setattr(sink, "PATIENCE_S_MAX", 1.0)
        monkeypatch.setattr(insistence, "CALL_S", 1.0)
        broker.kill()
        try:
            with pytest.raises(ChangelogError) as caught:
                store(made, 2, record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2))
        finally:
            broker.start()
        assert caught.value.kind is Kind.CONNECTION
        monkeypatch.undo()
        assert made.recover() == checkpoint(1)
        store(made, 2, record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2))
    assert [each["current"]["id"] for each in values(read(settings, "order"))] == [1, 2]


# Messages that are too large


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


# Topics


def test_topics_are_made_as_they_are_to_be(settings: KafkaSettings) -> None:
    kept = replace(settings, entities={"event": TopicSettings(profile="history", retention_days=5)})
    entities = [entity(partitions=4), entity("event", 2)]
    with opened(kept, *entities):
        wanted = topics_of(kept.prefix, entities, kept.entities)
        found = ensure(kept.client, wanted, create=False, replication_factor=None)
    assert {name.partition(".")[2]: each.partitions for name, each in found.items()} == {
        "order": 4,
        "event": 2,
        "positions": 1,
        "dead": 1,
        "gaps": 1,
        "schemas": 1,
    }
    assert found[f"{kept.prefix}.event"].settings["retention.ms"] == str(5 * 86_400_000)
    assert all(each.status == "ok" for each in findings(kept.client, wanted, create=False))


def test_another_number_of_partitions_is_refused(settings: KafkaSettings) -> None:
    with opened(settings, entity(partitions=2)):
        pass
    with pytest.raises(ChangelogError, match="has 2 partitions, and 3 are configured") as caught:
        KafkaSink(settings, JsonValues()).prepare([entity(partitions=3)])
    assert caught.value.kind is Kind.PRECONDITION
    assert "set partitions = 2 if the changelog was begun with that" in str(caught.value)
    assert "run `changelog run --over-gap --accept-config`" in str(caught.value)


def test_a_topic_that_grew_is_refused_until_it_is_made_again(settings: KafkaSettings) -> None:
    """Also where the configuration followed it, and --accept-config says that this is meant."""
    name, grown = f"{settings.prefix}.order", [entity(partitions=3)]
    with opened(settings, entity(partitions=2)) as made:
        made.commit(replace(checkpoint(1), settings={"order": {"partitions": 2}}))
    admin = settings.client.admin()
    for future in admin.create_partitions([NewPartitions(name, 3)]).values():
        future.result()
    for over_gap in (False, True):
        with closing(KafkaSink(settings, JsonValues(), over_gap=over_gap)) as into:
            into.prepare(grown)
            with pytest.raises(ChangelogError, match=f"topic {name} was begun with 2") as caught:
                into.recover()
            assert caught.value.kind is Kind.SETTINGS
    for future in admin.delete_topics([name]).values():
        future.result()
    with closing(KafkaSink(settings, JsonValues(), over_gap=True)) as into:
        into.prepare(grown)
        into.recover()
        assert into.lost(["order"]) == ["order"]


def test_check_warns_of_more_replicas_to_be_in_sync_than_there_are(settings: KafkaSettings) -> None:
    """A broker of Kafka 4.1 takes the messages all the same."""
    wanted = topics_of(settings.prefix, [entity()], {})
    with opened(settings):
        assert all(each.status == "ok" for each in findings(settings.client, wanted, create=True))
    alter(settings, f"{settings.prefix}.order", {"min.insync.replicas": "2"})
    warnings = [each for each in findings(settings.client, wanted, create=True) if each.status != "ok"]
    said = "a partition has 1 replicas, and min.insync.replicas is 2: brokers before Kafka 4.1 may refuse every message"
    assert [(each.name, each.status, each.message) for each in warnings] == [
        (f"topic {settings.prefix}.order", "warn", said)
    ]


def test_a_topic_that_was_deleted_is_not_made_anew_unsaid(settings: KafkaSettings) -> None:
    begun = replace(checkpoint(1), settings={"order": {}})
    with opened(settings) as made:
        made.commit(begun)
        admin = settings.client.admin()
        for future in admin.delete_topics([f"{settings.prefix}.order"]).values():
            future.result()
        with pytest.raises(ChangelogError, match="was begun with it") as caught:
            made.prepare([entity("guest"), entity()])
        assert caught.value.kind is Kind.GAP
        wanted = topics_of(settings.prefix, [entity()], {})
        found = findings(settings.client, wanted, create=True, started=[f"{settings.prefix}.order"])
        assert [each.message for each in found if each.status == "fail"] == [caught.value.message]
        made.prepare([entity("guest")])  # a new entity is welcome


HOUR = {"message.timestamp.after.max.ms": "3600000"}


def hours_ahead() -> int:
    """A commit that a database stamped whose clock is three hours ahead."""
    return int((datetime.now(UTC) + timedelta(hours=3) - BEGIN).total_seconds())


def test_a_database_whose_clock_is_ahead_is_published_with_its_times(settings: KafkaSettings) -> None:
    commit = hours_ahead()
    with opened(settings) as into:
        store(into, commit, record(Op.CREATE, "{}", commit=commit))
    (message,) = read(settings, "order")
    assert message.timestamp()[1] == int((BEGIN + timedelta(seconds=commit)).timestamp() * 1000)


def test_a_topic_that_refuses_times_ahead_of_its_clock_is_named_with_the_way_out(settings: KafkaSettings) -> None:
    made = topics_of(settings.prefix, [entity()], {"order": TopicSettings(settings=HOUR)})
    ensure(settings.client, made, create=True, replication_factor=None)
    commit = hours_ahead()
    with opened(settings) as into, pytest.raises(ChangelogError) as caught:
        store(into, commit, record(Op.CREATE, "{}", commit=commit))
    assert caught.value.kind is Kind.PRECONDITION
    assert f"the database's clock is ahead of Kafka's by more than {AHEAD} of topic {settings.prefix}.order" in str(
        caught.value
    )
    wanted = topics_of(settings.prefix, [entity()], {})
    (told,) = [each for each in findings(settings.client, wanted, create=True) if each.status == "warn"]
    command = re.fullmatch(r"kafka-configs --alter --topic (\S+) --add-config (\S+)=(\d+)", str(told.hint))
    assert command is not None
    alter(settings, command[1], {command[2]: command[3]})
    with opened(settings) as into:
        store(into, commit, record(Op.CREATE, "{}", commit=commit))
    assert len(read(settings, "order")) == 1


def alter(settings: KafkaSettings, topic: str, changes: dict[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = settings.client.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_topics_may_be_made_by_others_alone(settings: KafkaSettings) -> None:
    with pytest.raises(ChangelogError, match=r"topic \S+\.order does not exist; create it with 1 partitions"):
        KafkaSink(replace(settings, create_topics=False), JsonValues()).prepare([entity()])


def test_drifted_settings_are_told_with_the_command_that_puts_them_back(settings: KafkaSettings) -> None:
    with opened(settings):
        pass
    name = f"{settings.prefix}.order"
    wanted = [Topic(name=name, partitions=1, settings={"cleanup.policy": "delete", "segment.ms": "86400000"})]
    _, drift = findings(settings.client, wanted, create=True)
    assert (drift.status, drift.message) == ("warn", "cleanup.policy is compact, not delete")
    assert drift.hint == f"kafka-configs --alter --topic {name} --add-config cleanup.policy=delete"


def test_a_changelog_that_is_later_than_the_retention_is_told(settings: KafkaSettings) -> None:
    kept = replace(settings, entities={"order": TopicSettings(profile="history", retention_days=1)})
    with opened(kept):
        wanted = topics_of(kept.prefix, [entity()], kept.entities)[:1]
    assert [each.status for each in findings(kept.client, wanted, create=True, lag_s=3600)] == ["ok", "ok"]
    late = list(findings(kept.client, wanted, create=True, lag_s=15 * 3600))
    assert late[-1].message == "the changelog lags by 15.0 h, and the topic deletes messages after 24.0 h"


# Options


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
        monkeypatch.setattr(client, "TIMEOUT_S", 4.0)
        refused = reached("wrong", broker.bootstrap_servers)
        away = reached("right", "127.0.0.1:1")
    assert refused is not None
    assert refused.kind is Kind.ACCESS
    assert "wrong" not in str(refused)
    assert away is not None
    assert away.kind is Kind.CONNECTION
    assert "Connection refused" in away.message
