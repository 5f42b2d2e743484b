"""Tests how the topics of the Kafka sink are created, checked and refused, and which timestamps they accept."""

import re
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import temporary_broker
from changelog.connectors.sinks.kafka.admin.topic_check import findings
from changelog.connectors.sinks.kafka.admin.topics import (
    AHEAD,
    CHECKPOINT_BYTES_MAX,
    Topic,
    TopicSettings,
    ensure,
    topics_of,
)
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from tests.integration.kafka.topics import alter, delete, entity, grow, opened, read, store
from tests.servers import kafka_lib
from tests.unit.records import BEGIN, checkpoint, record


def test_topics_are_created_as_configured(settings: KafkaSettings) -> None:
    new_settings = replace(settings, entities={"event": TopicSettings(profile="history", retention_days=5)})
    entities = [entity(partitions=4), entity("event", 2)]
    with opened(new_settings, *entities):
        topics = topics_of(new_settings.prefix, entities, new_settings.entities)
        states = ensure(new_settings.client, topics, create=False, replication_factor=None)
    assert {name.partition(".")[2]: state.partitions for name, state in states.items()} == {
        "order": 4,
        "event": 2,
        "positions": 1,
        "dead": 1,
        "gaps": 1,
        "schemas": 1,
    }
    assert states[f"{new_settings.prefix}.event"].settings["retention.ms"] == str(5 * 86_400_000)
    assert all(finding.status == "ok" for finding in findings(new_settings.client, topics, create=False))


@pytest.mark.usefixtures("starts_servers")
def test_a_new_topic_limits_the_size_of_messages_as_its_broker_does() -> None:
    """The sink must not guess this limit. If the guess were too low and `on_too_large` were "dead-letter", messages
    that their own topic would accept would end up in the dead-letter topic.
    """
    with temporary_broker(kafka_lib(), settings={"message.max.bytes": "3000000"}) as broker:
        client = Client(bootstrap_servers=broker.bootstrap_servers)
        topics = topics_of("app", [entity(partitions=4)], {})
        states = ensure(client, topics, create=True, replication_factor=None)
        assert states["app.order"].message_bytes == 3_000_000
        assert states["app.order"].partitions == 4
        assert states["app.positions"].message_bytes == CHECKPOINT_BYTES_MAX
        later_states = ensure(client, topics, create=False, replication_factor=None)
        assert {name: state.settings for name, state in states.items()} == {
            name: state.settings for name, state in later_states.items()
        }


def test_a_checkpoint_of_many_tables_is_stored_and_continued(settings: KafkaSettings) -> None:
    """`changelog accept` and other commands also read the checkpoint and store it again, but unlike the service, they
    do not prepare the sink first.
    """
    large_settings = {f"table_{number}": {"codec": "x" * 1000} for number in range(6_000)}
    with opened(settings) as app_sink:
        app_sink.commit(replace(checkpoint(1), settings=large_settings))
    for _ in range(2):
        with closing(KafkaSink(settings, JsonValues())) as command_sink:
            stored = command_sink.recover()
            assert stored is not None
            assert stored.settings == large_settings
            command_sink.commit(stored)


def test_another_number_of_partitions_is_refused(settings: KafkaSettings) -> None:
    with opened(settings, entity(partitions=2)):
        pass
    with pytest.raises(ChangelogError, match="has 2 partitions, and 3 are configured") as caught:
        KafkaSink(settings, JsonValues()).prepare([entity(partitions=3)])
    assert caught.value.kind is Kind.PRECONDITION
    assert "if the changelog was begun with 2 partitions, set partitions = 2" in str(caught.value)
    assert "run `changelog run --over-gap --accept-config`" in str(caught.value)


def test_a_topic_that_got_more_partitions_is_refused_until_it_is_created_again(settings: KafkaSettings) -> None:
    """The service refuses the topic even if the new number of partitions is configured, and even with `--over-gap`."""
    name, larger_entities = f"{settings.prefix}.order", [entity(partitions=3)]
    with opened(settings, entity(partitions=2)) as app_sink:
        app_sink.commit(replace(checkpoint(1), settings={"order": {"partitions": 2}}))
    grow(settings.client, name, 3)
    for over_gap in (False, True):
        with closing(KafkaSink(settings, JsonValues(), over_gap=over_gap)) as new_sink:
            new_sink.prepare(larger_entities)
            with pytest.raises(ChangelogError, match=f"topic {name} was begun with 2") as caught:
                new_sink.recover()
            assert caught.value.kind is Kind.SETTINGS
    delete(settings.client, name)
    with closing(KafkaSink(settings, JsonValues(), over_gap=True)) as new_sink:
        new_sink.prepare(larger_entities)
        new_sink.recover()
        assert new_sink.lost(["order"]) == ["order"]


def test_check_warns_if_a_topic_requires_more_in_sync_replicas_than_it_has(settings: KafkaSettings) -> None:
    """The test's broker accepts the messages anyway, as all brokers since Kafka 4.1 do."""
    topics = topics_of(settings.prefix, [entity()], {})
    with opened(settings):
        assert all(finding.status == "ok" for finding in findings(settings.client, topics, create=True))
    alter(settings.client, f"{settings.prefix}.order", {"min.insync.replicas": "2"})
    warnings = [finding for finding in findings(settings.client, topics, create=True) if finding.status != "ok"]
    message = (
        "a partition has 1 replicas, and min.insync.replicas is 2: brokers before Kafka 4.1 may refuse every message"
    )
    assert [(finding.name, finding.status, finding.message) for finding in warnings] == [
        (f"topic {settings.prefix}.order", "warn", message)
    ]


def test_a_topic_that_was_deleted_is_not_silently_created_again(settings: KafkaSettings) -> None:
    stored = replace(checkpoint(1), settings={"order": {}})
    with opened(settings) as app_sink:
        app_sink.commit(stored)
        delete(settings.client, f"{settings.prefix}.order")
        with pytest.raises(ChangelogError, match="was begun with it") as caught:
            app_sink.prepare([entity("guest"), entity()])
        assert caught.value.kind is Kind.GAP
        topics = topics_of(settings.prefix, [entity()], {})
        check_findings = findings(settings.client, topics, create=True, started=[f"{settings.prefix}.order"])
        assert [finding.message for finding in check_findings if finding.status == "fail"] == [caught.value.message]
        app_sink.prepare([entity("guest")])  # a new entity may get a new topic


HOUR = {"message.timestamp.after.max.ms": "3600000"}


def commit_in_three_hours() -> int:
    """Returns the number of a commit that happens in three hours. Commit n happens n seconds after BEGIN."""
    return int((datetime.now(UTC) + timedelta(hours=3) - BEGIN).total_seconds())


def test_commits_of_a_database_whose_clock_is_ahead_keep_their_times(settings: KafkaSettings) -> None:
    commit = commit_in_three_hours()
    with opened(settings) as app_sink:
        store(app_sink, commit, record(Op.CREATE, "{}", commit=commit))
    (message,) = read(settings, "order")
    assert message.timestamp()[1] == int((BEGIN + timedelta(seconds=commit)).timestamp() * 1000)


def test_a_topic_that_refuses_future_times_is_named_and_check_says_how_to_fix_it(
    settings: KafkaSettings,
) -> None:
    limited_topics = topics_of(settings.prefix, [entity()], {"order": TopicSettings(settings=HOUR)})
    ensure(settings.client, limited_topics, create=True, replication_factor=None)
    commit = commit_in_three_hours()
    with opened(settings) as app_sink, pytest.raises(ChangelogError) as caught:
        store(app_sink, commit, record(Op.CREATE, "{}", commit=commit))
    assert caught.value.kind is Kind.PRECONDITION
    limit = f"the limit is the topic setting {AHEAD} of {settings.prefix}.order"
    assert f"the database's clock is too far ahead of Kafka's: {limit}" in str(caught.value)
    topics = topics_of(settings.prefix, [entity()], {})
    (warning,) = [finding for finding in findings(settings.client, topics, create=True) if finding.status == "warn"]
    command = re.fullmatch(r"kafka-configs --alter --topic (\S+) --add-config (\S+)=(\d+)", str(warning.hint))
    assert command is not None
    alter(settings.client, command[1], {command[2]: command[3]})
    with opened(settings) as app_sink:
        store(app_sink, commit, record(Op.CREATE, "{}", commit=commit))
    assert len(read(settings, "order")) == 1


def test_without_create_topics_a_missing_topic_is_an_error(settings: KafkaSettings) -> None:
    with pytest.raises(ChangelogError, match=r"topic \S+\.order does not exist; create it with 1 partitions"):
        KafkaSink(replace(settings, create_topics=False), JsonValues()).prepare([entity()])


def test_changed_topic_settings_are_reported_with_the_command_that_restores_them(settings: KafkaSettings) -> None:
    with opened(settings):
        pass
    name = f"{settings.prefix}.order"
    topics = [Topic(name=name, partitions=1, settings={"cleanup.policy": "delete", "segment.ms": "86400000"})]
    _, finding = findings(settings.client, topics, create=True)
    assert (finding.status, finding.message) == ("warn", "cleanup.policy is compact, not delete")
    assert finding.hint == f"kafka-configs --alter --topic {name} --add-config cleanup.policy=delete"


def test_a_lag_close_to_the_retention_is_reported(settings: KafkaSettings) -> None:
    new_settings = replace(settings, entities={"order": TopicSettings(profile="history", retention_days=1)})
    with opened(new_settings):
        topics = topics_of(new_settings.prefix, [entity()], new_settings.entities)[:1]
    short_lag, long_lag = (
        list(findings(settings.client, topics, create=True, lag_s=lag_s)) for lag_s in (3600, 54_000)
    )
    assert [finding.status for finding in short_lag] == ["ok", "ok"]
    assert long_lag[-1].message == "the changelog lags by 15.0 h, and the topic deletes messages after 24.0 h"
