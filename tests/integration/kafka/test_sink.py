"""Tests the Kafka sink on a real broker. Readers of committed messages must get what the sink committed, and nothing
else.
"""

from contextlib import closing
from dataclasses import replace

import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka import insistence, sink
from changelog.connectors.sinks.kafka.admin.cleanup import forget_checkpoint
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.reading import positions
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from tests.integration.kafka.topics import NAME, entity, opened, read, store, values
from tests.patience import until
from tests.unit.envelope.format_1 import reader
from tests.unit.records import checkpoint, record


def test_a_commit_holds_rows_and_checkpoint(settings: KafkaSettings) -> None:
    with opened(settings) as app_sink:
        stored = store(app_sink, 1, record(Op.CREATE, '{"id":42}', commit=1))
        assert app_sink.recover() == stored
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
    [position] = read(settings, "positions")
    assert position.key() == NAME.encode()
    stored_checkpoint = Checkpoint.from_json(position.value() or b"")
    assert sorted(stored_checkpoint.sink["topics"]) == [
        f"{settings.prefix}.{name}" for name in ("gaps", "order", "schemas")
    ]
    assert replace(stored_checkpoint, sink={}) == stored


def test_a_program_that_knows_only_format_1_refuses_topics_of_format_2(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(settings) as app_sink:
        store(app_sink, 1, record(Op.CREATE, '{"id":42}', commit=1))
    monkeypatch.setattr(positions, "Checkpoint", reader().Checkpoint)
    with pytest.raises(ChangelogError, match="has format 2; this program knows 1") as caught, opened(settings):
        pass
    assert caught.value.kind is Kind.PRECONDITION
    assert "\n" not in str(caught.value)
    assert len(read(settings, "positions")) == 1


def test_a_new_changelog_has_no_checkpoint(settings: KafkaSettings) -> None:
    with closing(KafkaSink(settings, JsonValues())) as app_sink:
        app_sink.prepare([entity()])
        assert app_sink.recover() is None


def test_a_delete_is_followed_by_its_tombstone(settings: KafkaSettings) -> None:
    with opened(settings) as app_sink:
        store(
            app_sink,
            1,
            record(Op.CREATE, '{"id":42}', commit=1),
            record(Op.DELETE, None, '{"id":42}', commit=1, ordinal=4),
        )
    _, delete, tombstone = read(settings, "order")
    assert values([delete, tombstone])[0]["current"] is None
    assert tombstone.value() is None
    assert (tombstone.key(), tombstone.headers()) == (delete.key(), delete.headers())


def test_uncommitted_messages_are_never_read(settings: KafkaSettings) -> None:
    with opened(settings) as app_sink:
        store(app_sink, 1, record(Op.CREATE, '{"id":1}', commit=1))
        app_sink.add([batch.from_records([record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2)])])
        app_sink.abandon()
        store(app_sink, 3, record(Op.UPDATE, '{"id":3}', '{"id":1}', commit=3))
        app_sink.add([batch.from_records([record(Op.UPDATE, '{"id":4}', '{"id":3}', commit=4)])])
    with opened(settings) as app_sink:
        assert app_sink.recover() == checkpoint(3)
    assert [value["current"]["id"] for value in values(read(settings, "order"))] == [1, 3]
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
    assert [value["current"]["id"] for value in values(read(settings, "order"))] == [1, 5, 6]


def test_a_transaction_that_was_open_for_too_long_is_not_a_takeover(settings: KafkaSettings) -> None:
    """The broker aborts a transaction that is open for too long. It then gives the same answer as if another instance
    had taken over.
    """
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


def test_a_checkpoint_is_found_after_an_open_transaction_of_another_source(settings: KafkaSettings) -> None:
    """A reader of committed messages cannot read past the first open transaction. So the sink must wait until that
    transaction ends; here, Kafka aborts it after 5 s.
    """
    crashing_sink = KafkaSink(replace(settings, name="other", transaction_timeout_s=5), JsonValues(), reach=_crash)
    with opened(settings) as app_sink:
        store(app_sink, 1, record(Op.CREATE, '{"id":1}', commit=1))
        crashing_sink.prepare([entity()])
        crashing_sink.recover()
        with pytest.raises(ConnectionAbortedError):
            crashing_sink.commit(checkpoint(7))
        until(
            lambda: len(read(settings, "positions", committed=False)) >= 2,
            "the message of the open transaction does not arrive",
        )
        store(app_sink, 2, record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2))
        assert app_sink.recover() == checkpoint(2)


def test_two_sources_do_not_write_one_topic(settings: KafkaSettings) -> None:
    with opened(replace(settings, name="other")) as other:
        other.commit(replace(checkpoint(1), settings={"guest": {}, "order": {}}))
        message = r"^the source other already publishes to the topic \S+\.order, and so would app: "
        with pytest.raises(ChangelogError, match=message) as caught, opened(settings):
            pass
        assert caught.value.kind is Kind.PRECONDITION
        other.commit(replace(checkpoint(2), settings={"guest": {}}))
        with opened(settings) as app_sink:
            store(app_sink, 1, record(Op.CREATE, '{"id":1}', commit=1))
        other.commit(replace(checkpoint(3), settings={"order": {}}))
        forget_checkpoint(settings.client, settings.prefix, "other")
        with opened(settings) as app_sink:
            assert app_sink.recover() == checkpoint(1)


def _crash(point: str) -> None:
    if point == "kafka:positioned":
        raise ConnectionAbortedError


def test_the_sink_recovers_after_a_crash_of_the_broker(
    settings: KafkaSettings, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(settings) as app_sink:
        store(app_sink, 1, record(Op.CREATE, '{"id":1}', commit=1))
        monkeypatch.setattr(sink, "PATIENCE_S_MAX", 1.0)
        monkeypatch.setattr(insistence, "CALL_S", 1.0)
        broker.kill()
        try:
            with pytest.raises(ChangelogError) as caught:
                store(app_sink, 2, record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2))
        finally:
            broker.start()
        assert caught.value.kind is Kind.CONNECTION
        monkeypatch.undo()
        assert app_sink.recover() == checkpoint(1)
        store(app_sink, 2, record(Op.UPDATE, '{"id":2}', '{"id":1}', commit=2))
    assert [value["current"]["id"] for value in values(read(settings, "order"))] == [1, 2]
