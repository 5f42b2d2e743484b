"""Opens topics with events of Debezium.

This module needs the extra `kafka`, so it is imported only when events are read from topics.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from changelog.connectors.config import TopicsConfig
from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sources.debezium.candidate import DebeziumCandidate
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.guesses import Guesses
from changelog.connectors.sources.debezium.inputs.topics.origin import TopicsOrigin
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings

SECTION = "[source.topics]"


def origin(name: str, topics: TopicsConfig) -> TopicsOrigin:
    """Returns the reader of these topics. Its consumer group is `name`, unless `topics` names another."""
    return TopicsOrigin(
        TopicsSettings(
            client=Client(bootstrap_servers=topics.bootstrap_servers, options=topics.client, section=SECTION),
            include=topics.include,
            exclude=topics.exclude,
            group=topics.group or name,
            transactions=topics.transactions,
        )
    )


def candidate(topics: TopicsConfig) -> DebeziumCandidate:
    """Returns an object through which `changelog init` reads the tables whose events are in these topics."""
    settings = TranslationSettings()
    if topics.registry is not None:
        settings = replace(settings, schema_of=schemas(topics.registry, topics.registry_client))
    where = f"topics that match {' '.join(topics.include)}"
    return DebeziumCandidate(origin("changelog-init", topics), Guesses(settings), where)


def schemas(registry: str, options: Mapping[str, Any]) -> Callable[[int], Any]:
    """Returns a function that takes an id, and returns the schema that has this id in the registry."""
    return Registry(registry, options, section=SECTION).schema
