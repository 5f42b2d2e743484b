"""Follows the topics of a view's entities on Kafka, by structured streaming.

The target stores the next offsets together with the rows, and each query begins at these offsets. So Spark's checkpoint
of a query is not needed after the query has ended, and is deleted then. If the target is restored from a copy, the next
query begins where the copy ends.
"""

import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from changelog.connectors.kafka.client import Client
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.following.throttle import Throttle
from changelog.spark_jobs.maintaining.following.topic_ranges import unread
from changelog.spark_jobs.maintaining.progress import Checkpoint
from changelog.spark_jobs.reading import kafka_offsets
from changelog.spark_jobs.reading.kafka_offsets import ends_of_batch
from changelog.spark_jobs.reading.read_kafka import decoded, kafka_options
from changelog.spark_jobs.reading.where import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECK_EVERY_S: Final = 60.0
"""How often, in seconds, a run checks whether Kafka may have removed messages that the run has not read, and whether an
entity has a new topic.
"""

_POLL_S: Final = 1


def follow(
    spark: "SparkSession",
    where: Kafka,
    view: MaintainedView,
    *,
    throttle: Throttle | None,
    offsets_max: int,
    every_s: float | None,
    stopping: threading.Event,
) -> None:
    """Applies the new changes, and then ends. With `every_s`, begins a batch every `every_s` seconds until `stopping`
    is set.

    Without `every_s`, ends only when the changes of a throttled service that were there at the beginning are applied,
    too. A batch has at most about `offsets_max` offsets. If an entity was repartitioned, the changes of a key may be
    applied out of order. This does no harm, because a target keeps only the newest state. Raises ChangelogError (GAP)
    if Kafka may have lost changes that the view lacks.
    """
    goal: Checkpoint | None = None
    while True:
        is_at_end = _query(spark, where, view, throttle, offsets_max, every_s, stopping)
        goal = goal or view.progress.checkpoint
        if stopping.is_set() or (is_at_end and (throttle is None or throttle.has_applied(goal))):
            return


def _query(
    spark: "SparkSession",
    where: Kafka,
    view: MaintainedView,
    throttle: Throttle | None,
    offsets_max: int,
    every_s: float | None,
    stopping: threading.Event,
) -> bool:
    """Runs one query until `stopping` is set, or until an entity has a new topic. Without `every_s`, the query ends at
    the present end of the topics. Returns whether it has ended there.
    """
    client = Client(bootstrap_servers=where.bootstrap_servers, options=where.options)
    spans = unread(client, where, view.entities, view.progress.checkpoint)
    options = {
        **kafka_options(where),
        **kafka_offsets.begin_options(spans),
        "maxOffsetsPerTrigger": str(offsets_max),
    }
    trigger = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s * 1000:.0f} milliseconds"}
    with tempfile.TemporaryDirectory(prefix="changelog-view-", ignore_cleanup_errors=True) as folder:
        batches = _MicroBatches(throttle or view, Path(folder))
        changes = decoded(spark.readStream.format("kafka").options(**options).load(), where)
        writer = changes.writeStream.foreachBatch(batches.apply).option("checkpointLocation", f"file:{folder}")
        query = writer.trigger(**trigger).start()
        checked_s, has_other_topics = time.monotonic(), False  # a running query cannot change its topics
        try:
            while not (query.awaitTermination(_POLL_S) or stopping.is_set() or has_other_topics):
                if throttle is not None:
                    batches.step(throttle)
                if time.monotonic() - checked_s > CHECK_EVERY_S:
                    now = unread(client, where, view.entities, view.progress.checkpoint)
                    has_other_topics = now.keys() != spans.keys()
                    checked_s = time.monotonic()
            if throttle is not None and every_s is None:
                batches.step(throttle)
        except Exception:
            if batches.failure is not None:
                raise batches.failure from None
            raise
        finally:
            batches.end()
            query.stop()
    return every_s is None and not has_other_topics


class _MicroBatches:
    """Applies micro-batches. An error is also stored in `failure`, because Spark turns it into a Java stack trace.

    `folder` has the checkpoint of the query. It says where a micro-batch ends. The rows of the micro-batch do not say
    this, because not every offset has a row.
    """

    def __init__(self, view: MaintainedView | Throttle, folder: Path) -> None:
        self._view, self._folder = view, folder
        self._lock, self._ended = threading.Lock(), False
        self.failure: Exception | None = None

    def end(self) -> None:
        """Waits until the micro-batch that is being applied is done. Later micro-batches are ignored."""
        with self._lock:
            self._ended = True

    def step(self, throttle: Throttle) -> None:
        """Applies changes that wait, between two micro-batches."""
        throttle.prepare()
        with self._lock:
            throttle.step()

    def apply(self, rows: "DataFrame", batch_number: int) -> None:
        """Applies one micro-batch."""
        with self._lock:
            if self._ended:
                return
            rows.persist()  # so they are decoded only once
            try:
                self._view.apply(rows, ends_of_batch(self._folder, batch_number))
            except Exception as error:
                self.failure = error
                raise
            finally:
                with suppress(Exception):  # the query may have failed
                    rows.unpersist()
