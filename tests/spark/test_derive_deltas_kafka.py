"""Tests that the job `derive_deltas` reads changes from topics and writes deltas to topics. Runs are killed, repeated,
or given bad input.

A *delta* describes, as a patch, what one change did to its row.
"""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from changelog.connectors import failpoints
from changelog.connectors.kafka import client
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.admin.topics import Topic, TopicSettings, read
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.reading.consume import Consumed, consumed
from changelog.connectors.sinks.kafka.repartition import repartition
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.columnar import batch
from changelog.envelope.delta import delta_codec, delta_of
from changelog.envelope.entity import Entity
from changelog.envelope.model import Op, Record, Stamp
from changelog.spark_jobs.derive_deltas import JOB
from changelog.spark_jobs.runner.job import main
from tests.integration.kafka.topics import settled
from tests.patience import PATIENCE_S, PROGRAM_S
from tests.servers import CACHE, HASTY_SPARK
from tests.servers.registry import Registry
from tests.spark.changes import PARTITIONS, Workload
from tests.spark.derived import checkpoint, config, position, same, summary, tables


def submitted(job: str, arguments: Sequence[str], *, crash_at: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a job in a process of its own. The process crashes at the fail point `crash_at`."""
    jars = ",".join(map(str, sorted((CACHE / "jars").glob("*.jar"))))
    hasty = f"{HASTY_SPARK} --conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false"
    options = f"--master local[2] --jars {jars} --driver-memory 1g {hasty} pyspark-shell"
    return subprocess.run(
        [sys.executable, "-m", f"changelog.spark_jobs.{job}", *arguments],
        env={
            **os.environ,
            failpoints.VARIABLE: crash_at,
            "PYSPARK_SUBMIT_ARGS": options,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        timeout=PROGRAM_S,
        check=False,
    )


@dataclass(slots=True)
class Topics:
    """A growing changelog on a broker, and the job that reads it.

    For each repartitioned entity, `partitions` has the new number of partitions. Rows still go only to the first
    `PARTITIONS` partitions.
    """

    folder: Path
    settings: KafkaSettings
    workload: Workload
    records: list[Record]
    sink: str = 'codec = "json"'
    partitions: dict[str, int] = field(default_factory=dict)

    def grow(self, transactions: int, first: Sequence[Record] = ()) -> None:
        """First publishes the records `first`, if there are any, in one transaction. Then publishes the next
        transactions of the workload.
        """
        stamp = Stamp(api_version="", service_name="", identifier="")
        entities = [
            Entity(
                name=name,
                table=("public", name),
                key=("id",),
                partition_by=("id",),
                partitions=self.partitions.get(name, PARTITIONS),
                masks={},
                default_stamp=stamp,
            )
            for name in self.workload.rows
        ]
        with closing(KafkaSink(self.settings, JSON)) as sink:
            sink.prepare(entities)
            sink.recover()
            for transaction in [*([list(first)] if first else []), *self.workload.transactions(transactions)]:
                sink.add([batch.from_records(transaction)])
                sink.commit(checkpoint(transaction))
                self.records += transaction
            names = [sink.topic(entity.name) for entity in entities]
        settled(self.settings.client, [(name, number) for name in names for number in range(PARTITIONS)])

    def repartition(self, entity: str, partitions: int) -> str:
        """Begins a new topic of the entity. Returns the position of the last row in the old topic."""
        with closing(KafkaSink(self.settings, JSON)) as sink:
            stored = sink.recover()
            assert stored is not None
            shape, progress = {"partitions": PARTITIONS}, {"complete": True}
            before = replace(stored, settings={entity: shape}, windows={entity: progress})
            repartition(sink, self.settings, before, entity, partitions)
        self.partitions[entity] = partitions
        settled(self.settings.client, [(f"{self.settings.prefix}.{entity}", number) for number in range(PARTITIONS)])
        return str(before.position)

    @property
    def arguments(self) -> list[str]:
        servers, prefix = self.settings.client.bootstrap_servers, self.settings.prefix
        sink = f'{{ kind = "kafka", bootstrap_servers = "{servers}", prefix = "{prefix}", {self.sink} }}'
        return ["--config", str(config(self.folder, sink)), "--checkpoint", str(self.folder / "checkpoint")]

    def run(self, *arguments: str) -> int:
        return main(JOB, [*self.arguments, *arguments])

    def crash(self) -> None:
        """Runs the job in a process that is killed after it has sent a batch, but before it has stored a checkpoint."""
        killed = submitted("derive_deltas", self.arguments, crash_at="deltas:sent")
        assert killed.returncode == -9, killed.stderr.decode()

    def entities_with_deltas(self) -> list[str]:
        """Returns the entities that have at least one delta."""
        topics = self.settings.client.admin().topics()
        entities = [entity for entity in self.workload.rows if f"{self.settings.prefix}.{entity}.delta" in topics]
        return [entity for entity in entities if any(True for _ in self._consumed(entity))]

    def messages(self) -> Iterator[tuple[str, Consumed]]:
        for entity in self.workload.rows:
            for message in self._consumed(entity):
                yield entity, message

    def _consumed(self, entity: str) -> Iterator[Consumed]:
        return consumed(self.settings.client, f"{self.settings.prefix}.{entity}.delta")


def settings_of(broker: Broker, prefix: str) -> KafkaSettings:
    """Returns settings for topics that are never compacted.

    All changes of the workload have the same fixed day. If topics could be compacted, the jobs would refuse to
    continue, because the messages are older than `min.compaction.lag.ms`.
    """
    lags = {"min.compaction.lag.ms": str(2**62), "max.compaction.lag.ms": str(2**63 - 1)}
    return KafkaSettings(
        client=Client(bootstrap_servers=broker.bootstrap_servers),
        name="booking",
        prefix=prefix,
        entities={name: TopicSettings(settings=lags) for name in Workload(random.Random(0)).rows},
    )


@pytest.fixture
def topics(broker: Broker, tmp_path: Path, own_name: str, seed: int) -> Topics:
    settings = settings_of(broker, own_name)
    return Topics(folder=tmp_path, settings=settings, workload=Workload(random.Random(seed)), records=[])


def test_each_change_of_a_topic_has_its_delta_although_runs_are_killed(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.grow(15)
    topics.crash()
    topics.grow(5)
    assert topics.run() == 0
    result = summary(capsys)
    assert result["verdict"] == "done"
    topics.grow(10)
    topics.crash()
    assert topics.run() == 0

    records = {
        (record.entity, record.place.partition, record.place.key, str(position(delta_of(record.envelope)))): record
        for record in topics.records
    }
    copies: Counter[Any] = Counter()
    deltas = []
    tombstones: dict[Any, int] = defaultdict(int)
    for entity, message in topics.messages():
        address = (entity, message.partition, message.key, message.headers["position"])
        if message.value is None:
            assert message.headers["op"] == Op.DELETE
            tombstones[address] += 1
            continue
        delta = delta_codec.decode(message.value)
        assert same(delta.patch, delta_of(records[address].envelope).patch)
        assert str(position(delta)) == message.headers["position"]
        copies[address] += 1
        deltas.append((entity, message.key, delta))
    assert copies.keys() == records.keys()
    assert max(copies.values()) > 1, "deltas that were sent before a crash are sent again"
    deleted = {address for address, record in records.items() if record.envelope.provenance.source.op is Op.DELETE}
    assert tombstones == {address: copies[address] for address in deleted}
    assert same(tables(deltas), topics.workload.rows)
    _check_topics(topics)


def _check_topics(topics: Topics) -> None:
    names = [f"{topics.settings.prefix}.{entity}.delta" for entity in topics.workload.rows]
    described = read(topics.settings.client.admin(), [Topic(name=name, partitions=0, settings={}) for name in names])
    for name in names:
        assert described[name].partitions == PARTITIONS
        assert (described[name].settings["cleanup.policy"], described[name].settings["retention.ms"]) == (
            "delete",
            "-1",
        )


def test_a_continuous_job_ends_on_sigterm(
    spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.grow(3)
    handler = signal.getsignal(signal.SIGTERM)

    finished = threading.Event()

    def terminate() -> None:
        while not topics.entities_with_deltas():
            if finished.wait(0.2):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        terminating = pool.submit(terminate)
        try:
            assert topics.run("--continuous", "--every", "0", "--offsets", "4") == 0
        finally:
            finished.set()
        terminating.result()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert summary(capsys)["verdict"] == "done"


def test_deltas_in_avro(spark: SparkSession, topics: Topics, registry: Registry) -> None:
    """The first run has `auto_register = false`. It fails, because the schema of deltas is not registered yet."""
    topics.grow(3)
    topics.sink = f'codec = "avro", registry = "{registry.url}", auto_register = false'
    assert topics.run() == 3
    assert not any(True for _ in topics.messages())
    topics.sink = topics.sink.replace("false", "true")
    assert topics.run() == 0
    schema: Any = fastavro.parse_schema(json.loads(files("changelog.schemas").joinpath("delta.avsc").read_text()))
    decoded = set()
    for entity, message in topics.messages():
        if message.value is not None:
            body = io.BytesIO(message.value[5:])
            delta: Any = fastavro.schemaless_reader(body, schema, None)
            assert not body.read()
            decoded.add((entity, message.partition, delta["provenance"]["source"]["position"], len(delta["patch"])))
    assert decoded == {
        (record.entity, record.place.partition, str(position(expected)), len(expected.patch))
        for record in topics.records
        for expected in [delta_of(record.envelope)]
    }


def test_deleted_messages_stop_the_job(spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    topics.grow(5)
    assert topics.run() == 0
    before = sum(1 for _ in topics.messages())
    topics.grow(10)
    cut(topics)
    capsys.readouterr()
    for arguments in ([], ["--dry-run"]):
        assert topics.run(*arguments) == 3
        output = capsys.readouterr()
        assert output.err.startswith("derive_deltas: history lost: ")
        assert len(output.err.splitlines()) == 1
    assert sum(1 for _ in topics.messages()) == before


def cut(topics: Topics) -> None:
    """Deletes all messages of the changelog's topics, as retention would do."""
    admin = topics.settings.client.admin()
    for entity in topics.workload.rows:
        name = f"{topics.settings.prefix}.{entity}"
        entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()
        for number in range(PARTITIONS):
            _delete_records(admin, TopicPartition(name, number, -1))


def _delete_records(admin: AdminClient, part: TopicPartition) -> None:
    """Deletes the records of a partition. Tries again until the broker has applied the topic's new settings."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (future,) = admin.delete_records([part]).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--entity", "room"], 2, "entity room has no topic"),
        (["--output", "x"], 2, "--output is not for a changelog on Kafka"),
    ],
)
def test_bad_input_of_topics_is_reported_in_one_line(
    spark: SparkSession,
    topics: Topics,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    topics.grow(1)
    assert topics.run(*arguments) == code
    output = capsys.readouterr()
    assert message in output.err
    assert len(output.err.splitlines()) == 1
    assert not (topics.folder / "checkpoint").exists()


def test_a_broker_that_does_not_answer_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 1.0)
    file = config(tmp_path, '{ kind = "kafka", bootstrap_servers = "127.0.0.1:1" }')
    assert main(JOB, ["--config", str(file), "--checkpoint", str(tmp_path / "c"), "--dry-run"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
