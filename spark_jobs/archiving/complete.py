"""Finds the position up to which an archive of Kafka's topics is complete.

A run reads each partition up to the partition's end, and may write several manifests until it has read all. So the
archive can have new rows of one partition while older rows of another partition are still missing. A view needs a
position up to which no row is missing. This position is found in two steps:

1. Before a run reads, it notes the position of the changelog's checkpoint, and then the end of each partition. Every
   row up to this position lies before these ends.
2. Once the archive has all messages of an entity up to these ends, it has every row of the entity up to the position.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sinks.kafka.admin.names import entity_of
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.reading.read_generations import read_all_generations
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.reading.kafka_offsets import Offsets
from changelog.spark_jobs.reading.read import reached
from changelog.spark_jobs.storage.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The position up to which a run tries to make the archive complete.

    `ends` has an offset for each partition of each entity. All rows of the partition up to `position` are before this
    offset.
    """

    position: str
    ends: Mapping[str, Mapping[Part, int]]

    def complete(self, offsets: Offsets) -> dict[str, str]:
        """Returns the goal's position for each entity that has been archived up to the ends of all its partitions.
        `offsets` says how far each partition has been archived.
        """
        return {
            entity: self.position
            for entity, ends in self.ends.items()
            if all(offsets.get(topic, {}).get(str(number), 0) >= end for (topic, number), end in ends.items())
        }

    def is_reached(self, offsets: Offsets) -> bool:
        """Returns whether the archive is complete up to the goal's position for all entities of the goal."""
        return self.complete(offsets).keys() == self.ends.keys()


def goal_of(log: KafkaLog, prefix: str, entities: Collection[str]) -> Goal | None:
    """Returns the goal of a run that begins to read these entities after this call; None if there is no checkpoint.

    The rows up to the checkpoint must be readable in Kafka. Raises ChangelogError (CONNECTION) if they are not, even
    after a minute of trying.
    """
    position = reached(log.checkpoint())
    if position is None:
        return None
    part_ends: Mapping[Part, int] = log.complete_ends(entities)
    ends: dict[str, dict[Part, int]] = defaultdict(dict)
    for part, end in part_ends.items():
        ends[entity_of(prefix, part[0])][part] = end
    return Goal(position=str(position), ends=dict(ends))


def refuse_deleted(client: Client, prefix: str, manifest: Manifest, skip: Collection[str]) -> None:
    """Raises ChangelogError (GAP) if a topic was deleted before the archive was complete up to the topic's end.

    The topic of a repartitioned entity may be deleted once the archive is complete up to the position at which the
    topic ended. The entities in `skip`, and topics from which nothing was archived, are not checked.
    """
    deleted = manifest.offsets.keys() - client.admin().topics().keys()
    generations = read_all_generations(client, prefix) if deleted else {}
    for entity in sorted(generations.keys() - {*skip}):
        for entry in generations[entity][:-1]:
            if entry["topic"] in deleted and manifest.complete.get(entity, "") < entry.get("last", ""):
                raise ChangelogError(
                    Kind.GAP,
                    f"topic {entry['topic']} was deleted before the archive was complete up to its end",
                    hint="--accept-lost goes on without the messages that are missing",
                )
