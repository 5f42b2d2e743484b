"""Defines the settings of a changelog's topics, creates the topics, and reads their state from the broker.

The module `topic_check` compares the topics on the broker with the configuration.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType, TopicMetadata

from changelog.connectors.kafka.client import TIMEOUT_S, UNKNOWN_TOPIC, Admin, Client, error_of
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sinks.kafka.admin.names import (
    dead_topic,
    delta_topic,
    entity_of,
    gaps_topic,
    generation_of,
    positions_topic,
    schemas_topic,
)
from changelog.connectors.sinks.kafka.admin.names import (
    topic as topic_name,
)
from changelog.envelope.entity import Entity
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's default for the largest batch, in bytes: 1 MiB and the overhead of a batch (`message.max.bytes`)."""

_DAY_MS = 86_400_000

MIN_IN_SYNC = "min.insync.replicas"

IN_SYNC_HINT = f"start the missing brokers, add replicas to the topic, or lower its {MIN_IN_SYNC}"

_RECORDS_MAX = 5_000
"""The most records that one request makes the controller write.

The controller is the broker that stores the metadata. It writes one record for each topic, each partition and each
setting, and accepts at most 10,000 records at once."""

_NEW_WAITS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
"""The seconds to wait before each attempt to read the state of new topics."""

Profile = Literal["changelog", "aggressive", "history"]

OWN = "changelog"
"""The name of our own envelope, in `[sink] envelope`."""

REPARTITION = (
    "run `changelog repartition`, which begins a new topic; or delete the topic and run "
    "`changelog run --over-gap --accept-config`"
)
"""The hint that says how to change an entity's number of partitions without losing the order of a key's changes."""

AHEAD = "message.timestamp.after.max.ms"
"""The setting for how far a message's time may be ahead of the broker's clock. Brokers before 3.6 have no such setting
and no limit."""

_AHEAD_MAX = 2**63 - 1

# The reasons for each value are in docs/reference/kafka.md, *Topics*.
_COMMIT_TIMES = {"message.timestamp.type": "CreateTime", AHEAD: str(_AHEAD_MAX)}
_COMPACTED = {
    **_COMMIT_TIMES,
    "cleanup.policy": "compact",
    "delete.retention.ms": str(7 * _DAY_MS),
}
_PROFILES: Mapping[Profile, Mapping[str, str]] = {
    "changelog": {
        **_COMPACTED,
        "min.compaction.lag.ms": str(7 * _DAY_MS),
        "max.compaction.lag.ms": str(14 * _DAY_MS),
        "min.cleanable.dirty.ratio": "0.1",
        "segment.bytes": str(256 << 20),
        "segment.ms": str(_DAY_MS),
    },
    "aggressive": {
        **_COMPACTED,
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": str(_DAY_MS // 24),
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": str(16 << 20),
        "segment.ms": str(600_000),
    },
    "history": {
        **_COMMIT_TIMES,
        "cleanup.policy": "delete",
        "segment.bytes": str(256 << 20),
        "segment.ms": str(_DAY_MS // 4),
    },
}
CHECKPOINT_BYTES_MAX = 8 << 20
"""The largest checkpoint, in bytes. A checkpoint grows with the number of tables: with 3,000, it exceeds 1 MiB.

A higher limit would be refused by some managed clusters."""

_POSITIONS = {**_PROFILES["aggressive"], "max.message.bytes": str(CHECKPOINT_BYTES_MAX)}
_DELTA_BYTES = 4
"""The size limit of a delta, as a multiple of the size limit of the changelog's messages.

A delta can be larger than the message of its change, because it has the name of each changed column twice, and both
values of the column."""

_UNLIMITED = {**_COMMIT_TIMES, "cleanup.policy": "delete", "retention.ms": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The retention and compaction of one entity's topic.

    `settings` has further settings, with Kafka's names; they override those of the profile. `retention_days` is used
    only by the profile `history`.
    """

    profile: Profile = "changelog"
    retention_days: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_kafka(self) -> dict[str, str]:
        """Returns the topic's settings, with Kafka's names and values."""
        retention = {"retention.ms": str(self.retention_days * _DAY_MS)} if self.profile == "history" else {}
        return {**_PROFILES[self.profile], **retention, **self.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic as it should be: `settings` has Kafka's names and values."""

    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One topic as it is on the broker."""

    partitions: int
    settings: Mapping[str, str]
    in_sync: int | None = None
    """The number of in-sync replicas in the partition that has the fewest of them; None if it was not read."""
    replicas: int | None = None
    """The number of all replicas of that partition; None if it was not read."""

    @property
    def in_sync_min(self) -> int:
        """How many replicas must hold a message before it is acknowledged."""
        return int(self.settings.get(MIN_IN_SYNC, "1"))

    @property
    def lacks_replicas(self) -> bool:
        """Whether a partition has too few in-sync replicas although it has further replicas that are not in sync.

        Brokers of all versions refuse messages to such a partition.
        """
        return self.may_lack_replicas and self.in_sync != self.replicas

    @property
    def may_lack_replicas(self) -> bool:
        """Whether a partition has too few in-sync replicas.

        If all replicas of the partition are in sync, Kafka 4.1 accepts messages, but older brokers may refuse them.
        """
        return self.in_sync is not None and self.in_sync < self.in_sync_min

    @property
    def message_bytes(self) -> int:
        """The largest batch that the topic accepts, in bytes."""
        return int(self.settings.get("max.message.bytes", MESSAGE_BYTES_DEFAULT))

    @property
    def limits_time(self) -> bool:
        """Whether the topic refuses messages whose time is too far ahead of the broker's clock."""
        return int(self.settings.get(AHEAD, _AHEAD_MAX)) < _AHEAD_MAX


def topics_of(
    prefix: str,
    entities: Iterable[Entity],
    settings: Mapping[str, TopicSettings],
    generations: Mapping[str, int] | None = None,
) -> list[Topic]:
    """Returns the topics of a changelog: one for each entity, and one each for checkpoints, messages that were set
    aside, versions of columns, and gaps.

    `settings` has the settings by entity. `generations` has the number of the present generation of each entity that
    was repartitioned.
    """
    numbers = generations or {}
    return [
        *(
            Topic(
                name=topic_name(prefix, entity.name, numbers.get(entity.name, 1)),
                partitions=entity.partitions,
                settings=settings.get(entity.name, TopicSettings()).to_kafka(),
            )
            for entity in entities
        ),
        Topic(name=positions_topic(prefix), partitions=1, settings=_POSITIONS),
        Topic(name=dead_topic(prefix), partitions=1, settings=_UNLIMITED),
        Topic(name=schemas_topic(prefix), partitions=1, settings=_UNLIMITED),
        Topic(name=gaps_topic(prefix), partitions=1, settings=_UNLIMITED),
    ]


def delta_topics_of(changelog: Mapping[str, TopicState]) -> list[Topic]:
    """Returns the topics of entities' deltas. `changelog` maps the names of the entities' topics to their states.

    A topic of deltas has unlimited retention, and as many partitions as the topic of the entity's changelog.
    """
    return [
        Topic(
            name=delta_topic(name),
            partitions=state.partitions,
            settings={**_UNLIMITED, "max.message.bytes": str(_DELTA_BYTES * state.message_bytes)},
        )
        for name, state in changelog.items()
    ]


def ensure(
    client: Client, topics: Sequence[Topic], *, create: bool, replication_factor: int | None
) -> dict[str, TopicState]:
    """Creates missing topics, if `create` allows it, and returns the state of every topic.

    Raises ChangelogError for the cluster's errors. Raises PRECONDITION if a topic is missing and `create` is False, or
    if a topic does not have the configured number of partitions: that would break the order of a key's changes.
    """
    admin = client.admin()
    states = read(admin, topics)
    absent = [topic for topic in topics if topic.name not in states]
    if absent and not create:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"topic {absent[0].name} does not exist",
            hint=f"create it with {absent[0].partitions} partitions, or set [sink] create_topics = true",
        )
    if absent:
        for request in _requests(absent):
            _create(admin, request, replication_factor)
        states |= _read_new(admin, absent)
    for topic in topics:
        refuse_resized(topic, states[topic.name])
    return states


def entities(admin: Admin, prefix: str) -> dict[str, list[Part]]:
    """Returns the entities that have a topic, including the reserved entities, and the partitions of each.

    The partitions of older generations come first. Leaves out the topics of deltas.
    """
    pattern = re.compile(re.escape(topic_name(prefix, "")) + r"[a-z0-9_-]+(\.G[0-9]+)?")
    counts = {name: len(metadata.partitions) for name, metadata in admin.topics().items() if pattern.fullmatch(name)}
    parts: dict[str, list[Part]] = {}
    for name in sorted(counts, key=generation_of):
        parts.setdefault(entity_of(prefix, name), []).extend((name, number) for number in range(counts[name]))
    return parts


def missing(client: Client, topics: Iterable[Topic]) -> list[Topic]:
    """Returns those of `topics` that do not exist."""
    existing = client.admin().topics()
    return [topic for topic in topics if topic.name not in existing]


def lost(topic: str) -> ChangelogError:
    """Returns the error for a topic that existed when the changelog began, and no longer exists."""
    return ChangelogError(
        Kind.GAP,
        f"topic {topic} no longer exists, although the changelog was begun with it",
        hint=OVER_GAP,
    )


def read(admin: Admin, topics: Iterable[Topic]) -> dict[str, TopicState]:
    """Returns the state of each of `topics` that exists, by name."""
    metadata = admin.topics()
    existing = [topic.name for topic in topics if topic.name in metadata]
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in existing]
    answers = admin.describe_configs(resources, request_timeout=TIMEOUT_S) if resources else {}
    settings = {
        resource.name: _answer(future, "asking Kafka for the topics' settings") for resource, future in answers.items()
    }
    replica_counts = {name: _fewest_in_sync(metadata[name]) for name in existing}
    return {
        name: TopicState(
            partitions=len(metadata[name].partitions),
            in_sync=replica_counts[name][0],
            replicas=replica_counts[name][1],
            settings={entry.name: entry.value for entry in settings[name].values() if entry.value is not None},
        )
        for name in existing
    }


def _read_new(admin: Admin, created: Sequence[Topic]) -> dict[str, TopicState]:
    """Returns the state of topics that were just created. The state also has the broker's defaults.

    A broker may show a new topic only after a moment. For a topic that stays invisible, this returns the state that was
    configured.
    """
    states = {topic.name: TopicState(partitions=topic.partitions, settings=topic.settings) for topic in created}
    hidden = list(created)
    for wait_s in _NEW_WAITS_S:
        time.sleep(wait_s)
        try:
            visible_states = {name: state for name, state in read(admin, hidden).items() if state.partitions}
        except ChangelogError as error:
            refusal = _refusal(error)
            if refusal is None or refusal.code() not in UNKNOWN_TOPIC:
                raise
            continue  # one broker lists a topic that another broker does not know yet
        states |= visible_states
        hidden = [topic for topic in hidden if topic.name not in visible_states]
        if not hidden:
            break
    return states


def _fewest_in_sync(topic: TopicMetadata) -> tuple[int, int] | tuple[None, None]:
    """Returns two numbers: the in-sync replicas, and all replicas, of the partition with the fewest in-sync replicas.

    Both are None for a topic that has no partitions yet.
    """
    if not topic.partitions:
        return None, None
    part = min(topic.partitions.values(), key=lambda part: (len(part.isrs), -len(part.replicas)))
    return len(part.isrs), len(part.replicas)


def _requests(topics: Iterable[Topic]) -> Iterator[list[Topic]]:
    """Yields the topics in groups that are small enough for one request (`_RECORDS_MAX`)."""
    group: list[Topic] = []
    group_records = 0
    for topic in topics:
        records = 1 + topic.partitions + len(topic.settings)
        if group and group_records + records > _RECORDS_MAX:
            yield group
            group, group_records = [], 0
        group.append(topic)
        group_records += records
    if group:
        yield group


def _create(admin: AdminClient, absent: Sequence[Topic], replication_factor: int | None) -> None:
    """Creates topics. If the broker refuses the setting `AHEAD`, as versions before 3.6 do, creates the topics without
    this setting. A topic that exists by now is left as it is.
    """
    new_topics = {
        topic.name: NewTopic(topic.name, topic.partitions, replication_factor or -1, config=dict(topic.settings))
        for topic in absent
    }
    refused_topics = []
    for name, future in admin.create_topics(list(new_topics.values()), request_timeout=TIMEOUT_S).items():
        try:
            _answer(future, f"creating topic {name}")
        except ChangelogError as error:
            refusal = _refusal(error)
            if refusal is None or refusal.code() not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_CONFIG):
                raise
            if refusal.code() == KafkaError.INVALID_CONFIG:
                if AHEAD not in refusal.str():
                    raise
                refused_topics.append(next(topic for topic in absent if topic.name == name))
    if refused_topics:
        _create(admin, [_without_ahead(topic) for topic in refused_topics], replication_factor)


def _without_ahead(topic: Topic) -> Topic:
    return replace(topic, settings={key: value for key, value in topic.settings.items() if key != AHEAD})


def _refusal(error: ChangelogError) -> KafkaError | None:
    """Returns Kafka's own error if it is the cause of `error`, otherwise None."""
    cause = error.__cause__
    return cause.args[0] if isinstance(cause, KafkaException) else None


def refuse_repartitioned(
    topic_of: Callable[[str], str],
    entities: Iterable[Entity],
    started_with: Mapping[str, Mapping[str, Any]],
    recreated: Collection[str],
) -> None:
    """Raises ChangelogError (SETTINGS) if an entity's number of partitions differs from the number that it began with.

    `topic_of` returns the present topic of an entity. `started_with` maps entities to the settings that they began
    with. The topics in `recreated` are accepted: they were deleted and created again since then, so no key has older
    changes in another partition.
    """
    for entity in entities:
        name = topic_of(entity.name)
        old_partitions = started_with.get(entity.name, {}).get("partitions", entity.partitions)
        if old_partitions != entity.partitions and name not in recreated:
            raise ChangelogError(
                Kind.SETTINGS,
                f"[entities.{entity.name}] partitions is {entity.partitions}, but topic {name} was begun with "
                f"{old_partitions}: a key's changes would be in two partitions",
                hint=f"set partitions = {old_partitions}; to change the number, {REPARTITION}",
            )


def refuse_other_envelope(
    topic_of: Callable[[str], str],
    envelope: str,
    started_with: Mapping[str, Mapping[str, Any]],
    recreated: Collection[str],
) -> None:
    """Raises ChangelogError (SETTINGS) if a topic was begun in another envelope, because no consumer reads both.

    The parameters are as in `refuse_repartitioned`.
    """
    for entity, settings in started_with.items():
        old_envelope = str(settings.get("codec", "")).rpartition("-")[0] or OWN
        if old_envelope != envelope and topic_of(entity) not in recreated:
            raise ChangelogError(
                Kind.SETTINGS,
                f'[sink] envelope is "{envelope}", but topic {topic_of(entity)} was begun with '
                f'"{old_envelope}": no consumer reads both',
                hint=f'set envelope = "{old_envelope}", or publish to new topics under another [sink] prefix',
            )


def refuse_resized(topic: Topic, state: TopicState) -> None:
    """Raises ChangelogError (PRECONDITION) if a topic does not have the configured number of partitions."""
    if state.partitions != topic.partitions:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"topic {topic.name} has {state.partitions} partitions, and {topic.partitions} are configured",
            hint=f"if the changelog was begun with {state.partitions} partitions, set partitions = {state.partitions}; "
            f"if the topic was resized since, a key's changes would be in two partitions: {REPARTITION}",
        )


def _answer(future: "Future[Any]", action: str) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        raise error_of(error.args[0], action) from error
