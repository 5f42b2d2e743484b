"""Ends the topic of an entity, and begins a new topic with another number of partitions.

If the same topic got another number of partitions, later changes of a key could be in another partition than its
earlier changes, and a reader could not know their order. So the entity continues in a new topic, its next *generation*.
One transaction ends the old topic and begins the new one:

- Each partition of the old topic gets a *mark* as its last message. A mark has no value, so readers that do not know
  marks take it for a tombstone.
- The checkpoint gets the new number of partitions and the list of the entity's topics, and says that the entity's table
  has never been read.

The service continues from this checkpoint. So it publishes every later row to the new topic. It also publishes all rows
of the table there, as in a first snapshot. A crash before the commit leaves at most an empty topic, which the next
attempt uses.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.kafka.offsets import ends
from changelog.connectors.sinks.kafka.admin import topics
from changelog.connectors.sinks.kafka.admin.generations import Generation, generations_of, has_all_rows
from changelog.connectors.sinks.kafka.admin.names import topic as topic_name
from changelog.connectors.sinks.kafka.admin.send_messages import ProduceCall
from changelog.connectors.sinks.kafka.admin.topics import OWN, Topic, TopicSettings
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import GENERATIONS, Checkpoint
from changelog.envelope.entity import END_KEY
from changelog.envelope.errors import ChangelogError, Kind

FAIL_POINTS = ("repartition:created", "repartition:marked")
"""The places between two steps at which tests make the process crash. Those inside the commit are in `sink.py`."""


def refuse(settings: KafkaSettings, checkpoint: Checkpoint, entity: str) -> None:
    """Raises ChangelogError if the entity cannot be repartitioned now. The entity must be in `checkpoint`."""
    if settings.envelope != OWN:
        raise ChangelogError(
            Kind.USAGE,
            f'consumers of the envelope "{settings.envelope}" do not know where a topic ends',
            hint="publish to new topics under another [sink] prefix",
        )
    if checkpoint.partial:
        raise ChangelogError(
            Kind.PRECONDITION,
            "a transaction is half published",
            hint="start the service, let it publish the rest of the transaction, and stop it",
        )
    if not has_all_rows(checkpoint, entity):
        name = generations_of(checkpoint, settings.prefix, entity)[-1].topic
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the table of the entity {entity} is still being read into topic {name}",
            hint="start the service, wait until `changelog status` shows that the table is read, and stop the service",
        )


def repartition(
    sink: KafkaSink,
    settings: KafkaSettings,
    checkpoint: Checkpoint,
    entity: str,
    partitions: int,
    *,
    reach: Reach = nowhere,
) -> Generation:
    """Begins a new topic for the entity, with this number of partitions, and returns the new topic.

    `checkpoint` is what `sink.recover` returned, and must have the entity. If the entity already has this number of
    partitions, nothing is changed, and its present topic is returned. Raises ChangelogError: the errors of `refuse`,
    PRECONDITION if the new topic cannot be used, and errors of Kafka.
    """
    *earlier, present = generations_of(checkpoint, settings.prefix, entity)
    existing = settings.client.admin().topics().get(present.topic)
    if existing is None:
        raise topics.lost(present.topic)
    if present.partitions == partitions == len(existing.partitions):
        return present
    refuse(settings, checkpoint, entity)
    new = Generation(topic=topic_name(settings.prefix, entity, len(earlier) + 2), partitions=partitions)
    _create(settings, entity, new)
    reach("repartition:created")
    last = "" if checkpoint.position is None else str(checkpoint.position)
    old = replace(present, last=last)
    sink.send(marks(old.topic, existing.partitions, new, last))
    reach("repartition:marked")
    generations = [*earlier, old, new]
    entries = {**checkpoint.sink.get(GENERATIONS, {}), entity: [generation.to_json() for generation in generations]}
    shape = {**checkpoint.settings[entity], "partitions": partitions}
    sink.commit(
        replace(
            checkpoint,
            settings={**checkpoint.settings, entity: shape},
            windows={**checkpoint.windows, entity: {"complete": False}},
            sink={**checkpoint.sink, GENERATIONS: entries},
        )
    )
    return new


def _create(settings: KafkaSettings, entity: str, new: Generation) -> None:
    """Creates the new topic. If an earlier attempt already created this topic, the topic must be empty."""
    topic = Topic(
        name=new.topic,
        partitions=new.partitions,
        settings=settings.entities.get(entity, TopicSettings()).to_kafka(),
    )
    admin = settings.client.admin()
    existing = admin.topics().get(new.topic)
    if existing is not None:
        parts = [(new.topic, number) for number in existing.partitions]
        is_used = any(ends(admin, parts).values())
        if is_used or len(parts) != new.partitions:
            what = "holds messages" if is_used else f"has {len(parts)} partitions, not {new.partitions}"
            raise ChangelogError(
                Kind.PRECONDITION,
                f"topic {new.topic} exists and {what}",
                hint="find out who made this topic; if nobody needs it, delete it, and run this command again",
            )
    topics.ensure(
        settings.client, [topic], create=settings.create_topics, replication_factor=settings.replication_factor
    )


def marks(topic: str, partitions: Iterable[int], new: Generation, last: str) -> Iterator[ProduceCall]:
    """Yields the marks that end these partitions of a topic.

    `new` is the next generation. `last` is the position of the changelog's last row before the next generation.
    """
    headers = [
        ("nextTopic", new.topic.encode()),
        ("nextPartitions", str(new.partitions).encode()),
        ("position", last.encode()),
    ]
    for number in sorted(partitions):
        yield topic, None, END_KEY.encode(), number, None, None, int(time.time() * 1000), headers
