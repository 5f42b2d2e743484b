"""Tests that jobs which read topics continue in the new topic of a repartitioned entity."""

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
from tests.spark.changes import PARTITIONS, Workload
from tests.spark.test_derive_deltas_kafka import Topics, settings_of


@dataclass(slots=True)
class ArchivedTopics(Topics):
    """A growing changelog on a broker, and the jobs that derive its deltas and archive it."""

    def run_all(self) -> None:
        assert self.run() == 0
        assert main(ARCHIVE, [*self.arguments[:2], "--archive", str(self.folder / "archive")]) == 0

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
