"""Tests that this version of the service continues a changelog that an earlier version wrote to Kafka topics.

`stored/kafka` holds the topics as the earlier version left them after it had been killed five times. The earlier
version was the last one that had no folder `connectors/capture`.

When the earlier version stopped, it had read only a part of the table `photo`. For a repair, it still had to read the
rows of two keys of `item` again. Its last transaction was aborted. The database cluster of that time no longer exists,
so the service continues with another cluster.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.wiring.sinks import read_versions
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Record
from tests.integration.kafka.site import Site
from tests.patience import PATIENCE_S

STORED = Path(__file__).parents[1] / "stored" / "kafka"
NAME = "stay"
SIGNAL = "f8c993e71622a3c1"
PHOTOS = 300


class Message(msgspec.Struct, frozen=True):
    """A stored message. A tombstone has no value."""

    transaction: int
    outcome: str
    topic: str
    partition: int
    key: str
    value: str | None
    timestamp: int
    headers: list[tuple[str, str]]


def stored_messages() -> list[Message]:
    """Returns the messages of one transaction after the other. The messages of a partition are in the order of their
    offsets.
    """
    lines = (STORED / "messages.jsonl").read_text("utf-8").splitlines()
    return [msgspec.json.decode(line, type=Message) for line in lines]


def load(broker: Broker) -> None:
    """Creates the topics, and sends the messages in their original transactions. Commits or aborts each transaction as
    the earlier version did.

    Each new topic gets a new id, so the checkpoints are changed to contain the new ids.
    """
    topics: dict[str, dict[str, Any]] = json.loads((STORED / "topics.json").read_text("utf-8"))
    client = Client(bootstrap_servers=broker.bootstrap_servers)
    admin = client.admin()
    new_topics = [NewTopic(name, topic["partitions"], 1, config=topic["settings"]) for name, topic in topics.items()]
    for future in admin.create_topics(new_topics).values():
        future.result()
    ids = dict.fromkeys(topics, "")
    while not all(ids.values()):
        ids |= read_ids(admin, set(topics))

    producer = Producer(client.config(transactional_id=f"changelog.{NAME}.{NAME}"))
    producer.init_transactions(PATIENCE_S)
    for _, messages in itertools.groupby(stored_messages(), lambda message: message.transaction):
        producer.begin_transaction()
        outcome = _send(producer, messages, {topics[name]["id"]: ids[name] for name in topics})
        assert producer.flush(PATIENCE_S) == 0
        if outcome == "committed":
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)


def _send(producer: Producer, messages: Iterator[Message], new_ids: dict[str, str]) -> str:
    """Sends the messages of one transaction. Returns the transaction's outcome."""
    for message in messages:
        value = message.value
        if message.topic == f"{NAME}.positions":
            assert value is not None
            for old, new in new_ids.items():
                value = value.replace(old, new)
        target = (message.topic, value, message.key, message.partition)
        producer.produce(*target, timestamp=message.timestamp, headers=list(message.headers))
    return message.outcome


def contents(records: Sequence[Record]) -> list[tuple[str, str, bytes]]:
    """Returns position, key and current row of each record. The row is empty for a delete."""
    return [
        (str(record.envelope.provenance.source.position), record.place.key, bytes(record.envelope.current or b""))
        for record in records
    ]


def operations(site: Site, entity: str, old_records: Mapping[str, Sequence[Record]]) -> list[tuple[str, str]]:
    """Returns the operation and the key of each change after those in `old_records`."""
    new_records = site.records(entity)[len(old_records[entity]) :]
    return [(str(record.envelope.provenance.source.op.value), record.place.key) for record in new_records]


def test_the_service_finishes_the_reads_and_repairs_of_a_changelog_stored_in_topics(
    database: str, broker: Broker, tmp_path: Path
) -> None:
    load(broker)
    site = Site(database, broker, tmp_path, tables={"item": 3, "photo": 1}, name=NAME)
    site.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text, amount int)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        "INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, 50) AS n WHERE n NOT IN (4, 8, 9)",
        "INSERT INTO item VALUES (90, 'item 9', 9), (91, 'item 91', NULL)",
        "UPDATE item SET amount = 700 WHERE id = 7",
        "CREATE TABLE photo (id int PRIMARY KEY, title text)",
        f"INSERT INTO photo SELECT n, 'photo ' || n FROM generate_series(1, {PHOTOS}) AS n",
    )
    stored, old_records = site.checkpoint, {name: site.records(name) for name in ("item", "photo")}
    assert stored is not None
    assert stored.windows["photo"]["leaves"]
    assert Repairs.parse(stored.repairs).open
    assert all(state["amount"] for state in site.state("item").values() if state["id"] < 51), (
        "readers see an aborted update"
    )
    with pytest.raises(ChangelogError, match="but the changelog comes from cluster"), site.running() as service:
        service.until(lambda: False)

    with site.running(accept_cluster=True) as service:
        service.until(lambda: site.is_read() and site.ended(SIGNAL))
        site.sql("INSERT INTO item VALUES (51, 'item 51', 51)")
        service.until(lambda: "51" in site.state("item"))
    with site.running() as service:  # this run continues from a checkpoint that this version stored
        site.sql("DELETE FROM item WHERE id = 51", "UPDATE photo SET title = 'late' WHERE id = 1")
        service.until(lambda: "51" not in site.state("item") and site.state("photo")["1"]["title"] == "late")

    for name, records in old_records.items():
        all_records = site.records(name)
        assert records
        assert contents(all_records)[: len(records)] == contents(records)
        positions = [record.envelope.provenance.source.position for record in all_records]
        assert positions == sorted(set(positions))
        assert site.state(name) == site.table(name)
    assert operations(site, "item", old_records) == [("read", "7"), ("create", "51"), ("delete", "51")]
    assert sorted(operations(site, "photo", old_records)) == sorted(
        [("update", "1"), *(("read", str(number)) for number in range(1, PHOTOS + 1))]
    )
    assert {version.entity for version in read_versions(site.log)} == {"item", "photo"}
