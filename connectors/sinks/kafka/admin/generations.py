"""Says which topics the changelog of an entity has had: one for each of its generations.

`changelog repartition` ends an entity's topic and begins the next generation in a new topic. The checkpoint lists the
generations of each repartitioned entity, oldest first, in the member `generations` of its `sink`. An entity that was
never repartitioned is not listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changelog.connectors.sinks.kafka.admin.names import topic as topic_name
from changelog.envelope.checkpoint import GENERATIONS, Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One topic of an entity.

    `last` is the position of the changelog's last row when the generation ended. The entity's rows up to this position
    are in this topic or in older topics, and all later rows are in newer topics. `last` is empty for the present
    generation, and for a generation that ended before the changelog had rows.
    """

    topic: str
    partitions: int
    last: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the form that a checkpoint stores."""
        return {"topic": self.topic, "partitions": self.partitions, **({"last": self.last} if self.last else {})}


GenerationEntries = Mapping[str, Sequence[Mapping[str, Any]]]
"""The generations of repartitioned entities, as a checkpoint stores them."""


def generations_of(checkpoint: Checkpoint | None, prefix: str, entity: str) -> list[Generation]:
    """Returns the generations of an entity, oldest first; the last one is the present one. There is always at least
    one: an entity that the checkpoint does not list has only its first topic.
    """
    entries = [] if checkpoint is None else checkpoint.sink.get(GENERATIONS, {}).get(entity, [])
    if entries:
        return [Generation(**members) for members in entries]
    partitions = {} if checkpoint is None else checkpoint.settings.get(entity, {})
    return [Generation(topic=topic_name(prefix, entity), partitions=partitions.get("partitions", 1))]


def present_numbers(entries: GenerationEntries) -> dict[str, int]:
    """Returns the number of the present generation of each repartitioned entity."""
    return {entity: len(generations) for entity, generations in entries.items()}


def has_all_rows(checkpoint: Checkpoint, entity: str) -> bool:
    """Returns whether the entity's table has been read completely since its present topic was begun."""
    progress = checkpoint.windows.get(entity, {})
    # `again` is there only while a table that was complete is read once more
    return bool(progress.get("complete")) or "again" in progress
