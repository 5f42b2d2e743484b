"""Tests that jobs which read topics continue in the new topic of a repartitioned entity.

A *delta* describes, as a patch, what one change did to its row. When a topic has ended, the last message in each of its
partitions is a *mark*.
"""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.reading.consume import consumed
from changelog.envelope.entity import END_KEY
from changelog.envelope.model import position_of
from changelog.spark_jobs.archive import JOB as ARCHIVE
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.where import Kafka
from changelog.spark_jobs.runner.job import main
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import newest
from tests.campaigns import archive as campaign
from tests.integration.kafka.topics import delete
from tests.spark.changes import PARTITIONS, Workload
from tests.spark.test_derive_deltas_kafka import Topics, settings_of


@dataclass(slots=True)
class ArchivedTopics(Topics):
    """A growing changelog on a broker, and the jobs that derive its deltas and archive it."""

    def run_all(self, *arguments: str) -> None:
        assert self.run(*arguments) == 0
        assert self.archive(*arguments) == 0

    def archive(self, *arguments: str) -> int:
        return main(ARCHIVE, [*self.arguments[:2], "--archive", str(self.folder / "archive"), *arguments])

    def deltas(self, topic: str) -> tuple[list[str], int]:
        """Returns the positions of the deltas in a topic, and the number of marks."""
        messages = list(consumed(self.settings.client, f"{self.settings.prefix}.{topic}"))
        marks = [message for message in messages if message.key == END_KEY]
        for mark in marks:
            assert mark.headers["nextTopic"] == f"{self.settings.prefix}.order.G2.delta"
            assert mark.offset == max(message.offset for message in messages if message.partition == mark.partition)
        return [message.headers["position"] for message in messages if message.value is not None], len(marks)


@pytest.fixture
def topics(broker: Broker, tmp_path: Path, own_name: str, seed: int) -> ArchivedTopics:
    settings = settings_of(broker, own_name)
    return ArchivedTopics(folder=tmp_path, settings=settings, workload=Workload(random.Random(seed)), records=[])


def test_deltas_and_an_archive_go_on_in_the_new_topic(spark: SparkSession, topics: ArchivedTopics) -> None:
    prefix = topics.settings.prefix
    topics.grow(8)
    topics.run_all()
    topics.grow(4)
    last = topics.repartition("order", 12)
    topics.grow(8)
    topics.run_all()
    topics.grow(2)
    topics.run_all()

    positions = [(record.entity, str(position_of(record))) for record in topics.records]
    order_positions = [position for entity, position in positions if entity == "order"]
    before, after = topics.deltas("order.delta"), topics.deltas("order.G2.delta")
    assert sorted(before[0]) == [position for position in order_positions if position <= last]
    assert sorted(after[0]) == [position for position in order_positions if position > last]
    assert (before[1], after[1]) == (PARTITIONS, 0)
    assert topics.deltas("guest.delta")[1] == 0

    rows = campaign.archived(topics.folder / "archive")
    assert Counter(zip(rows["entity"].to_pylist(), rows["position"].to_pylist(), strict=True)) == Counter(positions)
    manifest = newest(local(topics.folder / "archive"))
    assert manifest is not None
    assert manifest.complete["order"] == positions[-1][1]
    labels = {label for file in manifest.files if file.entity == "order" for label in file.offsets}
    assert {"0", "G2/0"} <= labels
    where = Kafka(bootstrap_servers=topics.settings.client.bootstrap_servers, prefix=prefix, name="booking")
    read = read_changelog(spark, where, entities=["order"]).select("entity", "position").collect()
    assert sorted(row.position for row in read) == order_positions
    assert {row.entity for row in read} == {"order"}

    delete(topics.settings.client, f"{prefix}.order")
    topics.grow(2)
    topics.run_all()
    of_orders = [str(position_of(record)) for record in topics.records if record.entity == "order"]
    assert sorted(topics.deltas("order.G2.delta")[0]) == [position for position in of_orders if position > last]


def test_both_jobs_stop_if_a_topic_was_deleted_before_they_had_read_it(
    spark: SparkSession, topics: ArchivedTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.grow(4)
    topics.run_all()
    topics.grow(4)
    topics.repartition("order", 12)
    delete(topics.settings.client, f"{topics.settings.prefix}.order")
    topics.grow(2)
    assert topics.run() == 3
    assert "order was deleted before its last messages were read" in capsys.readouterr().err
    assert topics.archive() == 3
    assert "order was deleted before the archive was complete up to its end" in capsys.readouterr().err
    topics.run_all("--accept-lost")
    topics.grow(2)
    topics.run_all()
