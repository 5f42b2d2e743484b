"""Tests `changelog repartition`. After this command, an entity's changelog goes on in a new topic with another number
of partitions.

The last message of each partition of the old topic is a *mark*. It names the new topic.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from changelog.connectors import cli, failpoints, gaps
from changelog.connectors.config import KafkaConfig
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.admin.generations import generations_of
from changelog.connectors.sinks.kafka.reading.consume import consumed
from changelog.connectors.sinks.kafka.reading.read_generations import read_generations
from changelog.connectors.sinks.kafka.repartition import FAIL_POINTS, refuse
from changelog.connectors.wiring.kafka import sink_settings
from changelog.connectors.wiring.sinks import open_sink
from changelog.connectors.wiring.sources import database
from changelog.envelope.columnar import batch
from changelog.envelope.entity import END_KEY, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError
from changelog.envelope.key import partition
from tests.integration.kafka.site import Site
from tests.integration.kafka.topics import delete
from tests.patience import PATIENCE_S, until

ROWS, OLD, NEW = 24, 4, 12

TABLE = """
CREATE TABLE item (id int PRIMARY KEY, version int NOT NULL);
ALTER TABLE item REPLICA IDENTITY FULL;
"""


class Load:
    """Changes rows in a thread until `close`. The changes are numbered, and a changed row gets the number of its change
    as its version. Some changes first delete the row, and then insert it again.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn, self._ending = dsn, threading.Event()
        self.changes = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ending.wait(0.005):
                key = self.changes * 7 % ROWS + 1
                if self.changes % 20 == 19:
                    connection.execute("DELETE FROM item WHERE id = %s", [key])
                connection.execute(
                    "INSERT INTO item VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                    [key, self.changes + 1],
                )
                self.changes += 1

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


class Follower:
    """A consumer that obeys docs/how-to/repartition.md. It reads a topic until it has seen a mark in each partition.
    Then it goes on with the topic that the marks name. `versions` has the versions of each key's changes, in the order
    in which they came.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self.topics = client, [topic]
        self.versions: dict[str, list[int]] = {}
        self.latest: dict[str, int] = {}
        self._open: set[int] = set()
        self._ending = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with closing(self._client.reader()) as consumer:
                self._begin(consumer)
                while not self._ending.is_set():
                    message = consumer.poll(0.1)
                    if message is None or message.error() is not None:
                        continue
                    if message.key() == END_KEY.encode():
                        self._open.discard(cast(int, message.partition()))
                        if not self._open:
                            headers = dict(cast(Any, message.headers()))
                            self.topics.append(headers["nextTopic"].decode())
                            self._begin(consumer)
                    elif message.value() is not None:
                        self._take(message)
        except Exception as error:  # noqa: BLE001 - `close` raises it
            self.failure = error

    def _begin(self, consumer: Any) -> None:
        topic = self.topics[-1]
        self._open = set(self._client.admin().topics()[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in self._open])

    def _take(self, message: Message) -> None:
        value = json.loads(message.value() or b"")
        key, op = (message.key() or b"").decode(), value["provenance"]["source"]["op"]
        state = value["original"] if op == "delete" else value["current"]
        assert state["version"] >= self.latest.get(key, 0), f"{key} returned to an older state"
        self.latest[key] = state["version"]
        if op in ("create", "update"):
            self.versions.setdefault(key, []).append(state["version"])

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


class Tail:
    """Reads the changelog in a thread like `changelog tail`. Keeps the positions and versions of each key's rows."""

    def __init__(self, site: Site) -> None:
        self.positions: dict[str, list[str]] = {}
        self.versions: dict[str, list[int]] = {}
        self._ending = threading.Event()
        self._rows = site.log.follow(entity="item", wait=lambda: not self._ending.wait(0.05))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for rows in self._rows:
            for record in batch.records(rows):
                key, source = record.place.key, record.envelope.provenance.source
                self.positions.setdefault(key, []).append(str(source.position))
                if source.op in ("create", "update"):
                    version = json.loads(bytes(record.envelope.current or b""))["version"]
                    self.versions.setdefault(key, []).append(version)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


@pytest.fixture
def dsn(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
    return database


@pytest.fixture
def site(dsn: str, broker: Broker, tmp_path: Path) -> Site:
    return site_of(dsn, broker, tmp_path, OLD)


def site_of(dsn: str, broker: Broker, folder: Path, partitions: int) -> Site:
    return Site(dsn, broker, folder, tables={"item": partitions})


def topic_of(site: Site, generation: int = 1) -> str:
    return f"{site.settings.name}.item" + ("" if generation == 1 else f".G{generation}")


def client_of(broker: Broker) -> Client:
    return Client(bootstrap_servers=broker.bootstrap_servers)


def call(capsys: pytest.CaptureFixture[str], site: Site, *words: str) -> tuple[int, str]:
    """Runs a command. Returns its exit code and its output."""
    capsys.readouterr()
    try:
        code = cli.main([words[0], "--config", str(site.config), *words[1:]])
    except SystemExit as error:  # raised by the parser of the command line
        code = int(error.code or 0)
    output = capsys.readouterr()
    return code, output.out + "".join(line for line in output.err.splitlines() if not line.startswith("{"))


def publish(site: Site) -> None:
    """Runs the service until the changelog has all rows."""
    with site.running() as service:
        service.until(lambda: site.is_read() and site.state("item") == site.table("item"))


def expected_versions(changes: int) -> dict[str, list[int]]:
    """Returns the versions that `Load` gives to each key."""
    versions: dict[str, list[int]] = {}
    for change in range(changes):
        versions.setdefault(str(change * 7 % ROWS + 1), []).append(change + 1)
    return versions


def live_rows(client: Client, topic: str) -> dict[str, Any]:
    """Returns the rows that result from the messages of one topic alone. Checks that each message is in the partition
    that its key chooses.
    """
    rows: dict[str, Any] = {}
    count = len(client.admin().topics()[topic].partitions)
    for message in consumed(client, topic):
        if message.key in (END_KEY, TRUNCATE_KEY):
            continue
        assert message.partition == partition(message.key.encode(), count)
        rows.pop(message.key, None)
        if message.value is not None and (current := json.loads(message.value)["current"]) is not None:
            rows[message.key] = current
    return rows


def marks(client: Client, topic: str) -> list[tuple[int, dict[str, str]]]:
    return sorted((message.partition, message.headers) for message in consumed(client, topic) if message.key == END_KEY)


def test_a_consumer_sees_each_change_once_in_order_when_an_entity_is_repartitioned_under_load(
    site: Site, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.connectors.sinks.kafka.reading.log.TOPICS_S", 0.1)
    client = client_of(broker)
    with site.running() as service:
        service.until(site.is_read)
        load, follower, tail = Load(site.dsn), Follower(client, topic_of(site)), Tail(site)
        with closing(load), closing(follower), closing(tail):
            service.until(lambda: sum(map(len, follower.versions.values())) > 100)
            service.stop()
            code, output = call(capsys, site, "repartition", "item", "--partitions", str(NEW))
            assert (code, output.splitlines()) == (
                0,
                [
                    f"item: topic {topic_of(site, 2)} has 12 partitions",
                    "now set partitions = 12 in [entities.item], and start the service",
                ],
            )
            assert "the table is read into it: 0 %" in call(capsys, site, "status")[1].replace("\n", " ")
            new_site = site_of(site.dsn, broker, tmp_path, NEW)
            changes_before = load.changes
            with new_site.running() as new_service:
                new_service.until(lambda: new_site.is_read() and load.changes > changes_before + 100)
                load.close()
                expected = expected_versions(load.changes)
                new_service.until(lambda: follower.versions == tail.versions == expected)
    assert follower.topics == [topic_of(site), topic_of(site, 2)]
    assert live_rows(client, topic_of(site, 2)) == new_site.table("item")

    # our own readers
    assert new_site.state("item") == new_site.table("item")
    records = [record for rows in new_site.log.read(entity="item", key="8") for record in batch.records(rows)]
    ops = [str(record.envelope.provenance.source.op) for record in records]
    assert len(records) - ops.count("read") - ops.count("delete") == len(expected["8"])
    assert all(positions == sorted(set(positions)) for positions in tail.positions.values())
    status = json.loads(call(capsys, new_site, "status", "--json")[1])
    last = status["generations"]["item"][0]["last"]
    assert status["generations"] == {
        "item": [
            {"topic": topic_of(site), "partitions": OLD, "last": last},
            {"topic": topic_of(site, 2), "partitions": NEW},
        ]
    }
    assert marks(client, topic_of(site)) == [
        (number, {"nextTopic": topic_of(site, 2), "nextPartitions": "12", "position": last}) for number in range(OLD)
    ]
    text = call(capsys, new_site, "status")[1].replace("\n", " ")
    assert f"topic {topic_of(site, 2)} goes on where {topic_of(site)} ended" in text
    findings = json.loads(call(capsys, new_site, "check", "--json")[1])
    assert "fail" not in {finding["status"] for finding in findings}
    [ended] = [finding for finding in findings if finding["name"] == f"topic {topic_of(site)}"]
    assert (ended["status"], ended["message"].split(";")[0]) == (
        "warn",
        f"has ended, and item goes on in {topic_of(site, 2)}",
    )

    monkeypatch.setattr("changelog.connectors.sinks.kafka.reading.log.TOPICS_S", PATIENCE_S)
    with closing(Tail(new_site)) as tail:
        until(lambda: tail.versions == expected, "the tail lacks rows")
        delete(client, topic_of(site))  # every reader has read this topic to its end
        new_site.sql("UPDATE item SET version = 0 WHERE id = 1")
        publish(new_site)
        until(lambda: tail.versions["1"][-1] == 0, "the tail ended with the old topic")
    assert call(capsys, new_site, "drop", "--topics")[1].count("topic        ") == 1


def test_a_repartition_is_done_once_although_it_is_killed_at_each_fail_point(
    site: Site, broker: Broker, tmp_path: Path
) -> None:
    site.sql("INSERT INTO item SELECT n, 1 FROM generate_series(1, 9) AS n")
    publish(site)
    client, new_topic = client_of(broker), topic_of(site, 2)
    command = [sys.executable, "-m", "changelog", "repartition", "item", "--partitions", "2"]
    for fail_at in (*FAIL_POINTS, "kafka:committed"):
        environment = {**os.environ, failpoints.VARIABLE: fail_at}
        killed = subprocess.run(
            [*command, "--config", str(site.config)], env=environment, capture_output=True, check=False
        )
        assert killed.returncode == -9, (fail_at, killed.stderr)
        is_done = len(generations_of(site.checkpoint, site.settings.prefix, "item")) == 2
        assert is_done == (fail_at == "kafka:committed")
        if fail_at == FAIL_POINTS[1]:
            publish(site)  # the service goes on with the old topic
    assert cli.main([*command[3:], "--config", str(site.config)]) == 0
    new_site = site_of(site.dsn, broker, tmp_path, 2)
    new_site.sql("UPDATE item SET version = 2 WHERE id < 5", "DELETE FROM item WHERE id = 9")
    publish(new_site)
    assert live_rows(client, new_topic) == new_site.table("item")
    assert [number for number, _ in marks(client, topic_of(site))] == [*range(OLD)]


def test_an_entity_can_be_repartitioned_again(
    site: Site, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second number of partitions is smaller than the first. Then the replication slot and the newest topic are
    lost. To continue after this gap, the service creates the topic again, with yet another number of partitions, and
    makes a new checkpoint. This checkpoint must still list all topics.
    """
    site.sql("INSERT INTO item SELECT n, 1 FROM generate_series(1, 9) AS n")
    publish(site)
    for generation, partitions in ((2, 6), (3, 2)):
        assert call(capsys, site, "repartition", "item", "--partitions", str(partitions))[0] == 0
        site = site_of(site.dsn, broker, tmp_path, partitions)
        site.sql(f"UPDATE item SET version = {generation}")
        publish(site)
    assert read_generations(client_of(broker), site.settings.prefix, "another", {"guest": 1}) == {}
    site.sql(f"SELECT pg_drop_replication_slot('{site.settings.name}')")
    delete(client_of(broker), topic_of(site, 3))
    site = site_of(site.dsn, broker, tmp_path, 5)
    gap = gaps.find(site.settings, accept_settings=True, reach=failpoints.nowhere)
    assert gap is not None
    assert gap.error.message.startswith(f"topic {topic_of(site, 3)} no longer exists")
    gaps.cross(site.settings, gap, accept_settings=True, reach=failpoints.nowhere)
    publish(site)
    generations = generations_of(site.checkpoint, site.settings.prefix, "item")
    assert [(generation.topic, generation.partitions) for generation in generations] == [
        (topic_of(site), OLD),
        (topic_of(site, 2), 6),
        (topic_of(site, 3), 5),
    ]
    assert live_rows(client_of(broker), topic_of(site, 3)) == site.table("item")


@pytest.fixture
def read_site(site: Site) -> Site:
    site.sql("INSERT INTO item VALUES (1, 1)")
    publish(site)
    return site


def is_running(site: Site) -> bool:
    hold = database(site.settings).hold()
    return hold is not None and hold.reader is not None


def refused(capsys: pytest.CaptureFixture[str], site: Site, *words: str) -> tuple[int, str]:
    code, output = call(capsys, site, "repartition", *(words or ("item", "--partitions", "12")))
    assert "\n" not in output.strip()
    return code, output


def test_a_repartition_that_cannot_be_done_changes_nothing(
    read_site: Site, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    site = read_site
    settings = sink_settings(site.settings, cast(KafkaConfig, site.settings.sink))
    code, output = refused(capsys, site, "itme", "--partitions", "12")
    assert (code, output.endswith("has no entity itme; it has: item")) == (2, True)
    for number in ("0", "-1", "many", "10001"):
        assert "should be a number from 1 to 10,000" in refused(capsys, site, "item", "--partitions", number)[1]
    assert call(capsys, site, "repartition", "item", "--partitions", str(OLD)) == (
        0,
        f"item: topic {topic_of(site)} has 4 partitions\nnow start the service\n",
    )
    with site.running() as service:
        service.until(lambda: is_running(site))
        code, output = refused(capsys, site)
        assert (code, "is read by process" in output) == (3, True)
    before = site.checkpoint
    assert before is not None
    with pytest.raises(ChangelogError, match='consumers of the envelope "flat" do not know where a topic ends'):
        refuse(replace(settings, envelope="flat"), before, "item")
    store(site, replace(before, partial=True))
    assert "a transaction is half published" in refused(capsys, site)[1]
    store(site, replace(before, windows={"item": {"complete": False}}))
    assert f"the table of the entity item is still being read into topic {topic_of(site)}" in refused(capsys, site)[1]
    store(site, replace(before, position=None))
    assert "an older checkpoint has overwritten the newer one" in refused(capsys, site)[1]
    store(site, before)
    client = client_of(broker)
    for what, count in (("has 3 partitions, not 12", 3), ("holds messages", 12)):
        create(client, topic_of(site, 2), count)
        if what == "holds messages":
            fill(client, topic_of(site, 2))
        assert f"topic {topic_of(site, 2)} exists and {what}" in refused(capsys, site)[1]
        delete(client, topic_of(site, 2))
    assert site.checkpoint is not None
    assert site.checkpoint.to_json() == before.to_json()
    publish(site)


def store(site: Site, checkpoint: Any) -> None:
    with closing(open_sink(site.settings)) as sink:
        sink.recover()
        sink.commit(checkpoint)


def create(client: Client, name: str, partitions: int) -> None:
    admin = client.admin()
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result()
    until(lambda: name in admin.topics(), f"the broker does not show {name}")


def fill(client: Client, name: str) -> None:
    producer = Producer(client.config())
    producer.produce(name, b"{}")
    assert producer.flush(PATIENCE_S) == 0
