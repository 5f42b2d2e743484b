"""Tests a service that reads Debezium's events from the topics of a real broker, also after restarts and changes of
topics.

Debezium itself does not run. Our own sink writes the events (`envelope = "debezium"`), or a producer sends events that
`change_events` builds.

A *gap* is a span of events that are lost, because Kafka deleted them before the service read them.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from changelog.connectors import cli, config, gaps
from changelog.connectors.failpoints import nowhere
from changelog.connectors.kafka import client
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import free_port
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.inputs.topics import reader as topics_reader
from changelog.envelope.errors import Kind
from tests.integration.kafka.site import Site as KafkaSite
from tests.integration.kafka.topics import delete, grow
from tests.integration.site import Site
from tests.patience import until
from tests.servers.registry import Registry
from tests.unit.debezium.change_events import event, tombstone

ITEM = ("public", "item")


class Reader(Site):
    """A service that reads events from topics, and writes its changelog into files.

    The names of the topics begin with `prefix`.
    """

    def __init__(self, broker: Broker, folder: Path, prefix: str) -> None:
        self.name, self.folder, self.prefix = prefix, folder, prefix
        self.config, self.log = folder / "topics.toml", folder / "log"
        self.client = Client(bootstrap_servers=broker.bootstrap_servers)

    def set_up(self, rest: str, *, include: Sequence[str] = (), source: str = "", topics: str = "") -> None:
        """Writes the configuration, with the text `rest` at its end."""
        self.config.write_text(
            f'name = "{self.name}"\nservice = {{ listen = "127.0.0.1:0" }}\n'
            f'sink = {{ path = "log", commit_seconds = 0.05 }}\n'
            f'[source]\nkind = "debezium"\nconnector = "postgresql"\n{source}'
            f"[source.topics]\nbootstrap_servers = {json.dumps(self.client.bootstrap_servers)}\n"
            f"include = {json.dumps(list(include) or [f'{self.prefix}.*'])}\n{topics}{rest}",
            "utf-8",
        )

    def create(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """Creates a topic, waits until the broker lists it, and returns its name."""
        name = f"{self.prefix}.{topic}"
        new_topic = NewTopic(name, partitions, config={key.replace("_", "."): value for key, value in settings.items()})
        admin = self.client.admin()
        for future in admin.create_topics([new_topic]).values():
            future.result()
        until(lambda: name in admin.topics(), f"the broker does not list the topic {name}")
        return name

    def produce(self, *messages: SourceRecord, partition: int = 0) -> None:
        """Sends messages to their topics. The prefix `app.` of a topic is replaced by the prefix of this service."""
        producer = Producer({"bootstrap.servers": self.client.bootstrap_servers})
        for message in messages:
            topic = message.topic.replace("app.", f"{self.prefix}.", 1)
            producer.produce(topic, message.value, message.key, partition, headers=list(message.headers))
        assert producer.flush(30) == 0

    def has_messages(self, count: int, entity: str = "item") -> Callable[[], bool]:
        """Returns a function that says whether the changelog has `count` messages of an entity."""
        return lambda: len(self.messages(entity)) >= count

    def committed_offsets(self, topic: str) -> list[int]:
        """Returns the offsets of the topic that are stored for the service's consumer group."""
        admin = self.client.admin()  # without this reference, Python would delete the client before its answer arrives
        [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.name)]).values()
        return [part.offset for part in future.result().topic_partitions if part.topic == topic]

    def publish(self, count: int, entity: str = "item") -> None:
        """Runs the service until the changelog has `count` messages of an entity."""
        with self.running() as service:
            service.until(self.has_messages(count, entity))


ENTITY = '[entities.item]\ntable = "public.item"\n'


@pytest.fixture
def reader(broker: Broker, own_name: str, tmp_path: Path) -> Reader:
    reader = Reader(broker, tmp_path, own_name)
    reader.set_up(ENTITY)
    return reader


def creation(number: int, **more: Any) -> SourceRecord:
    return event("c", ITEM, None, {"id": number, "status": f"s{number}"}, transaction=number, at=number, **more)


def rows(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    """Returns the operation, the key, the current and the original row of each message."""
    return [
        (
            message["value"]["provenance"]["source"]["op"],
            message["key"],
            message["value"]["current"],
            message["value"].get("original"),
        )
        for message in messages
    ]


@pytest.fixture(params=["json", "avro"])
def registry_of_events(request: pytest.FixtureRequest, starts_servers: None) -> Registry | None:
    """The registry of the events' schemas. None if the events are JSON with schemas."""
    registry: Registry | None = request.getfixturevalue("registry") if request.param == "avro" else None
    return registry


def test_a_changelog_of_events_equals_a_changelog_of_the_tables_themselves(
    database: str, broker: Broker, registry_of_events: Registry | None, own_name: str, tmp_path: Path
) -> None:
    direct = KafkaSite(
        database,
        broker,
        tmp_path,
        tables={"item": 3, "sale": 1},
        registry=registry_of_events,
        envelope="debezium",
        name=own_name,
    )
    for table in ("item", "sale"):
        direct.sql(
            f"CREATE TABLE {table} (id int PRIMARY KEY, name text, price numeric(8,2), at timestamptz, doc jsonb)",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL",
            f"INSERT INTO {table} SELECT n, 'n' || n, n / 3.0, now(), '{{\"n\": 1}}' FROM generate_series(1, 50) n",
        )
    reader = Reader(broker, tmp_path, own_name)
    plain = Site(database, tmp_path)
    plain.name, plain.config, plain.log = f"{plain.name}_2", tmp_path / "plain.toml", tmp_path / "plain"
    tables = "".join(
        f'[entities.{name}]\ntable = "public.{name}"\npartitions = {n}\n' for name, n in (("item", 3), ("sale", 1))
    )
    plain.configure(tables, path="plain")
    topics = "" if registry_of_events is None else f'registry = "{registry_of_events.url}"\n'
    reader.set_up(tables, include=[f"{own_name}.item", f"{own_name}.sale"], topics=topics)
    statements = [
        "UPDATE item SET name = 'x' || id WHERE id % 2 = 0",
        "UPDATE sale SET price = NULL WHERE id < 9",
        "UPDATE item SET id = id + 1000 WHERE id % 10 = 0",
        "DELETE FROM item WHERE id % 7 = 0",
        "INSERT INTO item VALUES (7, 'again', 1.5, now(), 'null'), (77, E'\\\\\"é', 0, NULL, NULL)",
        "DELETE FROM sale WHERE id > 40",
        "INSERT INTO item VALUES (5000, 'last', 0, NULL, NULL)",
        "INSERT INTO sale VALUES (5000, 'last', 0, NULL, NULL)",
    ]
    with plain.running() as first, direct.running() as second:
        first.until(plain.is_read)
        second.until(direct.is_read)
        with reader.running() as third:
            for statement in statements:
                plain.sql(statement)
            first.until(lambda: has_last(plain))
            third.until(lambda: has_last(reader))
    for name in ("item", "sale"):
        assert by_key(reader.messages(name)) == by_key(plain.messages(name))
        assert reader.state(name) == plain.state(name)


def has_last(site: Site) -> bool:
    """Returns whether the changelog has the last row of both tables."""
    return "5000" in site.state("item").keys() & site.state("sale").keys()


def by_key(messages: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the operations and the rows of each key, in order.

    The order of changes of different keys is not compared. This order differs, because the two services that read the
    tables began to do so at different points of the log.
    """
    changes: dict[str, list[Any]] = {}
    for op, key, current, original in rows(messages):
        changes.setdefault(key, []).append((op, current, original))
    return changes


def test_restarts_repeat_nothing(reader: Reader) -> None:
    reader.create("public.item", 3)
    for number in range(1, 4):
        reader.produce(*(creation(10 * number + n) for n in range(5)), partition=number - 1)
        reader.publish(5 * number)
    keys = [str(10 * number + n) for number in (1, 2, 3) for n in range(5)]
    assert [message["key"] for message in reader.messages("item")] == keys
    positions = [message["value"]["provenance"]["source"]["position"] for message in reader.messages("item")]
    assert positions == sorted(set(positions))


def test_a_new_topic_is_read_without_a_restart(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changelog.connectors.sources.debezium.inputs.topics.reader.CHECK_INTERVAL_S", 0.1)
    reader.set_up('[tables]\ninclude = ["public.*"]\n')
    reader.create("public.item")
    reader.produce(creation(1))
    with reader.running() as service:
        service.until(reader.has_messages(1))
        reader.create("public.sale")
        reader.produce(event("c", ("public", "sale"), None, {"id": 9, "status": "s"}))
        service.until(reader.has_messages(1, "sale"))
    assert service.said("opening the source again")


def test_events_of_other_tables_are_counted(reader: Reader) -> None:
    reader.create("public.item")
    other = [event("c", ("public", "other"), None, {"id": n, "status": "s"}, topic="app.public.item") for n in range(3)]
    reader.produce(*other, creation(1))
    with reader.running() as service:
        service.until(reader.has_messages(1))
    [line] = [line for line in service.events() if line["event"] == "events of tables that are not configured"]
    assert (line["tables"], line["count"]) == ({"public.other": 3}, 3)


def test_a_message_that_cannot_be_read_stops_the_service_until_it_is_accepted(reader: Reader) -> None:
    topic = reader.create("public.item", 2)
    reader.produce(creation(1))
    reader.produce(creation(2), partition=1)
    reader.publish(2)
    reader.produce(creation(3), SourceRecord(topic="app.public.item", key=b"{}", value=b"not json"), creation(4))
    reader.produce(creation(5), creation(6), partition=1)
    with reader.running() as service:
        error = service.ended()
    assert error.kind is Kind.STOP
    assert str(error).startswith(f"{topic}/0, before 3: a message of topic {topic} is not a change event: ")
    stored = reader.checkpoint
    assert stored.stop is not None
    assert reader.refused().startswith(f"{topic}/0, before 3: ")
    assert reader.checkpoint.stop == stored.stop
    assert reader.call("accept", str(stored.stop.position), "--as", "skip") == (0, [])
    reader.publish(6)
    assert sorted(message["key"] for message in reader.messages("item")) == list("123456")
    assert reader.checkpoint.source["progress"] == {f"{topic}/0": 4, f"{topic}/1": 3}


def lose(reader: Reader, topic: str, before: int) -> None:
    """Deletes the messages in the topic's first partition that are before the offset `before`."""
    admin = reader.client.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result()


def test_lost_offsets_are_a_gap(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    topic = reader.create("public.item", 2)
    reader.produce(*map(creation, range(3)))
    reader.publish(3)
    reader.produce(*map(creation, range(3, 6)))
    lose(reader, topic, 5)
    refusal = (
        f"partition 0 of topic {topic} begins at offset 5, but the changelog continues at offset 3; offsets lost: 2; "
        "`changelog run --over-gap` shows what is known of the gap and how to continue"
    )
    assert reader.refused() == refusal
    capsys.readouterr()
    assert cli.main(["run", "--config", str(reader.config), "--over-gap"]) == 1
    assert "consumers    see the events after the gap, in a later epoch" in capsys.readouterr().out
    assert cli.main(["status", "--config", str(reader.config)]) == 0
    assert "is lost, read by no process; `changelog run --over-gap`" in " ".join(capsys.readouterr().out.split())
    cross(reader)
    reader.publish(4)
    messages = reader.messages("item")
    assert [message["key"] for message in messages] == ["0", "1", "2", "5"]
    assert messages[-1]["value"]["provenance"]["source"]["position"].startswith("00000002/")
    assert len(reader.messages("gaps")) == 1


def cross(reader: Reader) -> None:
    """Lets the changelog continue after its gap."""
    settings = config.load(reader.config, os.environ)
    gap = gaps.find(settings, accept_settings=False, reach=nowhere)
    assert gap is not None
    gaps.cross(settings, gap, accept_settings=False, reach=nowhere)


def test_a_topic_that_was_created_again_is_a_gap(reader: Reader) -> None:
    topic = reader.create("public.item")
    reader.produce(creation(1), creation(2))
    reader.publish(2)
    delete(reader.client, topic)
    assert reader.refused("run", code=2).startswith(
        "configuration: entities.item.table: there is no event of the table public.item yet that can be read; let"
    )
    reader.create("public.item")
    reader.produce(creation(7))
    assert reader.refused().startswith(f"topic {topic} was deleted and created again; `changelog run --over-gap`")
    cross(reader)
    reader.publish(3)
    assert [message["key"] for message in reader.messages("item")] == ["1", "2", "7"]


def test_a_topic_with_more_partitions_is_refused(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("changelog.connectors.sources.debezium.inputs.topics.reader.CHECK_INTERVAL_S", 0.1)
    topic = reader.create("public.item")
    reader.produce(creation(1))
    refusal = (
        f"topic {topic} has 3 partitions, and had 1 when its events were published, so the order of a key's events is "
        "unknown"
    )
    with reader.running() as service:
        service.until(reader.has_messages(1))
        grow(reader.client, topic, 3)
        assert service.ended().message == refusal
    assert reader.refused().startswith(refusal)
    reader.produce(creation(2), partition=2)
    cross(reader)
    reader.publish(2)
    assert [message["key"] for message in reader.messages("item")] == ["1", "2"]


def test_commands_work_on_a_changelog_of_events(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    reader.create("public.item", cleanup_policy="compact")
    before, after = {"id": 1, "status": "a"}, {"id": 1, "status": "b"}
    reader.produce(event("c", ITEM, None, before), event("u", ITEM, None, after), event("d", ITEM, before, None))
    reader.produce(tombstone(ITEM, {"id": 1}))
    reader.publish(3)
    capsys.readouterr()
    file = ["--config", str(reader.config)]
    assert cli.main(["check", *file, "--json"]) == 0
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {name: finding["status"] for name, finding in findings.items()} == {
        "topics": "ok",
        "compaction": "warn",
        "offsets": "ok",
        "item": "warn",
        "delivery": "ok",
        "tables": "ok",
        "sink": "ok",
    }
    assert findings["item"]["message"] == "`before` is missing in updates, so their `original` is unknown"
    assert cli.main(["status", *file, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["lag"]["bytes"], status["slot"]["kind"], status["slot_lost"]) == (0, "topics", False)
    assert cli.main(["history", *file, "item", "1"]) == 0
    assert cli.main(["schemas", *file, "generate", "--out", str(reader.folder / "schemas")]) == 0
    capsys.readouterr()
    for word in ("rebuild", "republish"):
        options = ["--all"] if word == "republish" else []
        assert reader.refused(word, "item", *options, code=2).startswith(
            f"`{word}` is not for Debezium's events: the service reads no tables; let Debezium read the table"
        )
    assert rows(reader.messages("item")) == [
        ("create", "1", before, None),
        ("update", "1", after, None),
        ("delete", "1", None, {"id": 1}),
    ]


def test_offsets_are_committed_to_a_consumer_group_for_tools(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = reader.create("public.item")
    reader.produce(creation(1), creation(2))
    with reader.running() as service:
        service.until(lambda: reader.committed_offsets(topic) == [2])
    assert cli.main(["drop", "--config", str(reader.config), "--group", "--yes"]) == 0
    assert f"dropped group {reader.name}" in capsys.readouterr().out
    reader.produce(creation(3))
    reader.publish(3)


class ForgetfulConsumer(Consumer):
    """A consumer whose first two commits have no effect."""

    lost_commits = 0

    def commit(self, *arguments: Any, **options: Any) -> Any:
        if self.lost_commits < 2:
            self.lost_commits += 1
            return None
        return super().commit(*arguments, **options)


def test_a_lost_commit_of_offsets_is_repeated(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Consumer", ForgetfulConsumer)
    monkeypatch.setattr(topics_reader, "CHECK_INTERVAL_S", 0.2)
    topic = reader.create("public.item")
    reader.produce(creation(1), creation(2))
    with reader.running() as service:
        service.until(lambda: reader.committed_offsets(topic) == [2])


def test_an_absent_broker_is_reported_in_one_line(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 1.0)
    text = reader.config.read_text("utf-8")
    reader.config.write_text(text.replace(reader.client.bootstrap_servers, f"127.0.0.1:{free_port()}"), "utf-8")
    code, lines = reader.call("check")
    assert (code, len(lines)) == (3, 1)
    assert lines[0].startswith("changelog: asking Kafka for its topics: ")


def test_init_writes_a_configuration_from_topics(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    reader.create("public.item", 2)
    reader.create("public.keyless")
    reader.produce(creation(1), creation(2))
    reader.produce(event("c", ("public", "keyless"), None, {"id": 1, "status": "s"}, key=()))
    reader.config.unlink()
    command = ["init", "--config", str(reader.config), "--name", reader.name]
    servers = ["--debezium-servers", reader.client.bootstrap_servers]
    assert cli.main([*command, "--debezium", f"{reader.prefix}.*", *servers]) == 0
    assert "1 of 2 tables" in capsys.readouterr().out
    settings = config.load(reader.config, os.environ)
    assert (settings.source.kind, [*settings.entities]) == ("debezium", ["item"])
    assert (reader.folder / "schemas" / "item.avsc").exists()
    text = reader.config.read_text("utf-8").replace("127.0.0.1:9464", "127.0.0.1:0")
    reader.config.write_text(text.replace("data/changelog", "log"), "utf-8")
    reader.publish(2)
    assert "types = " not in text
    assert reader.refused("init", "--force", "--debezium", "nothing", *servers, code=2) == (
        "topics that match nothing have no event of a table; name other topics, or let Debezium publish an event"
    )


def test_init_guesses_the_types_of_events_without_schemas(reader: Reader) -> None:
    reader.create("public.item")
    for number in (1, 2):
        source = {"connector": "postgresql", "name": "app", "db": "shop", "schema": "public", "table": "item"}
        value = {"op": "c", "before": None, "after": {"id": number, "price": 1.5}, "source": {**source, "ts_ms": 1}}
        key, content = (json.dumps(part).encode() for part in ({"id": number}, value))
        reader.produce(SourceRecord(topic="app.public.item", key=key, value=content))
    reader.config.unlink()
    servers = ["--debezium-servers", reader.client.bootstrap_servers]
    assert reader.call("init", "--name", reader.name, "--debezium", f"{reader.prefix}.*", *servers)[0] == 0
    text = reader.config.read_text("utf-8")
    assert 'types = { "id" = "long", "price" = "double" }' in text
    reader.config.write_text(text.replace("127.0.0.1:9464", "127.0.0.1:0").replace("data/changelog", "log"), "utf-8")
    reader.publish(2)
    assert [message["value"]["current"] for message in reader.messages("item")] == [
        {"id": 1, "price": 1.5},
        {"id": 2, "price": 1.5},
    ]
