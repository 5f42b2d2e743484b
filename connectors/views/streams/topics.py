"""Finds the topics that can be served: those that keep the last message of every key."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.sinks.kafka.admin.generations import generations_of
from changelog.connectors.sinks.kafka.admin.names import positions_topic, topic
from changelog.connectors.sinks.kafka.admin.topics import (
    MESSAGE_BYTES_DEFAULT,
    Topic,
    TopicSettings,
    TopicState,
    ensure,
    read,
)
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.envelope.entity import RESERVED, SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition

POSITIONS: Final = "positions"
"""The table of checkpoints. No entity has this name."""

_DAY_S = 86_400.0
_UNLIMITED = "-1"

_log = structlog.get_logger("views")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTopic:
    """The topic `name` of an entity, whose key has the columns `key`.

    `is_placed_by_key` says that each key is in the partition that the key chooses. If it is false, a key can be in any
    partition. Messages have at most `message_bytes` bytes.
    """

    name: str
    key: tuple[str, ...]
    partitions: int
    is_placed_by_key: bool
    message_bytes: int = MESSAGE_BYTES_DEFAULT

    def parts(self) -> Sequence[Part]:
        """Returns all partitions."""
        return [(self.name, number) for number in range(self.partitions)]

    def partitions_of(self, key: bytes) -> Sequence[int]:
        """Returns the numbers of the partitions in which a key can be."""
        return [partition(key, self.partitions)] if self.is_placed_by_key else range(self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTopics:
    """The topics that are served: those of `entities`, and `others`, by table.

    `ids` are the ids of all topics, by name; empty texts if the broker has no ids. `tombstones_s` is the shortest time,
    in seconds, for which a tombstone is kept.
    """

    entities: Mapping[str, ServedTopic]
    others: Mapping[str, str]
    ids: Mapping[str, str]
    tombstones_s: float

    def names(self) -> Mapping[str, str]:
        """Returns the names of all topics, by table."""
        return {**self.others, **{entity: served.name for entity, served in self.entities.items()}}


def served_topics(admin: Admin, log: KafkaLog, prefix: str, declared: Collection[str]) -> ServedTopics:
    """Returns the topics that the `declared` entities have now. If `declared` is empty, returns those of all entities
    whose topics keep the last message of every key.

    Raises ChangelogError: PRECONDITION if there is no changelog yet, or if the topic of a declared entity, or the topic
    of every entity, loses messages; ACCESS if our Kafka user may not read the settings of topics; and errors of Kafka.
    """
    checkpoint = log.checkpoint()
    settings = {} if checkpoint is None else checkpoint.settings
    names = sorted(set(settings) - RESERVED)
    existing = admin.topics()
    present = {name: generations_of(checkpoint, prefix, name)[-1].topic for name in names}
    absent = [topic_name for topic_name in present.values() if topic_name not in existing]
    if not names or absent:
        what = f"topic {absent[0]} does not exist" if absent else f"{log.where} is empty"
        raise ChangelogError(Kind.PRECONDITION, what, hint="start the service: `changelog run`")
    served_names = [name for name in names if not declared or name in declared]
    topics = {name: present[name] for name in served_names}
    states = _states(admin, topics.values())
    lossy = {entity: text for entity, name in topics.items() if name in states and (text := loss(states[name]))}
    for entity, text in lossy.items():
        message = f"topic {topics[entity]} deletes messages ({text}), so it lacks rows that have not changed lately"
        if declared or len(lossy) == len(topics):
            hint = 'serve its archive (--archive FOLDER), or set cleanup.policy = "compact" and rebuild the entity'
            raise ChangelogError(Kind.PRECONDITION, message, hint=hint)
        _log.warning("an entity is not served", entity=entity, reason=message)
    entities = {
        name: ServedTopic(
            name=topics[name],
            key=tuple(settings[name].get("key", ())),
            partitions=len(existing[topics[name]].partitions),
            is_placed_by_key=log.is_placed_by_key(name, len(existing[topics[name]].partitions)),
            message_bytes=states[topics[name]].message_bytes,
        )
        for name in served_names
        if name not in lossy
    }
    others = {POSITIONS: positions_topic(prefix), SCHEMAS: topic(prefix, SCHEMAS)}
    all_names = {*others.values(), *(served.name for served in entities.values())}
    ids = read_ids(admin, all_names)
    return ServedTopics(
        entities=entities,
        others=others,
        ids={name: ids.get(name, "") for name in sorted(all_names)},
        tombstones_s=min((_tombstones_s(state) for state in states.values()), default=_DAY_S),
    )


def ensure_changelog(
    client: Client, name: str, served: ServedTopic, *, create: bool, replication_factor: int | None
) -> tuple[str, float]:
    """Creates the changelog of a store (the topic from which Kafka Streams restores the store) if there is none. The
    store's rows come from the topic `served`. Returns the changelog's id, and for how many seconds at least it keeps a
    tombstone.

    Raises ChangelogError: PRECONDITION if rows of the topic can move between partitions, or if the changelog loses
    messages; and the errors of `ensure`.
    """
    if not served.is_placed_by_key and served.partitions > 1:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"rows of the topic {served.name} can move between its partitions, so they cannot be chosen by service",
            hint="leave keep_service and drop_service out, or serve an archive (--archive FOLDER)",
        )
    only_states = {"min.compaction.lag.ms": "0", "max.message.bytes": str(served.message_bytes)}
    settings = TopicSettings(settings=only_states).to_kafka()
    changelog = Topic(name=name, partitions=served.partitions, settings=settings)
    state = ensure(client, [changelog], create=create, replication_factor=replication_factor)[name]
    if (text := loss(state)) is not None:
        hint = "set its cleanup.policy = compact; or delete it, and the rows are made anew"
        raise ChangelogError(Kind.PRECONDITION, f"topic {name} deletes messages ({text})", hint=hint)
    return read_ids(client.admin(), {name}).get(name, ""), _tombstones_s(state)


def loss(state: TopicState) -> str | None:
    """Returns a setting by which a topic deletes even the last message of a key; None if it has no such setting."""
    if "delete" not in state.settings.get("cleanup.policy", "compact"):
        return None
    limits = {name: state.settings.get(name, _UNLIMITED) for name in ("retention.ms", "retention.bytes")}
    return next((f"{name} = {limit}" for name, limit in limits.items() if limit != _UNLIMITED), None)


def _states(admin: Admin, names: Collection[str]) -> Mapping[str, TopicState]:
    """Returns the settings of topics. Raises ChangelogError (ACCESS) if they may not be read: without them, a topic
    that deletes rows would be served as if it had all rows.
    """
    try:
        return read(admin, [Topic(name=name, partitions=1, settings={}) for name in names])
    except ChangelogError as error:
        if error.kind is not Kind.ACCESS:
            raise
        message = f"cannot read the settings of topics: {error.message}"
        raise ChangelogError(Kind.ACCESS, message, hint="grant DescribeConfigs on the topics of the prefix") from error


def _tombstones_s(state: TopicState) -> float:
    return float(state.settings.get("delete.retention.ms", _DAY_S * 1000)) / 1000


def all_parts(topics: Mapping[str, ServedTopic]) -> Iterator[Part]:
    """Yields all partitions of entities."""
    for served in topics.values():
        yield from served.parts()
