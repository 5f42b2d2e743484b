"""Opens the source that reads Debezium's events: from topics, or from a Debezium that the service itself runs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from changelog.connectors.config import Config, DebeziumConfig, EntityConfig, TopicsConfig
from changelog.connectors.debezium.jars import CONNECTORS
from changelog.connectors.extras import extra_needed
from changelog.connectors.sources import Database, TableName
from changelog.connectors.sources.debezium.candidate import DebeziumCandidate
from changelog.connectors.sources.debezium.database import DebeziumDatabase, Settings
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.inputs import ConfiguredInput
from changelog.connectors.sources.debezium.inputs.engine.origin import EngineOrigin
from changelog.connectors.sources.debezium.inputs.engine.publication import NAME as PUBLICATION
from changelog.connectors.sources.debezium.inputs.engine.publication import publication_of
from changelog.connectors.sources.debezium.inputs.engine.settings import (
    EngineSettings,
    defaults,
    jar_name,
    snapshot_id,
)
from changelog.connectors.sources.debezium.settings import Whole
from changelog.connectors.sources.debezium.translation import translator
from changelog.connectors.wiring.entities import parse_table


def database(config: Config, source: DebeziumConfig) -> Database:
    """Returns the database whose events Debezium sends. `source` is the section [source] of `config`. See
    `wiring.sources.database`.
    """
    translation = translation_settings(config, source)
    return DebeziumDatabase(
        Settings(
            name=config.name,
            connector=source.connector,
            origin=_origin(config, source),
            translator=lambda: translator(translation),
            hmac_key=config.hmac_key,
            codec=config.codec,
            keeps_state=config.state is not None,
            declared={table: tuple(_columns(entity)) for table, entity in _tables(config, source) if entity.key},
            whole=_whole(source.topics),
            snapshots="" if source.topics is not None else snapshot_id(source.connector, _properties(config, source)),
        )
    )


def _whole(topics: TopicsConfig | None) -> Whole | None:
    """Returns the settings for publishing whole transactions; None if no topic of transactions is configured."""
    if topics is None or topics.transactions is None:
        return None
    messages = f"{topics.transactions.rpartition('.')[0]}.message"
    return Whole(topic=topics.transactions, messages=messages, bytes_max=topics.held_mib << 20)


def candidate(topics: TopicsConfig) -> DebeziumCandidate:
    """Returns an object through which `changelog init` reads the tables whose events are in `topics`.

    Does not connect to the brokers yet.
    """
    with kafka_needed():
        from changelog.connectors.wiring import debezium_topics  # noqa: PLC0415
    return debezium_topics.candidate(topics)


def _origin(config: Config, source: DebeziumConfig) -> ConfiguredInput:
    if source.topics is not None:
        with kafka_needed():
            from changelog.connectors.wiring import debezium_topics  # noqa: PLC0415 - late: it needs optional packages
        return debezium_topics.origin(config.name, source.topics)
    properties = _properties(config, source)
    return EngineOrigin(
        settings=EngineSettings(properties=properties, jars=source.jars, heap_mib=source.heap_mib),
        environment=os.environ,
        publication=publication_of(source.connector, properties, shared=PUBLICATION in source.properties),
    )


def _properties(config: Config, source: DebeziumConfig) -> Mapping[str, str]:
    """Returns the properties for a Debezium that the service itself runs: our defaults, unless the configuration sets
    others.
    """
    connector = CONNECTORS.get(jar_name(source.connector))
    java_class = None if connector is None else connector.java_class
    tables = [table for table, _ in _tables(config, source)]
    return {**defaults(source.connector, java_class, config.name, tables), **source.properties}


def translation_settings(config: Config, source: DebeziumConfig) -> TranslationSettings:
    """Returns the settings for translating Debezium's events. If a registry is configured, schemas come from there."""
    settings = TranslationSettings(
        types={table: entity.types for table, entity in _tables(config, source) if entity.types},
        unwrapped=source.unwrapped,
        added_prefix=source.added_prefix,
        tombstones_delete=source.tombstones_delete,
        connector=source.connector,
        placeholder=source.placeholder,
        binary=source.binary_handling,
    )
    topics = source.topics
    if topics is None or topics.registry is None:
        return settings
    with kafka_needed():
        from changelog.connectors.wiring import debezium_topics  # noqa: PLC0415
    schema_of = debezium_topics.schemas(topics.registry, topics.registry_client)
    return replace(settings, schema_of=schema_of, id_bytes=topics.registry_id_bytes)


def kafka_needed() -> AbstractContextManager[None]:
    """Returns a context manager. It raises ChangelogError (USAGE) if a package of the extra `kafka` is missing."""
    return extra_needed("kafka", "[source.topics] needs {}, which is not installed")


def _columns(entity: EntityConfig) -> Iterator[str]:
    """Yields the columns that the configuration of an entity names, each once."""
    selected = (name for name in entity.columns if name != "*")
    key_columns = (*(entity.key or ()), *(entity.partition_by or ()))
    yield from dict.fromkeys((*key_columns, *selected, *entity.exclude_columns, *entity.mask, *entity.types))


def _tables(config: Config, source: DebeziumConfig) -> Iterator[tuple[TableName, EntityConfig]]:
    """Yields the tables that the configuration names, with their entities. Skips texts that are not names of tables."""
    for entity in config.entities.values():
        if entity.table is not None:
            with suppress(ValueError):  # `wiring.entities.resolve` reports it
                yield parse_table(entity.table, source.home), entity
