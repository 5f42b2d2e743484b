"""Follows the topics of a view's entities on Kafka, by structured streaming.

The target stores the next offsets together with the rows, and each query begins at these offsets. So Spark's checkpoint
is not needed after its query has ended, and is deleted. If a table is restored from a copy, the next query begins where
the copy ends.
"""

import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.maintaining.apply_changes import MaintainedView
from changelog.spark_jobs.maintaining.progress import REBUILD
from changelog.spark_jobs.reading import kafka_offsets
from changelog.spark_jobs.reading.kafka_offsets import OffsetSpan, ends_of_batch
from changelog.spark_jobs.reading.read_kafka import decoded, kafka_options
from changelog.spark_jobs.reading.where import Kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECK_EVERY_S: Final = 60.0
"""How often, in seconds, a run checks whether Kafka may have compacted or dropped its next messages, and whether an
entity has a new topic.
"""

_POLL_S: Final = 1


def follow(
    spark: "SparkSession",
    where: Kafka,
    view: MaintainedView,
    *,
    offsets_max: int,
    every_s: float | None,
    stopping: threading.Event,
) -> None:
    """Applies the new changes, then ends; with `every_s`, begins a batch that often until `stopping` is set.

    A batch has at most about `offsets_max` offsets. If an entity was repartitioned, a key's changes may be applied out
    of order. This does no harm, because a target keeps only the newest state. Raises ChangelogError (GAP) if Kafka may
    have lost changes that the view lacks.
    """
    client = Client(bootstrap_servers=where.bootstrap_servers, options=where.options)
    spans = _unread(client, where, view)
    options = {
        **kafka_options(where),
        **kafka_offsets.begin_options(spans),
        "maxOffsetsPerTrigger": str(offsets_max),
    }
    trigger = {"availableNow": True} if every_s is None else {"processingTime": f"{every_s * 1000:.0f} milliseconds"}
    with tempfile.TemporaryDirectory(prefix="changelog-view-", ignore_cleanup_errors=True) as folder:
        batches = _MicroBatches(view, Path(folder))
        changes = decoded(spark.readStream.format("kafka").options(**options).load(), where)
        writer = changes.writeStream.foreachBatch(batches.apply).option("checkpointLocation", f"file:{folder}")
        query = writer.trigger(**trigger).start()
        checked_s, has_other_topics = time.monotonic(), False
        try:
            while not (query.awaitTermination(_POLL_S) or stopping.is_set() or has_other_topics):
                if time.monotonic() - checked_s > CHECK_EVERY_S:
                    has_other_topics = _unread(client, where, view).keys() != spans.keys()
                    checked_s = time.monotonic()
        except Exception:
            if batches.failure is not None:
                raise batches.failure from None
            raise
        finally:
            batches.end()
            query.stop()
    if has_other_topics:  # a query of Spark cannot take them
        follow(spark, where, view, offsets_max=offsets_max, every_s=every_s, stopping=stopping)


def _unread(client: Client, where: Kafka, view: MaintainedView) -> dict[Part, OffsetSpan]:
    """Returns the spans of messages that the view lacks. Raises ChangelogError (GAP) if some of them may be gone."""
    others = kafka_offsets.entities(client.admin(), where.prefix).keys() - {*view.entities, SCHEMAS}
    try:
        return kafka_offsets.unread(client, where.prefix, view.progress.checkpoint, skip=others)
    except ChangelogError as error:
        if error.kind is not Kind.GAP:
            raise
        raise ChangelogError(Kind.GAP, error.message, hint=REBUILD) from error


class _MicroBatches:
    """Applies micro-batches. An error is also stored in `failure`, because Spark turns it into a Java stack trace.

    `folder` has the checkpoint of the query, which says where a micro-batch ends. Its rows do not say that, because
    offsets have gaps.
    """

    def __init__(self, view: MaintainedView, folder: Path) -> None:
        self._view, self._folder = view, folder
        self._lock, self._ended = threading.Lock(), False
        self.failure: Exception | None = None

    def end(self) -> None:
        """Waits until the present micro-batch is applied. Later ones are ignored."""
        with self._lock:
            self._ended = True

    def apply(self, rows: "DataFrame", batch_number: int) -> None:
        """Applies one micro-batch."""
        with self._lock:
            if self._ended:
                return
            rows.persist()  # it is decoded only once
            try:
                self._view.apply(rows, ends_of_batch(self._folder, batch_number))
            except Exception as error:
                self.failure = error
                raise
            finally:
                with suppress(Exception):  # the query may have failed
                    rows.unpersist()
