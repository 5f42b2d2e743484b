"""Opens the sink and the reader of a changelog on Kafka, and checks, lists and deletes the changelog's topics.

This module needs the extra `kafka`, so `wiring.sinks` imports it only if the configuration names Kafka.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing

from changelog.connectors import failpoints
from changelog.connectors.config import OWN_ENVELOPE, Config, KafkaConfig
from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import begins, ends
from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sinks import unknown_entity
from changelog.connectors.sinks.kafka import repartition as repartitioning
from changelog.connectors.sinks.kafka.admin import cleanup, rights, topic_check, topics
from changelog.connectors.sinks.kafka.admin.generations import Generation, present_numbers
from changelog.connectors.sinks.kafka.admin.names import delta_topic, positions_topic, topic
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings
from changelog.connectors.sinks.kafka.encoding.avro import AvroValues
from changelog.connectors.sinks.kafka.encoding.connect import ConnectValues
from changelog.connectors.sinks.kafka.encoding.messages import JSON, ValueCodec
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.reading.positions import refuse_shared
from changelog.connectors.sinks.kafka.reading.read_generations import read_generations
from changelog.connectors.sinks.kafka.reading.unchanged import refuse_older
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind


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
    """Yields what `check` finds on Kafka: whether a broker answers, whether the topics are as they should be, and
    whether the service's user has the rights that it needs.

    `running` says whether the service runs now. If it does, the right to begin transactions is not tested, because the
    test would fence off the service's producer. `begun_entities` are the entities that the changelog already has.
    `lag_s` is the changelog's lag in seconds, None if the lag is unknown.
    """
    settings = sink_settings(config, sink)
    try:
        counts = {entity.name: entity.partitions for entity in entities}
        generations = present_numbers(read_generations(settings.client, config.prefix, config.name, counts))
    except ChangelogError:  # the first finding says that Kafka does not answer
        generations = {}
    required = topics.topics_of(config.prefix, entities, settings.entities, generations)
    names = {topic(config.prefix, entity, generations.get(entity, 1)) for entity in begun_entities}
    reach_finding, *others = topic_check.findings(
        settings.client, required, create=sink.create_topics, started=names, lag_s=lag_s
    )
    yield from (reach_finding, *others)
    if reach_finding.status == "fail":
        return
    entity_names = [entity.name for entity in entities]
    yield from topic_check.delta_findings(settings.client, config.prefix, entity_names)
    yield from topic_check.ended_findings(settings.client, config.prefix, entity_names)
    existing = topics.read(settings.client.admin(), required)
    if existing:
        yield from rights.topic_rights(settings.client, list(existing))
    if positions_topic(config.prefix) in existing:
        yield _sources(settings, entity_names)
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
    """Deletes the checkpoint of the configured source, so that the source starts from the beginning.

    Raises ChangelogError.
    """
    cleanup.forget_checkpoint(client(sink), config.prefix, config.name)


def topics_left(config: Config, sink: KafkaConfig, entities: Iterable[str]) -> dict[str, int]:
    """Returns, for each topic of these entities and of their deltas, an upper bound of the number of its messages.

    This bound is a difference of offsets, so it also counts ends of transactions, tombstones and messages that
    compaction has removed. Topics that do not exist are left out.
    """
    admin = client(sink).admin()
    existing_topics = admin.topics()
    entity_parts = topics.entities(admin, config.prefix)
    own_names = [
        name
        for entity in entities
        for name in dict.fromkeys([topic(config.prefix, entity), *dict(entity_parts.get(entity, ()))])
    ]
    names = [name for own_name in own_names for name in (own_name, delta_topic(own_name))]
    parts = {
        name: [(name, number) for number in existing_topics[name].partitions]
        for name in names
        if name in existing_topics
    }
    all_parts = [part for topic_parts in parts.values() for part in topic_parts]
    first, end = begins(admin, all_parts), ends(admin, all_parts)
    return {name: sum(end[part] - first[part] for part in topic_parts) for name, topic_parts in parts.items()}


def delete(sink: KafkaConfig, names: Sequence[str]) -> None:
    """Deletes the topics `names`."""
    cleanup.delete_topics(client(sink), names)


def repartition(
    config: Config, sink: KafkaConfig, entity: str, partitions: int, *, reach: failpoints.Reach
) -> Generation:
    """Begins a new topic for the entity, with this number of partitions, and returns the new topic.

    If the entity already has this number of partitions, changes nothing and returns its present topic. The service must
    be stopped. Raises ChangelogError: USAGE if there is no such entity, DIVERGED if a topic has rows that are newer
    than the checkpoint, and the errors of `changelog.connectors.sinks.kafka.repartition`.
    """
    log = open_log(config, sink)
    visible_checkpoint = log.checkpoint()
    if visible_checkpoint is None:
        raise ChangelogError(Kind.USAGE, f"{log.where} is empty", hint="start the service first: `changelog run`")
    if entity not in visible_checkpoint.settings:
        raise unknown_entity(log, entity, visible_checkpoint.settings)
    with closing(open_sink(config, sink, over_gap=False, reach=reach, stopping=lambda: False)) as opened_sink:
        checkpoint = opened_sink.recover()
        assert checkpoint is not None  # it is `visible_checkpoint`, or a newer one
        settings = sink_settings(config, sink)
        existing = topics.entities(settings.client.admin(), config.prefix)
        parts = [part for name in checkpoint.settings for part in existing.get(name, ())]
        refuse_older(settings.client, values(config, sink), config.prefix, config.name, checkpoint, parts)
        return repartitioning.repartition(opened_sink, settings, checkpoint, entity, partitions, reach=reach)
