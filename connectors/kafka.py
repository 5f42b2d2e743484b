"""From the configuration to what there is on Kafka. It needs the extra `kafka`: `connectors.stores` loads it late."""

from connectors import failpoints
from connectors.config import Config, KafkaConfig
from connectors.sinks.kafka.avro import AvroValues
from connectors.sinks.kafka.client import Client
from connectors.sinks.kafka.log import KafkaLog
from connectors.sinks.kafka.messages import JSON, Values
from connectors.sinks.kafka.registry import Registry
from connectors.sinks.kafka.sink import KafkaSink, Settings
from connectors.sinks.kafka.topics import TopicSettings


def client(sink: KafkaConfig) -> Client:
    """How the cluster is reached."""
    return Client(bootstrap_servers=sink.bootstrap_servers, options=sink.client)


def values(config: Config, sink: KafkaConfig) -> Values:
    """The codec."""
    if sink.registry is None:
        return JSON
    return AvroValues(Registry(sink.registry, sink.registry_client, auto_register=sink.auto_register), config.prefix)


def topic_settings(config: Config) -> dict[str, TopicSettings]:
    """How the topic of each entity is kept for which the configuration says it."""
    return {
        name: TopicSettings(
            profile=entity.profile, retention_days=entity.retention_days, settings=entity.topic_settings
        )
        for name, entity in config.entities.items()
    }


def open_sink(config: Config, sink: KafkaConfig, *, reach: failpoints.Reach) -> KafkaSink:
    """The sink; nothing is held yet."""
    settings = Settings(
        client=client(sink),
        name=config.name,
        prefix=config.prefix,
        entities=topic_settings(config),
        create_topics=sink.create_topics,
        replication_factor=sink.replication_factor,
        on_too_large=sink.on_too_large,
        transaction_timeout_s=sink.transaction_timeout_seconds,
    )
    return KafkaSink(settings, values(config, sink), reach=reach)


def open_log(config: Config, sink: KafkaConfig) -> KafkaLog:
    """A reader of the changelog."""
    return KafkaLog(client(sink), values(config, sink), prefix=config.prefix, name=config.name)
