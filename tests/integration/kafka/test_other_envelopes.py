"""Tests a service that publishes Debezium's events, or flat rows, instead of messages in our own format.

The service restarts, repairs its changelog, and continues after changes were lost (a *gap*). A *signal* is an
operator's request for a repair. A *ghost* is a row that the changelog has and the table lacks.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
import structlog
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from changelog.connectors import cli, config, gaps
from changelog.connectors.failpoints import nowhere
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.reading.consume import Consumed, consumed
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.wiring.kafka import sink_settings
from changelog.connectors.wiring.sinks import open_sink, read_gaps, read_versions
from changelog.connectors.wiring.sources import database as source_of
from changelog.connectors.wiring.sources import read_entities
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition
from changelog.envelope.model import Op, Place
from changelog.envelope.position import Position
from changelog.envelope.signal import Signal
from tests.integration.kafka.site import Site
from tests.integration.kafka.topics import delete
from tests.integration.kafka.topics import read as read_topic
from tests.servers.registry import Registry
from tests.unit.records import record

TABLE = ("CREATE TABLE item (id int PRIMARY KEY, name text)", "ALTER TABLE item REPLICA IDENTITY FULL")
CHANGES = (
    "INSERT INTO item VALUES (3, 'c')",
    "UPDATE item SET name = 'B' WHERE id = 2",
    "UPDATE item SET id = 4 WHERE id = 3",
    "DELETE FROM item WHERE id = 1",
)
GHOST = 1000

MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(database: str, broker: Broker, tmp_path: Path) -> MakeSite:
    def make(envelope: str, partitions: int = 1, **settings: Any) -> Site:
        site = Site(database, broker, tmp_path, tables={"item": partitions}, envelope=envelope, **settings)
        site.sql(*TABLE, "INSERT INTO item VALUES (1, 'a'), (2, 'b')")
        return site

    return make


def publish(site: Site, signal: Signal | None = None) -> None:
    """Runs the service until it has read the table. Then sends a signal, and waits until the service has done what the
    signal asks. By then, the service has published all earlier changes. Without `signal`, the service is asked to
    publish the row 2 again.
    """
    signal = signal or Signal(
        do="republish", id=f"k{site.checkpoint and site.checkpoint.position}", entity="item", keys=("2",)
    )
    with psycopg.connect(site.dsn, autocommit=True) as connection, site.running() as service:
        service.until(site.is_read)
        send(connection, signal, None)
        service.until(lambda: site.ended(signal.id))


def topic(site: Site, entity: str = "item") -> list[Consumed]:
    """Returns the messages of an entity's topic, as any consumer sees them, in the order of their positions."""
    client = sink_settings(site.settings, kafka_of(site)).client
    return sorted(consumed(client, f"{site.settings.name}.{entity}"), key=lambda message: message.headers["position"])


def read(messages: Sequence[Consumed]) -> list[tuple[Any, Any]]:
    """Returns the key and the value of each message. The value of an event is its operation and both rows. The value of
    a tombstone is None.
    """
    pairs = []
    for message in messages:
        value = None if message.value is None else json.loads(message.value)["payload"]
        if value is not None and "op" in value:
            value = (value["op"], value["before"], value["after"])
        pairs.append((json.loads(message.key)["payload"]["id"], value))
    return pairs


def item(id_: int, name: str) -> dict[str, Any]:
    return {"id": id_, "name": name}


def test_changes_are_published_as_events_of_debezium(make_site: MakeSite) -> None:
    site = make_site("debezium")
    with site.running() as service:
        service.until(site.is_read)
    site.sql(*CHANGES)
    publish(site)
    a, b, c = item(1, "a"), item(2, "b"), item(3, "c")
    assert read(topic(site)) == [
        (1, ("r", None, a)),
        (2, ("r", None, b)),
        (3, ("c", None, c)),
        (2, ("u", b, item(2, "B"))),
        (3, ("d", c, None)),
        (3, None),
        (4, ("c", None, item(4, "c"))),
        (1, ("d", a, None)),
        (1, None),
        (2, ("r", None, item(2, "B"))),
    ]


def test_changes_are_published_as_flat_rows(make_site: MakeSite) -> None:
    site = make_site("flat")
    with site.running() as service:
        service.until(site.is_read)
    site.sql(*CHANGES)
    publish(site)
    assert read(topic(site)) == [
        (1, item(1, "a")),
        (2, item(2, "b")),
        (3, item(3, "c")),
        (2, item(2, "B")),
        (3, None),
        (4, item(4, "c")),
        (1, None),
        (2, item(2, "B")),
    ]


@pytest.mark.parametrize("envelope", ["debezium", "flat"])
def test_restarts_repeat_nothing_and_keep_the_versions(make_site: MakeSite, envelope: str) -> None:
    site = make_site(envelope, partitions=3)
    for number in range(3):
        site.sql(f"UPDATE item SET name = 'n{number}'", f"DELETE FROM item WHERE id = {number}")
        publish(site, Signal(do="republish", id=f"k{number}", entity="item", keys=("2",)))
        count = len(topic(site))
        with site.running() as service:
            service.until(site.is_read)
        assert len(topic(site)) == count
    positions = [(message.headers["position"], message.value is None) for message in topic(site)]
    assert len(set(positions)) == len(positions)
    assert [version.entity for version in read_versions(site.log)] == ["item"]


@pytest.mark.parametrize("envelope", ["debezium", "flat"])
def test_a_rebuild_deletes_ghosts(make_site: MakeSite, envelope: str) -> None:
    site = make_site(envelope, partitions=3)
    with site.running() as service:
        service.until(site.is_read)
    plant(site, str(GHOST))
    plant(site, str(GHOST + 1))
    publish(site, Signal(do="republish", id="k", entity="item", keys=(str(GHOST), "2")))
    assert [value for key, value in read(topic(site)) if key == GHOST][1:] == deletes(envelope, GHOST)
    publish(site, Signal(do="rebuild", id="r", entity="item"))
    assert [value for key, value in read(topic(site)) if key == GHOST + 1][1:] == deletes(envelope, GHOST + 1)
    assert [value for key, value in read(topic(site)) if key == 1][1:] == [
        item(1, "a") if envelope == "flat" else ("r", None, item(1, "a"))
    ]


def deletes(envelope: str, id_: int) -> list[Any]:
    """Returns the values of the messages that delete a ghost. The service does not know the ghost's last row, so an
    event has only its key.
    """
    return [None] if envelope == "flat" else [("d", {"id": id_, "name": None}, None), None]


def plant(site: Site, key: str) -> None:
    """Appends to the changelog a row that the table never had. The service must be stopped."""
    [version] = [version for version in read_versions(site.log) if version.entity == "item"][-1:]
    with closing(open_sink(site.settings)) as sink:
        sink.prepare(read_entities(site.settings, source_of(site.settings)))
        checkpoint = sink.recover()
        assert checkpoint is not None
        assert checkpoint.position is not None
        position = replace(checkpoint.position, ordinal=checkpoint.position.ordinal + 2)
        row = record(Op.CREATE, f'{{"id":{key},"name":"ghost"}}', key=key, entity="item")
        provenance = row.envelope.provenance
        source = replace(provenance.source, position=position, name=site.settings.name)
        row = replace(
            row,
            place=Place(key=key, partition=partition(key.encode(), site.settings.entities["item"].partitions)),
            envelope=replace(row.envelope, provenance=replace(provenance, source=source)),
        )
        sink.add([batch.with_shapes(batch.from_records([row]), {"item": version.columns})])
        sink.commit(replace(checkpoint, position=position))


def test_an_older_checkpoint_is_noticed(make_site: MakeSite) -> None:
    """The last message is a tombstone. In the flat envelope, a tombstone is the delete itself, so its position must be
    compared with the checkpoint, too.
    """
    site = make_site("flat")
    with site.running() as service:
        service.until(site.is_read)
    site.sql("DELETE FROM item WHERE id = 2")
    publish(site, Signal(do="republish", id="k", entity="item", keys=("1",)))
    site.sql("DELETE FROM item WHERE id = 1")
    with site.running() as service:
        service.until(lambda: len(topic(site)) == 5)
    assert topic(site)[-1].value is None
    entities = read_entities(site.settings, source_of(site.settings))
    with closing(open_sink(site.settings)) as sink:
        sink.prepare(entities)
        checkpoint = sink.recover()
        assert checkpoint is not None
        assert checkpoint.position is not None
        assert str(checkpoint.position) == topic(site)[-1].headers["position"]
        older = replace(checkpoint.position, commit=checkpoint.position.commit - 1)
        sink.commit(replace(checkpoint, position=Position(older.epoch, older.commit, older.ordinal)))
        with pytest.raises(ChangelogError, match="an older checkpoint has overwritten the newer one") as caught:
            sink.recover()
    assert caught.value.kind is Kind.DIVERGED


@pytest.mark.parametrize("topic_is_lost", [False, True])
def test_the_service_continues_over_a_gap(make_site: MakeSite, topic_is_lost: bool) -> None:
    site = make_site("flat")
    publish(site)
    site.sql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
        "DELETE FROM item WHERE id = 1",
    )
    if topic_is_lost:
        delete(sink_settings(site.settings, kafka_of(site)).client, f"{site.settings.name}.item")
    gap = gaps.find(site.settings, accept_settings=False, reach=nowhere)
    assert gap is not None
    with structlog.testing.capture_logs() as logs:
        gaps.cross(site.settings, gap, accept_settings=False, reach=nowhere)
    entities = [line["entity"] for line in logs if line["event"] == "left out a truncate"]
    assert entities == ["item"] * topic_is_lost
    with site.running() as service:
        service.until(lambda: site.is_read() and not (site.checkpoint and site.checkpoint.repairs.get("open")))
    messages = [message for message in topic(site) if message.headers["position"] > "00000002"]
    assert sorted(read(messages), key=str) == [(1, None)] * (not topic_is_lost) + [(2, item(2, "b"))]
    assert len(read_gaps(site.log)) == 1


def kafka_of(site: Site) -> config.KafkaConfig:
    return cast(config.KafkaConfig, site.settings.sink)


def test_another_envelope_needs_other_topics(make_site: MakeSite) -> None:
    site = make_site("flat")
    with site.running() as service:
        service.until(site.is_read)
    text = site.config.read_text("utf-8").replace('envelope = "flat"', 'envelope = "changelog"')
    site.config.write_text(text, "utf-8")
    site.settings = config.load(site.config, os.environ)
    refusal = r'envelope is "changelog", but topic .*item was begun with "flat"'
    with pytest.raises(ChangelogError, match=refusal) as caught, site.running(accept=True) as service:
        service.until(lambda: False)
    assert caught.value.kind is Kind.SETTINGS


def test_commands_that_read_our_own_entities_work(make_site: MakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    site = make_site("debezium")
    with site.running() as service:
        service.until(site.is_read)
    file = str(site.config)
    assert cli.main(["tail", "--config", file, "--no-follow", "schemas"]) == 0
    assert cli.main(["history", "--config", file, "schemas", "item"]) == 0
    assert cli.main(["status", "--config", file]) == 0
    assert cli.main(["check", "--config", file]) == 0
    assert "item" in capsys.readouterr().out
    assert site.log.epoch() == 1


@pytest.mark.parametrize("envelope", ["debezium", "flat"])
def test_both_envelopes_can_be_in_avro(
    make_site: MakeSite, registry: Registry, envelope: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = make_site(envelope, registry=registry)
    with site.running() as service:
        service.until(site.is_read)
        site.sql("ALTER TABLE item ADD COLUMN price numeric(8,2)", "INSERT INTO item VALUES (3, 'c', 1.5)")
        site.sql("DELETE FROM item WHERE id = 1")
    publish(site)
    name = f"{site.settings.name}.item"
    assert cli.main(["schemas", "--config", str(site.config), "register"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "is registered" in line]
    assert [line[1] for line in lines] == [f"{name}-key", f"{name}-value"]
    contexts = [SerializationContext(name, field) for field in (MessageField.KEY, MessageField.VALUE)]
    settings = sink_settings(site.settings, kafka_of(site))
    with SchemaRegistryClient({"url": registry.url}) as client:
        assert [len(client.get_versions(f"{name}-{part}")) for part in ("key", "value")] == [1, 2]
        read_avro = AvroDeserializer(client)
        pairs: list[list[Any]] = [
            [None if part is None else read_avro(part, context) for part, context in zip(parts, contexts, strict=True)]
            for parts in ((message.key(), message.value()) for message in read_topic(settings, "item"))
        ]
    rows = [value if envelope == "flat" or value is None else value["after"] for _, value in pairs]
    assert [key["id"] for key, _ in pairs][:4] == [1, 2, 3, 1]
    assert rows[0] == item(1, "a")
    assert (str(rows[2]["price"]), rows[3]) == ("1.50", None)
