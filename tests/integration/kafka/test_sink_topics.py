"""The sink's topics: how they are made, checked and refused, and the times that they take."""

import re
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from changelog.connectors.sinks.kafka.admin.topic_check import findings
from changelog.connectors.sinks.kafka.admin.topics import AHEAD, Topic, TopicSettings, ensure, topics_of
from changelog.connectors.sinks.kafka.encoding.messages import JsonValues
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from tests.integration.kafka.topics import alter, delete, entity, grow, opened, read, store
from tests.unit.records import BEGIN, checkpoint, record


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
    grow(settings.client, name, 3)
    for over_gap in (False, True):
        with closing(KafkaSink(settings, JsonValues(), over_gap=over_gap)) as into:
            into.prepare(grown)
            with pytest.raises(ChangelogError, match=f"topic {name} was begun with 2") as caught:
                into.recover()
            assert caught.value.kind is Kind.SETTINGS
    delete(settings.client, name)
    with closing(KafkaSink(settings, JsonValues(), over_gap=True)) as into:
        into.prepare(grown)
        into.recover()
        assert into.lost(["order"]) == ["order"]


def test_check_warns_of_more_replicas_to_be_in_sync_than_there_are(settings: KafkaSettings) -> None:
    """A broker of Kafka 4.1 takes the messages all the same."""
    wanted = topics_of(settings.prefix, [entity()], {})
    with opened(settings):
        assert all(each.status == "ok" for each in findings(settings.client, wanted, create=True))
    alter(settings.client, f"{settings.prefix}.order", {"min.insync.replicas": "2"})
    warnings = [each for each in findings(settings.client, wanted, create=True) if each.status != "ok"]
    said = "a partition has 1 replicas, and min.insync.replicas is 2: brokers before Kafka 4.1 may refuse every message"
    assert [(each.name, each.status, each.message) for each in warnings] == [
        (f"topic {settings.prefix}.order", "warn", said)
    ]


def test_a_topic_that_was_deleted_is_not_made_anew_unsaid(settings: KafkaSettings) -> None:
    begun = replace(checkpoint(1), settings={"order": {}})
    with opened(settings) as made:
        made.commit(begun)
        delete(settings.client, f"{settings.prefix}.order")
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
    alter(settings.client, command[1], {command[2]: command[3]})
    with opened(settings) as into:
        store(into, commit, record(Op.CREATE, "{}", commit=commit))
    assert len(read(settings, "order")) == 1


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
