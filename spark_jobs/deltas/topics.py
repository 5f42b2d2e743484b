"""Derives deltas from the messages in the changelog's topics, and writes them to the topics `<prefix>.<entity>.delta`.

If an entity is repartitioned, its changes end in one topic and go on in another, and so do its deltas. The last message
in each partition of the old topic is then a *mark*. The service sends the marks to the old topic of changes, and this
job sends them to the old topic of deltas, after the micro-batch that reads the old topic of changes to its end.

A micro-batch is written to the topics before Spark's checkpoint records it. If a run is killed between these two steps,
the next run writes the micro-batch again. So each delta is delivered at least once, in order; if it is repeated, it has
the same position. The job stops if Kafka has lost messages: in addition to Spark's own check, the job checks the
offsets in Spark's checkpoint, when it starts and then every minute.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from changelog.connectors.config import Config, KafkaConfig
from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part, ends
from changelog.connectors.kafka.registry import Registry
from changelog.connectors.sinks.kafka.admin import topics as kafka_topics
from changelog.connectors.sinks.kafka.admin.generations import Generation
from changelog.connectors.sinks.kafka.admin.names import delta_subject, delta_topic, entity_of, topic
from changelog.connectors.sinks.kafka.admin.send_messages import send_messages
from changelog.connectors.sinks.kafka.admin.topics import Topic, TopicState
from changelog.connectors.sinks.kafka.encoding.messages import key_of
from changelog.connectors.sinks.kafka.reading.read_generations import read_all_generations
from changelog.connectors.sinks.kafka.reading.spans import messages_in
from changelog.connectors.sinks.kafka.repartition import marks
from changelog.envelope.entity import END_KEY, OF_CHANGELOG
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import delta_schema
from changelog.spark_jobs.deltas.derive import Topics, Values, avro_values, json_values, messages_of
from changelog.spark_jobs.reading import kafka_offsets
from changelog.spark_jobs.reading.read import stream_changelog
from changelog.spark_jobs.reading.read_kafka import kafka_options
from changelog.spark_jobs.reading.where import Kafka, where_of
from changelog.spark_jobs.storage.store import FolderStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECK_EVERY_S: Final = 60.0
"""How often, in seconds, a continuous job checks whether Kafka may have removed messages that the job has not read."""

FAIL_POINTS: Final = ("deltas:sent",)
"""The point between two steps at which tests make a run crash: deltas are sent, but the checkpoint lacks them."""

_POLL_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTopics:
    """Finds the topics of the changelog that the job reads, and the topics to which it writes their deltas.

    If `entities` is None, all entities are read. With `lost`, the job continues even if Kafka has lost messages. With
    `create`, it creates missing topics of deltas.
    """

    client: Client
    prefix: str
    entities: Collection[str] | None
    create: bool
    replication_factor: int | None
    lost: bool

    def changelog(self) -> dict[str, TopicState]:
        """Returns the topics in which the changelog has the changes of the entities. If an entity was repartitioned, it
        has several topics; they are in the order in which it had them.

        Raises ChangelogError if an entity has no topic.
        """
        admin = self.client.admin()
        parts = kafka_offsets.entities(admin, self.prefix, self.entities)
        names = [name for entity in parts if entity not in OF_CHANGELOG for name in dict(parts[entity])]
        states = kafka_topics.read(admin, [Topic(name=name, partitions=0, settings={}) for name in names])
        return {name: states[name] for name in names}

    def ensure(self) -> dict[str, TopicState]:
        """Returns the topic of deltas for each topic of the changelog. With `create`, missing topics are created.

        A topic of deltas has as many partitions as its topic in the changelog, and is never compacted.

        Raises ChangelogError (PRECONDITION) if an existing topic of deltas has a different number of partitions.
        """
        sources = self.changelog()
        targets = kafka_topics.delta_topics_of(sources)
        states = kafka_topics.ensure(
            self.client, targets, create=self.create, replication_factor=self.replication_factor
        )
        return {name: states[delta_topic(name)] for name in sources}

    def refuse_lost(self, committed: kafka_offsets.Offsets) -> None:
        """Raises ChangelogError (GAP) if messages after these offsets are or may be gone, unless `lost` is set."""
        if not committed:
            return
        admin = self.client.admin()
        skip = set() if self.entities is None else set(kafka_offsets.entities(admin, self.prefix)) - set(self.entities)
        kafka_offsets.unread(self.client, self.prefix, committed, skip={*skip, *OF_CHANGELOG}, lost=self.lost)

    def misses_ended(self, committed: kafka_offsets.Offsets) -> bool:
        """Returns True if topics in `committed` were deleted, and all of these had ended before.

        The topic of an entity ends when the entity is repartitioned. Then it may be deleted. But if the job has not
        read all messages of the topic before, the rest is lost. The topic of deltas shows this: the job sends marks to
        it only after it has read the whole topic of changes. So this method raises ChangelogError (GAP) if an ended
        topic was deleted and its topic of deltas lacks the marks, unless `lost` is set.
        """
        existing = self.client.admin().topics()
        deleted = committed.keys() - existing.keys()
        generations = read_all_generations(self.client, self.prefix).values() if deleted else ()
        ended = deleted & {entry["topic"] for entries in generations for entry in entries[:-1]}
        for name in sorted(ended):
            target = delta_topic(name)
            if not self.lost and target in existing and not self._has_marks(target, existing[target].partitions):
                raise ChangelogError(
                    Kind.GAP,
                    f"topic {name} was deleted before its last messages were read",
                    hint="--accept-lost goes on without them",
                )
        return bool(deleted) and deleted == ended

    def _has_marks(self, name: str, partitions: Iterable[int]) -> bool:
        """Returns whether the last message of each of these partitions is a mark."""
        parts = [(name, number) for number in partitions]
        last = {part: range(end - 1, end) for part, end in ends(self.client.admin(), parts).items()}
        if any(span.start < 0 for span in last.values()):
            return False
        with closing(self.client.reader()) as consumer:
            return all(
                key_of(message) == END_KEY.encode() for group in messages_in(consumer, last) for message in group
            )


def committed(checkpoint: FolderStore) -> kafka_offsets.Offsets:
    """Reads from Spark's checkpoint at which offsets the next micro-batch begins. The result is empty for a new
    checkpoint.
    """
    batch_numbers = [
        int(name) for file in checkpoint.files("commits") if (name := file.path.rpartition("/")[2]).isdecimal()
    ]
    return _ends_of(checkpoint, max(batch_numbers)) if batch_numbers else {}


def _ends_of(checkpoint: FolderStore, batch_number: int) -> kafka_offsets.Offsets:
    """Reads from Spark's checkpoint at which offsets a micro-batch ends.

    Spark defines the format: the file `commits/<n>` exists if the micro-batch n is done. The file `offsets/<n>` exists
    once it has begun; it has a line with a version, a line of JSON about the micro-batch, and a line for each source.
    """
    path = f"offsets/{batch_number}"
    try:
        *_, source_line = checkpoint.read(path).decode().splitlines()
        offsets: kafka_offsets.Offsets = json.loads(source_line)
    except (ValueError, LookupError) as error:
        hint = "restore the checkpoint from a copy, or start again with another"
        raise ChangelogError(Kind.MALFORMED, f"{checkpoint.root}/{path} is damaged", hint=hint) from error
    return offsets


def stream(
    spark: "SparkSession",
    config: Config,
    topics: DeltaTopics,
    *,
    checkpoint: FolderStore,
    offsets_max: int,
    every_s: float | None,
    stopping: Callable[[], bool],
    reach: Reach = nowhere,
) -> Mapping[str, int]:
    """Derives deltas from the new changes, and then ends. With `every_s`, it continues until `stopping` returns True,
    with a micro-batch every `every_s` seconds.

    A micro-batch has at most about `offsets_max` offsets. Returns the number of deltas by kind.
    """
    where = where_of(config)
    assert isinstance(where, Kafka)
    topics.ensure()  # comes first: if it fails, nothing has been read
    batches = _Batches(spark, config, topics, where, checkpoint, reach)
    # Spark treats a deleted topic as lost data. If all deleted topics had ended, this check of Spark is switched off.
    accepts_lost = topics.lost or topics.misses_ended(committed(checkpoint))
    options = {"maxOffsetsPerTrigger": str(offsets_max), "failOnDataLoss": str(not accepts_lost).lower()}
    changes = stream_changelog(spark, where, entities=topics.entities, options=options)
    writer = changes.writeStream.foreachBatch(batches.write).option("checkpointLocation", checkpoint.root)
    trigger = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s * 1000:.0f} milliseconds"}
    query = writer.trigger(**trigger).start()
    checked_s = time.monotonic()
    try:
        while not query.awaitTermination(_POLL_S) and not stopping():
            if time.monotonic() - checked_s > CHECK_EVERY_S:
                topics.refuse_lost(committed(checkpoint))
                checked_s = time.monotonic()
    except Exception:
        if batches.failure is not None:
            raise batches.failure from None
        raise
    finally:
        query.stop()
    return batches.counts


class _Batches:
    """Writes micro-batches. If one fails, its error is also stored in `failure`, because Spark raises a Java error in
    its place.
    """

    def __init__(
        self,
        spark: "SparkSession",
        config: Config,
        topics: DeltaTopics,
        where: Kafka,
        checkpoint: FolderStore,
        reach: Reach,
    ) -> None:
        assert isinstance(config.sink, KafkaConfig)
        self._sink, self._topics, self._where = config.sink, topics, where
        self._checkpoint, self._reach = checkpoint, reach
        self._counts = spark.sparkContext.accumulator({}, _kinds())
        self.failure: ChangelogError | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of deltas sent, by kind."""
        counts: Mapping[str, int] = self._counts.value
        return counts

    def write(self, changes: "DataFrame", batch_number: int) -> None:
        """First makes sure that new entities have topics of deltas. Then sends the deltas of one micro-batch, and after
        them the marks to each old topic of deltas that is complete now.
        """
        prefix = self._topics.prefix
        try:
            topics = self._topics.ensure()
            generations = read_all_generations(self._topics.client, prefix)
            entities = {entity_of(prefix, name) for name in topics}
            present = {
                entity: delta_topic(topic(prefix, entity, len(generations.get(entity, ())) or 1)) for entity in entities
            }
            earlier = {
                entity: [(entry.get("last", ""), delta_topic(entry["topic"])) for entry in generations[entity][:-1]]
                for entity in generations.keys() & present.keys()
            }
            subjects = {entity: delta_subject(prefix, entity) for entity in present}
            targets = Topics(present=present, earlier=earlier)
            messages = messages_of(changes, targets, _values(self._sink, subjects), self._counts.add)
            messages.write.format("kafka").options(**_writing(self._where, topics)).save()
            for entity in earlier:
                self._send_marks([Generation(**entry) for entry in generations[entity]], batch_number)
        except ChangelogError as error:
            self.failure = error
            raise
        self._reach("deltas:sent")

    def _send_marks(self, generations: Sequence[Generation], batch_number: int) -> None:
        """Sends marks to those old topics of deltas that get their last deltas with this micro-batch."""
        client = self._topics.client
        existing = client.admin().topics()
        for old, new in pairwise(generations):
            if old.topic not in existing:
                continue
            numbers = existing[old.topic].partitions
            part_ends = ends(client.admin(), [(old.topic, number) for number in numbers])
            if not self._has_read(part_ends, batch_number) or self._has_read(part_ends, batch_number - 1):
                continue
            target = replace(new, topic=delta_topic(new.topic))
            name = delta_topic(old.topic)
            send_messages(client, marks(name, numbers, target, old.last), f"writing to {name}")

    def _has_read(self, part_ends: Mapping[Part, int], batch_number: int) -> bool:
        """Returns whether the job will have read the partitions up to these ends when this micro-batch is done."""
        offsets = _ends_of(self._checkpoint, batch_number) if batch_number >= 0 else {}
        return all(offsets.get(name, {}).get(str(number), 0) >= end for (name, number), end in part_ends.items())


def _values(sink: KafkaConfig, subjects: Mapping[str, str]) -> Values:
    """Returns the configured codec. `subjects` says which subject the registry has for the deltas of each entity."""
    if sink.codec == "json" or sink.registry is None:
        return json_values
    registry = Registry(sink.registry, sink.registry_client, auto_register=sink.auto_register)
    try:
        return avro_values({name: registry.id_of(subject, delta_schema()) for name, subject in subjects.items()})
    except ChangelogError as error:
        if error.kind is not Kind.PRECONDITION:
            raise
        hint = "run `changelog schemas register --yes`, or set [sink] auto_register = true"
        raise ChangelogError(error.kind, error.message, hint=hint) from error
    finally:
        registry.close()


def _writing(where: Kafka, topics: Mapping[str, TopicState]) -> dict[str, str]:
    largest = max((state.message_bytes for state in topics.values()), default=kafka_topics.MESSAGE_BYTES_DEFAULT)
    return kafka_options(where) | {
        "kafka.max.request.size": str(largest),
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",  # retries keep the order
        "kafka.compression.type": "lz4",
    }


def _kinds() -> Any:
    from pyspark.accumulators import AccumulatorParam  # noqa: PLC0415

    class Kinds(AccumulatorParam[dict[str, int]]):
        def zero(self, value: dict[str, int]) -> dict[str, int]:  # noqa: ARG002
            return {}

        def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802
            return {name: value1.get(name, 0) + value2.get(name, 0) for name in {**value1, **value2}}

    return Kinds()
