"""The topics: what they are set to and why, how they are made, and whether they still are as they should be."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType, TopicMetadata

from connectors.findings import Finding, fail, ok, warn
from connectors.sinks.kafka.admin.names import (
    dead_topic,
    delta_topic,
    gaps_topic,
    positions_topic,
    schemas_topic,
    topic,
)
from connectors.sinks.kafka.client import TIMEOUT_S, Admin, Client, error_of
from envelope.entity import Entity
from envelope.errors import OVER_GAP, ChangelogError, Kind

MESSAGE_BYTES_DEFAULT = 1_048_588
"""What a broker takes where neither it nor the topic says otherwise: a batch of 1 MiB (Kafka, `message.max.bytes`)."""

_DAY_MS = 86_400_000

_MIN_IN_SYNC = "min.insync.replicas"

IN_SYNC_HINT = f"start the brokers that are away, add replicas to the topic, or lower its {_MIN_IN_SYNC}"

_RECORDS_MAX = 5_000
"""What one request may make a controller write: a record a topic, partition and setting. It takes 10,000 at once."""

Profile = Literal["changelog", "aggressive", "history"]

REPARTITION = (
    "publish to new topics under another [sink] prefix, or delete the topic and run "
    "`changelog run --over-gap --accept-config`"
)
"""How an entity gets another number of partitions: its topic holds no key that stands elsewhere by now."""

AHEAD = "message.timestamp.after.max.ms"
"""How far a message's time may be ahead of the broker's clock; brokers before 3.6 do not know it, and set no limit."""

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
_POSITIONS = _PROFILES["aggressive"]
_DELTA_BYTES = 4
"""How much larger a delta may be than the largest change: it names each column twice, beside its two values."""

_KEPT = {**_COMMIT_TIMES, "cleanup.policy": "delete", "retention.ms": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """How the topic of one entity is kept; `settings` override the profile's, as Kafka names them."""

    profile: Profile = "changelog"
    retention_days: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)

    def wanted(self) -> dict[str, str]:
        """The topic's settings, in Kafka's names and texts."""
        retention = {"retention.ms": str(self.retention_days * _DAY_MS)} if self.profile == "history" else {}
        return {**_PROFILES[self.profile], **retention, **self.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic, as it is to be."""

    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One topic, as it is; `message_bytes` is the largest batch that it takes."""

    partitions: int
    settings: Mapping[str, str]
    in_sync: int | None = None
    """The in-sync replicas of the partition that has the fewest; None while nobody was asked."""
    replicas: int | None = None
    """All replicas of that partition; None while nobody was asked."""

    @property
    def in_sync_min(self) -> int:
        """How many replicas are to hold a message before it is acknowledged."""
        return int(self.settings.get(_MIN_IN_SYNC, "1"))

    @property
    def lacks_replicas(self) -> bool:
        """Whether every broker refuses messages to a partition, since too few of its replicas are in sync."""
        return self.may_lack_replicas and self.in_sync != self.replicas

    @property
    def may_lack_replicas(self) -> bool:
        """The same, or a partition has too few replicas at all: Kafka 4.1 then asks only for those, older brokers may
        refuse.
        """
        return self.in_sync is not None and self.in_sync < self.in_sync_min

    @property
    def message_bytes(self) -> int:
        """The largest batch that the topic takes, in bytes."""
        return int(self.settings.get("max.message.bytes", MESSAGE_BYTES_DEFAULT))

    @property
    def limits_time(self) -> bool:
        """Whether the topic refuses messages whose time is too far ahead of the broker's clock."""
        return int(self.settings.get(AHEAD, _AHEAD_MAX)) < _AHEAD_MAX


def topics_of(prefix: str, entities: Iterable[Entity], settings: Mapping[str, TopicSettings]) -> list[Topic]:
    """The topics of a changelog: one an entity, and those for positions, what is set aside, versions, gaps."""
    return [
        *(
            Topic(
                name=topic(prefix, entity.name),
                partitions=entity.partitions,
                settings=settings.get(entity.name, TopicSettings()).wanted(),
            )
            for entity in entities
        ),
        Topic(name=positions_topic(prefix), partitions=1, settings=_POSITIONS),
        Topic(name=dead_topic(prefix), partitions=1, settings=_KEPT),
        Topic(name=schemas_topic(prefix), partitions=1, settings=_KEPT),
        Topic(name=gaps_topic(prefix), partitions=1, settings=_KEPT),
    ]


def delta_topics_of(prefix: str, changelog: Mapping[str, Found]) -> list[Topic]:
    """The topics of the deltas of entities, each as wide as that of the changelog: never compacted, and all is kept."""
    return [
        Topic(
            name=delta_topic(prefix, entity),
            partitions=found.partitions,
            settings={**_KEPT, "max.message.bytes": str(_DELTA_BYTES * found.message_bytes)},
        )
        for entity, found in changelog.items()
    ]


def ensure(
    client: Client, topics: Sequence[Topic], *, create: bool, replication_factor: int | None
) -> dict[str, Found]:
    """Creates what is missing, if it may; gives every topic as it is.

    Raises ChangelogError: PRECONDITION when one is missing and not to be created, or has another number of
    partitions (a change of which would part the keys from their order), and what the cluster answers.
    """
    admin = client.admin()
    found = read(admin, topics)
    wanting = [each for each in topics if each.name not in found]
    if wanting and not create:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"topic {wanting[0].name} does not exist",
            hint=f"create it with {wanting[0].partitions} partitions, or set [sink] create_topics = true",
        )
    if wanting:
        for request in _requests(wanting):
            _create(admin, request, replication_factor)
        found |= {each.name: Found(partitions=each.partitions, settings=each.settings) for each in wanting}
    for each in topics:
        _refuse_resized(each, found[each.name])
    return found


def entities(admin: Admin, prefix: str) -> dict[str, int]:
    """The entities that have a topic, the reserved ones included, each with the number of its partitions.

    Topics of deltas are none: they have one more dot in their names.
    """
    named = re.compile(re.escape(topic(prefix, "")) + "([a-z0-9_-]+)")
    counted = {name: len(each.partitions) for name, each in admin.topics().items()}
    return {match[1]: count for name, count in counted.items() if (match := named.fullmatch(name))}


def missing(client: Client, topics: Iterable[Topic]) -> list[Topic]:
    """Those of the topics that do not exist."""
    known = client.admin().topics()
    return [each for each in topics if each.name not in known]


def lost(topic: Topic) -> ChangelogError:
    """What is said of a topic that is not there any more, though its changelog was begun."""
    return ChangelogError(
        Kind.GAP,
        f"topic {topic.name} does not exist, and the changelog was begun with it",
        hint=OVER_GAP,
    )


def read(admin: Admin, topics: Iterable[Topic]) -> dict[str, Found]:
    """Those of the topics that exist, by name."""
    known = admin.topics()
    there = [each.name for each in topics if each.name in known]
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in there]
    answers = admin.describe_configs(resources, request_timeout=TIMEOUT_S) if resources else {}
    settings = {
        resource.name: _answer(future, "asking Kafka for the topics' settings") for resource, future in answers.items()
    }
    replicated = {name: _fewest_in_sync(known[name]) for name in there}
    return {
        name: Found(
            partitions=len(known[name].partitions),
            in_sync=replicated[name][0],
            replicas=replicated[name][1],
            settings={entry.name: entry.value for entry in settings[name].values() if entry.value is not None},
        )
        for name in there
    }


def _fewest_in_sync(topic: TopicMetadata) -> tuple[int, int] | tuple[None, None]:
    """The in-sync replicas, and all replicas, of the partition that has the fewest in sync; None of a topic that has
    no partitions yet.
    """
    if not topic.partitions:
        return None, None
    part = min(topic.partitions.values(), key=lambda part: (len(part.isrs), -len(part.replicas)))
    return len(part.isrs), len(part.replicas)


def findings(
    client: Client,
    topics: Sequence[Topic],
    *,
    create: bool,
    begun: Collection[str] = (),
    lag_s: float | None = None,
) -> Iterator[Finding]:
    """What `check` says of the topics.

    `begun` names those that the changelog was begun with; `lag_s` is how far behind it is, in seconds, where that is
    known.
    """
    try:
        found = read(client.admin(), topics)
    except ChangelogError as error:
        yield fail("kafka", error.message, error.hint or "start the broker, or mend [sink] bootstrap_servers")
        return
    yield ok("kafka", f"reached, at {client.bootstrap_servers}")
    for each in topics:
        if each.name in begun and each.name not in found:
            gone = lost(each)
            yield fail(f"topic {each.name}", gone.message, gone.hint or "")
        else:
            yield from _judged(each, found.get(each.name), create=create, lag_s=lag_s)


def delta_findings(client: Client, prefix: str, entities: Collection[str]) -> Iterator[Finding]:
    """What `check` says of the topics of deltas that there are; the job that fills them makes them."""
    admin = client.admin()
    named = {topic(prefix, entity): entity for entity in entities}
    there = read(admin, [Topic(name=name, partitions=0, settings={}) for name in named])
    wanted = {each.name: each for each in delta_topics_of(prefix, {named[name]: each for name, each in there.items()})}
    for name, found in read(admin, wanted.values()).items():
        yield from _judged(wanted[name], found, create=True, lag_s=None)


def _judged(wanted: Topic, found: Found | None, *, create: bool, lag_s: float | None) -> Iterator[Finding]:
    name = f"topic {wanted.name}"
    if found is None:
        if create:
            yield ok(name, f"will be created, with {wanted.partitions} partitions")
        else:
            yield fail(name, "does not exist", f"create it with {wanted.partitions} partitions")
        return
    try:
        _refuse_resized(wanted, found)
    except ChangelogError as error:
        yield fail(name, error.message, error.hint or "")
        return
    drift = {
        key: value
        for key, value in wanted.settings.items()
        if not _equal(found.settings.get(key), value) and (key != AHEAD or found.limits_time)
    }
    if drift:
        told = ", ".join(f"{key} is {found.settings.get(key)}, not {value}" for key, value in drift.items())
        yield warn(name, told, f"kafka-configs --alter --topic {wanted.name} --add-config {_options(drift)}")
    else:
        yield ok(name, f"{found.partitions} partitions, set as configured")
    yield from _retention(name, found, lag_s)
    yield from _in_sync(name, found)


def _in_sync(name: str, found: Found) -> Iterator[Finding]:
    if found.lacks_replicas:
        said = f"a partition has {found.in_sync} in-sync replicas, and {_MIN_IN_SYNC} is {found.in_sync_min}"
        yield fail(name, f"{said}: the service waits at each commit", IN_SYNC_HINT)
    elif found.may_lack_replicas:
        said = f"a partition has {found.replicas} replicas, and {_MIN_IN_SYNC} is {found.in_sync_min}"
        hint = f"add replicas to the topic, or lower its {_MIN_IN_SYNC}"
        yield warn(name, f"{said}: brokers before Kafka 4.1 may refuse every message", hint)


def _retention(name: str, found: Found, lag_s: float | None) -> Iterator[Finding]:
    """A message is as old as its commit: what comes later than the retention is deleted as it arrives."""
    if "delete" not in found.settings.get("cleanup.policy", "") or lag_s is None:
        return
    retention_s = int(found.settings.get("retention.ms", "-1")) / 1000
    if 0 < retention_s / 2 < lag_s:
        yield warn(
            name,
            f"the changelog is {lag_s / 3600:.1f} h behind, and the topic forgets after {retention_s / 3600:.1f} h",
            "start the service, or raise retention_days",
        )


def _requests(topics: Iterable[Topic]) -> Iterator[list[Topic]]:
    """The topics in runs that one request may create."""
    run: list[Topic] = []
    records = 0
    for each in topics:
        weight = 1 + each.partitions + len(each.settings)
        if run and records + weight > _RECORDS_MAX:
            yield run
            run, records = [], 0
        run.append(each)
        records += weight
    if run:
        yield run


def _create(admin: AdminClient, wanting: Sequence[Topic], replication_factor: int | None) -> None:
    made = {
        topic.name: NewTopic(topic.name, topic.partitions, replication_factor or -1, config=dict(topic.settings))
        for topic in wanting
    }
    older = []
    for name, future in admin.create_topics(list(made.values()), request_timeout=TIMEOUT_S).items():
        try:
            _answer(future, f"creating topic {name}")
        except ChangelogError as error:
            refusal = _refusal(error)
            if refusal is None or refusal.code() not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_CONFIG):
                raise
            if refusal.code() == KafkaError.INVALID_CONFIG:
                if AHEAD not in refusal.str():
                    raise
                older.append(next(topic for topic in wanting if topic.name == name))
    if older:
        _create(admin, [_without_ahead(topic) for topic in older], replication_factor)


def _without_ahead(topic: Topic) -> Topic:
    return replace(topic, settings={key: value for key, value in topic.settings.items() if key != AHEAD})


def _refusal(error: ChangelogError) -> KafkaError | None:
    """Kafka's own error, where `error` was made of one."""
    cause = error.__cause__
    return cause.args[0] if isinstance(cause, KafkaException) else None


def refuse_repartitioned(
    prefix: str, entities: Iterable[Entity], begun: Mapping[str, Mapping[str, Any]], made_again: Collection[str]
) -> None:
    """Raises ChangelogError (SETTINGS) when an entity has another number of partitions than it was `begun` with, and
    the topic is not one of those that were made again since: then it still holds what stands elsewhere by now.
    """
    for entity in entities:
        name, before = topic(prefix, entity.name), begun.get(entity.name, {}).get("partitions", entity.partitions)
        if before != entity.partitions and name not in made_again:
            raise ChangelogError(
                Kind.SETTINGS,
                f"[entities.{entity.name}] partitions is {entity.partitions}, topic {name} was begun with {before}: "
                "a key's changes would be in two partitions",
                hint=f"set partitions = {before}; where the topic has another number by now, {REPARTITION}",
            )


def _refuse_resized(wanted: Topic, found: Found) -> None:
    if found.partitions != wanted.partitions:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"topic {wanted.name} has {found.partitions} partitions, and {wanted.partitions} are configured",
            hint=f"set partitions = {found.partitions} if the changelog was begun with that; Kafka takes no partition "
            f"away, and with another number a key's changes would be in two: {REPARTITION}",
        )


def _equal(found: str | None, wanted: str) -> bool:
    try:
        return found is not None and float(found) == float(wanted)
    except ValueError:
        return found == wanted


def _options(settings: Mapping[str, str]) -> str:
    return ",".join(f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in settings.items())


def _answer(future: "Future[Any]", doing: str) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        raise error_of(error.args[0], doing) from error
