"""Reads the changes between two checkpoints from Kafka. Such a checkpoint has an offset for each partition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part, begins
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.maintaining.following.change_ranges import WINDOW_CHANGES
from changelog.spark_jobs.maintaining.progress import REBUILD, Checkpoint
from changelog.spark_jobs.reading import kafka_offsets
from changelog.spark_jobs.reading.decode_kafka import DECODED
from changelog.spark_jobs.reading.kafka_offsets import OffsetSpan, Spans
from changelog.spark_jobs.reading.read_files import nullable
from changelog.spark_jobs.reading.read_kafka import decoded, kafka_options
from changelog.spark_jobs.reading.where import Kafka

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRanges:
    """Implements `ChangeRanges`. A checkpoint has the next offset of each partition, by topic and partition."""

    where: Kafka
    entities: Sequence[str]

    def read(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, keys: "DataFrame | None" = None
    ) -> "DataFrame":
        """See `ChangeRanges`. Decodes only messages with one of the `keys`, because decoding takes most of the time."""
        unread(self._client(), self.where, self.entities, after)
        spans = {part: span for part, span in self._spans(after, until).items() if span.first < span.end}
        if not spans:
            return spark.createDataFrame([], nullable(DECODED))
        options = {
            **kafka_options(self.where),
            **kafka_offsets.begin_options(spans),
            "endingOffsets": kafka_offsets.as_json(spans, "end"),
        }
        messages = spark.read.format("kafka").options(**options).load()
        if keys is not None:
            messages = messages.join(keys.selectExpr("encode(key, 'UTF-8') AS key"), "key", "left_semi")
        return decoded(messages, self.where)

    def window_end(
        self, spark: "SparkSession", after: Checkpoint, until: Checkpoint, is_waiting: "Expression"
    ) -> Checkpoint:
        """Returns the offsets at which the window ends. Ignores `is_waiting`: to evaluate it, all messages would have
        to be decoded.
        """
        del spark, is_waiting
        spans = self._spans(after, until)
        window = next(iter(kafka_offsets.slices(spans, WINDOW_CHANGES)), {})
        ends: dict[str, dict[str, int]] = {topic: dict(offsets) for topic, offsets in until.items()}
        for (topic, partition), span in window.items():
            ends[topic][str(partition)] = span.end
        return ends

    def has_reached(self, checkpoint: Checkpoint, goal: Checkpoint) -> bool:
        """Compares the offsets of those partitions that are in `goal`."""
        return all(
            checkpoint.get(topic, {}).get(partition, 0) >= offset
            for topic, offsets in goal.items()
            for partition, offset in offsets.items()
        )

    def _client(self) -> Client:
        return Client(bootstrap_servers=self.where.bootstrap_servers, options=self.where.options)

    def _spans(self, after: Checkpoint, until: Checkpoint) -> Spans:
        parts = {(topic, int(number)): end for topic, offsets in until.items() for number, end in offsets.items()}
        next_offsets = {(topic, number): after.get(topic, {}).get(str(number)) for topic, number in parts}
        first = begins(self._client().admin(), [part for part, next_ in next_offsets.items() if next_ is None])
        first |= {part: next_ for part, next_ in next_offsets.items() if next_ is not None}
        return {
            part: OffsetSpan(first=min(first[part], end), end=end, after=first[part]) for part, end in parts.items()
        }


def unread(client: Client, where: Kafka, entities: Sequence[str], after: Checkpoint) -> dict[Part, OffsetSpan]:
    """Returns which offsets of these entities' topics are after a checkpoint.

    Raises ChangelogError (GAP) if some of their messages may be gone.
    """
    others = kafka_offsets.entities(client.admin(), where.prefix).keys() - {*entities, SCHEMAS}
    try:
        return kafka_offsets.unread(client, where.prefix, after, skip=others)
    except ChangelogError as error:
        if error.kind is not Kind.GAP:
            raise
        raise ChangelogError(Kind.GAP, error.message, hint=REBUILD) from error
