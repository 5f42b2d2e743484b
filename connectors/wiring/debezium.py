"""Opens the events of Debezium. `wiring.sources` imports this module only if needed: it needs the extra `kafka`."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from changelog.connectors.config import Config, DebeziumConfig, EntityConfig, TopicsConfig
from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sources import Database, TableName
from changelog.connectors.sources.debezium.database import DebeziumDatabase, Settings
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.inputs.topics.origin import TopicsOrigin
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings
from changelog.connectors.sources.debezium.translation import translator
from changelog.connectors.wiring.entities import parse_table

SECTION = "[source.topics]"


def database(config: Config, source: DebeziumConfig) -> Database:
    """Returns the database whose events `source`, the section of `config`, names. See `wiring.sources.database`."""
    translation = translation_settings(config, source)
    return DebeziumDatabase(
        Settings(
            name=config.name,
            connector=source.connector,
            origin=TopicsOrigin(topics_settings(config.name, source.topics)),
            translator=lambda: translator(translation),
            hmac_key=config.hmac_key,
            codec=config.codec,
            declared={table: tuple(_columns(entity)) for table, entity in _tables(config, source) if entity.key},
        )
    )


def topics_settings(name: str, topics: TopicsConfig) -> TopicsSettings:
    """Returns the settings of the topics for the changelog `name`."""
    return TopicsSettings(
        client=Client(bootstrap_servers=topics.bootstrap_servers, options=topics.client, section=SECTION),
        include=topics.include,
        exclude=topics.exclude,
        group=topics.group or name,
    )


def translation_settings(config: Config, source: DebeziumConfig) -> TranslationSettings:
    """Returns the settings of the translation. It asks the registry for schemas, if one is configured."""
    settings = TranslationSettings(
        types={table: entity.types for table, entity in _tables(config, source) if entity.types},
        unwrapped=source.unwrapped,
        added_prefix=source.added_prefix,
        tombstones_delete=source.tombstones_delete,
        placeholder=source.placeholder,
        id_bytes=source.topics.registry_id_bytes,
    )
    if source.topics.registry is None:
        return settings
    registry = Registry(source.topics.registry, source.topics.registry_client, section=SECTION)
    return replace(settings, schema_of=registry.schema)


def _columns(entity: EntityConfig) -> Iterator[str]:
    """Yields the columns that the configuration of an entity names, each once."""
    selected = (name for name in entity.columns if name != "*")
    places = (*(entity.key or ()), *(entity.partition_by or ()))
    yield from dict.fromkeys((*places, *selected, *entity.exclude_columns, *entity.mask, *entity.types))


def _tables(config: Config, source: DebeziumConfig) -> Iterator[tuple[TableName, EntityConfig]]:
    """Yields the tables that the configuration names, with their entities; no texts that are no names of tables."""
    for entity in config.entities.values():
        if entity.table is not None:
            with suppress(ValueError):  # `wiring.entities.resolve` reports it
                yield parse_table(entity.table, source.home), entity
