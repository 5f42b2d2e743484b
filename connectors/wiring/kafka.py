"""Opens the sink and the reader of a changelog on Kafka, and checks, lists and deletes the changelog's topics.

This module needs the extra `kafka`, so `wiring.sinks` imports it only if the configuration names Kafka.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from changelog.connectors import failpoints
from changelog.connectors.config import OWN_ENVELOPE, Config, KafkaConfig
from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import begins, ends
from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sinks.kafka.admin import cleanup, rights, topic_check, topics
from changelog.connectors.sinks.kafka.admin.names import delta_topic, positions_topic, topic
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.encoding.avro import AvroValues
from changelog.connectors.sinks.kafka.encoding.connect import ConnectValues
from changelog.connectors.sinks.kafka.encoding.messages import JSON, ValueCodec
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.reading.positions import refuse_shared
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError


def client(sink: KafkaConfig) -> Client:
    """Returns the address of the cluster and the options for its clients."""
    return Client(bootstrap_servers=sink.bootstrap_servers, options=sink.client)


def values(config: Config, sink: KafkaConfig) -> ValueCodec:
    """Returns the codec that writes messages in the configured envelope: in Avro if a registry is configured, else in
    JSON.
    """
    registry = None
    if sink.registry is not None:
        registry = Registry(sink.registry, sink.registry_client, auto_register=sink.auto_register)
    if sink.envelope != OWN_ENVELOPE:
        return ConnectValues(sink.envelope, config.prefix, registry)
    return JSON if registry is None else AvroValues(registry, config.prefix)


def topic_settings(config: Config) -> dict[str, TopicSettings]:
    """Returns the settings of topics, by entity, for the entities that the configuration names."""
    return {
        name: TopicSettings(
            profile=entity.profile, retention_days=entity.retention_days, settings=entity.topic_settings
        )
        for name, entity in config.entities.items()
    }


def sink_settings(config: Config, sink: KafkaConfig) -> KafkaSettings:
    """Returns the settings of the sink."""
    return KafkaSettings(
        client=client(sink),
        name=config.name,
        prefix=config.prefix,
        entities=topic_settings(config),
        create_topics=sink.create_topics,
        replication_factor=sink.replication_factor,
        on_too_large=sink.on_too_large,
        transaction_timeout_s=sink.transaction_timeout_seconds,
        envelope=sink.envelope,
    )


def open_sink(
    config: Config, sink: KafkaConfig, *, over_gap: bool, reach: failpoints.Reach, stopping: Callable[[], bool]
) -> KafkaSink:
    """Returns the sink. The sink claims the topics only when `recover` is called."""
    settings = sink_settings(config, sink)
    return KafkaSink(settings, values(config, sink), over_gap=over_gap, reach=reach, stopping=stopping)


def open_log(config: Config, sink: KafkaConfig) -> KafkaLog:
    """Returns a reader of the changelog."""
    return KafkaLog(client(sink), values(config, sink), prefix=config.prefix, name=config.name)


def findings(
    config: Config,
    sink: KafkaConfig,
    entities: Sequence[Entity],
    *,
    running: bool,
    begun_entities: Iterable[str],
    lag_s: float | None,
) -> Iterator[Finding]:
    """Yields the findings of `check` about Kafka: whether the broker was reached, the topics, and the rights of our
    user.

    `running` says whether the service runs now. If it does, the right to begin transactions is not tested, because the
    test would fence off the service's producer. `begun_entities` has the entities that the changelog already has.
    `lag_s` is the changelog's lag in seconds, None if it is unknown.
    """
    settings = sink_settings(config, sink)
    required = topics.topics_of(config.prefix, entities, settings.entities)
    names = {topic(config.prefix, entity) for entity in begun_entities}
    reach_finding, *others = topic_check.findings(
        settings.client, required, create=sink.create_topics, started=names, lag_s=lag_s
    )
    yield from (reach_finding, *others)
    if reach_finding.status == "fail":
        return
    yield from topic_check.delta_findings(settings.client, config.prefix, [entity.name for entity in entities])
    existing = topics.read(settings.client.admin(), required)
    if existing:
        yield from rights.topic_rights(settings.client, list(existing))
    if positions_topic(config.prefix) in existing:
        yield _sources(settings, [entity.name for entity in entities])
    if not running:
        yield rights.transaction_rights(settings.client, settings.transactional_id)


def _sources(settings: KafkaSettings, entities: Collection[str]) -> Finding:
    """Checks that no other source publishes to a topic of these entities."""
    try:
        refuse_shared(settings.client, settings.prefix, settings.name, entities)
    except ChangelogError as error:
        return fail(
            "sources", error.message, error.hint or "see docs/reference/kafka.md for the rights that are needed"
        )
    return ok("sources", f"no other source publishes to the topics of {settings.name}")


def forget(config: Config, sink: KafkaConfig) -> None:
    """Deletes the checkpoint of this source, so that the source starts from the beginning. Raises ChangelogError."""
    cleanup.forget_checkpoint(client(sink), config.prefix, config.name)


def topics_left(config: Config, sink: KafkaConfig, entities: Iterable[str]) -> dict[str, int]:
    """Returns, for each topic of these entities and of their deltas, how many messages the topic holds at most.

    The number is a difference of offsets, so it also counts ends of transactions, tombstones and messages that
    compaction has removed. Topics that do not exist are left out.
    """
    admin = client(sink).admin()
    existing_topics = admin.topics()
    names = [name_of(config.prefix, entity) for entity in entities for name_of in (topic, delta_topic)]
    parts = {
        name: [(name, number) for number in existing_topics[name].partitions]
        for name in names
        if name in existing_topics
    }
    all_parts = [part for topic_parts in parts.values() for part in topic_parts]
    first, end = begins(admin, all_parts), ends(admin, all_parts)
    return {name: sum(end[part] - first[part] for part in topic_parts) for name, topic_parts in parts.items()}


def delete(sink: KafkaConfig, names: Sequence[str]) -> None:
    """Deletes these topics."""
    cleanup.delete_topics(client(sink), names)
