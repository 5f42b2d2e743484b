"""Reads from the broker which topics the entities of a changelog have had."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sinks.kafka.admin import topics
from changelog.connectors.sinks.kafka.admin.generations import Generation, GenerationEntries
from changelog.connectors.sinks.kafka.admin.names import generation_of, positions_topic
from changelog.connectors.sinks.kafka.admin.names import topic as topic_name
from changelog.connectors.sinks.kafka.reading.positions import read_all, read_stored
from changelog.envelope.checkpoint import GENERATIONS
from changelog.envelope.errors import ChangelogError, Kind


def read_generations(client: Client, prefix: str, name: str, configured: Mapping[str, int]) -> GenerationEntries:
    """Returns the generations in the visible checkpoint of the source `name`.

    `configured` has the configured number of partitions of each entity. If every entity has only its first topic, with
    this number of partitions, returns an empty mapping without reading the checkpoint. If there is no checkpoint, or if
    it is lost (GAP), the generations of the configured entities are taken from the names of the topics that exist.
    """
    admin = client.admin()
    parts = topics.entities(admin, prefix)
    later_entities = _later_entities(parts)
    other_entities = {entity for entity, count in configured.items() if len(parts.get(entity, ())) != count}
    if not later_entities and not other_entities:
        return {}
    try:
        entry = read_stored(client, prefix, name) if positions_topic(prefix) in admin.topics() else None
    except ChangelogError as error:
        if error.kind is not Kind.GAP:
            raise
        entry = None
    if entry is not None:
        generations: GenerationEntries = entry[0].sink.get(GENERATIONS, {})
        return generations
    return {
        entity: [generation.to_json() for generation in _existing(prefix, entity, parts[entity])]
        for entity in later_entities & configured.keys()
    }


def read_all_generations(client: Client, prefix: str) -> GenerationEntries:
    """Returns the generations in the visible checkpoints of all sources that publish under `prefix`.

    The checkpoints are read only if there is a topic of a later generation.
    """
    admin = client.admin()
    if not _later_entities(topics.entities(admin, prefix)) or positions_topic(prefix) not in admin.topics():
        return {}
    generations: dict[str, Sequence[Mapping[str, Any]]] = {}
    for checkpoint in read_all(client, prefix):
        generations |= checkpoint.sink.get(GENERATIONS, {})
    return generations


def _later_entities(parts: Mapping[str, Sequence[Part]]) -> set[str]:
    """Returns the entities that have a topic of a later generation. `parts` has their partitions, oldest first."""
    return {entity for entity, entity_parts in parts.items() if generation_of(entity_parts[-1][0]) > 1}


def _existing(prefix: str, entity: str, parts: Sequence[Part]) -> Iterator[Generation]:
    """Yields the generations of an entity. `parts` has the partitions of its topics; a missing topic has none."""
    counts = Counter(name for name, _ in parts)
    for number in range(1, generation_of(parts[-1][0]) + 1):
        name = topic_name(prefix, entity, number)
        yield Generation(topic=name, partitions=counts[name])
