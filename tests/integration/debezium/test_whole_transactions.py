"""Tests that the service publishes the events of a transaction together, even if these events are in several
partitions.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sources.debezium.assembling import whole
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.inputs import Placed
from changelog.connectors.sources.debezium.inputs.topics.reader import TopicsInput
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings
from changelog.debezium import ChangeEvent, DebeziumEngine, FileStore
from changelog.envelope.key import partition_batch
from tests.integration.debezium.site import connector
from tests.integration.kafka.test_debezium_topics import Reader
from tests.patience import PATIENCE_S
from tests.servers import engine_jars

TRANSACTIONS, PARTITIONS = 40, 3
ENTITIES = "".join(f'[entities.{name}]\ntable = "public.{name}"\nkey = ["id"]\n' for name in ("item", "sale"))


def events_of(dsn: str, folder: Path, random: Random) -> tuple[list[SourceRecord], list[list[tuple[str, str, str]]]]:
    """Writes transactions to the database. Returns Debezium's messages, and the changes of each transaction.

    A change is a tuple of its operation, its table and its key.
    """
    expected_changes: list[list[tuple[str, str, str]]] = []

    def write() -> None:
        with psycopg.connect(dsn) as connection:
            for number in range(TRANSACTIONS):
                changes: list[tuple[str, str, str]] = []
                connection.execute(
                    "SELECT pg_logical_emit_message(true, 'provenance', %s)",
                    [f'{{"serviceName":"till","identifier":"{number}"}}'],
                )
                for index in range(random.randrange(1, 8)):
                    table, key = random.choice(["item", "sale"]), 1000 + 100 * number + index
                    connection.execute(f"INSERT INTO {table} VALUES (%s, 'new')".encode(), [key])
                    changes.append(("create", table, str(key)))
                connection.execute("UPDATE item SET status = 'paid' WHERE id = 0")
                connection.execute("INSERT INTO other VALUES (%s)", [number])
                connection.commit()
                expected_changes.append([*changes, ("update", "item", "0")])

    messages: list[SourceRecord] = []
    engine: DebeziumEngine

    def handle(events: Sequence[ChangeEvent]) -> None:
        if not expected_changes:
            write()
        for event in events:
            messages.append(
                SourceRecord(
                    topic=event.topic.replace("shop.", "app.", 1),
                    key=event.key_with_schema(),
                    value=event.value_with_schema(),
                )
            )
            ends = event.topic == "shop.transaction" and b'"END"' in (event.value or b"")
            if ends and sum(b'"END"' in (message.value or b"") for message in messages) == TRANSACTIONS:
                engine.close()

    more = {"provide_transaction_metadata": "true", "table_include_list": "public.item,public.sale,public.other"}
    engine = DebeziumEngine(connector(dsn, **more), store=FileStore(folder), jars=engine_jars("postgres"))
    engine.run(handle)
    return messages, expected_changes


@pytest.fixture
def messages_and_changes(
    database: str, tmp_path: Path, seed: int
) -> tuple[list[SourceRecord], list[list[tuple[str, str, str]]]]:
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("item", "sale"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, status text)".encode())
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
        connection.execute("INSERT INTO item VALUES (0, 'new')")
    return events_of(database, tmp_path / "store", Random(seed))


def partition_of(message: SourceRecord) -> int:
    if message.topic not in ("app.public.item", "app.public.sale"):
        return 0
    return int(partition_batch(pa.array([message.key or b""]), PARTITIONS)[0])


def test_transactions_are_published_as_a_whole_in_whatever_order_their_topics_arrive(
    messages_and_changes: tuple[list[SourceRecord], list[list[tuple[str, str, str]]]],
    broker: Broker,
    own_name: str,
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "WAIT_S", PATIENCE_S)  # a busy machine may not send all events within the usual time
    messages, expected_changes = messages_and_changes
    reader = Reader(broker, tmp_path, own_name)
    reader.set_up(ENTITIES, topics=f'transactions = "{own_name}.transaction"\nheld_mib = 1\n')
    for topic, count in (("public.item", PARTITIONS), ("public.sale", PARTITIONS), ("public.other", 1)):
        reader.create(topic, count)
    for topic in ("message", "transaction"):
        reader.create(topic)
    assert reader.call("check")[0] == 0
    by_part: dict[tuple[str, int], list[SourceRecord]] = {}
    for message in messages:
        by_part.setdefault((message.topic, partition_of(message)), []).append(message)
    parts = list(by_part)
    Random(seed).shuffle(parts)
    with reader.running() as service:
        for topic, number in parts:
            reader.produce(*by_part[topic, number], partition=number)
        count = 1 + sum(map(len, expected_changes))
        service.until(lambda: len(reader.messages("item")) + len(reader.messages("sale")) >= count)
        assert not service.said("transactions are published as they arrived")
    rows: dict[str, list[tuple[str, str, str]]] = {}
    transactions: dict[str, str] = {}
    for published in sorted(reader.messages("item") + reader.messages("sale"), key=position):
        provenance = published["value"]["provenance"]
        source = provenance["source"]
        if source["op"] == "read":
            continue
        rows.setdefault(source["position"][:25], []).append((source["op"], published["entity"], published["key"]))
        assert provenance["identifier"] == str(len(rows) - 1), "the row has the stamp of another transaction"
        assert transactions.setdefault(source["transaction"], source["position"][:25]) == source["position"][:25]
    assert list(rows.values()) == expected_changes


def position(message: dict[str, Any]) -> str:
    return str(message["value"]["provenance"]["source"]["position"])


def test_a_topic_of_transactions_with_two_partitions_is_refused(
    broker: Broker, own_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(broker, tmp_path, own_name)
    topics = f'transactions = "{own_name}.transaction"\n'
    entity = '[entities.item]\ntable = "public.item"\nkey = ["id"]\n'
    reader.set_up(entity, include=[f"{own_name}.public.*"], topics=topics)
    reader.create("public.item")
    assert reader.call("check") == (0, [])
    assert f"there is no topic {own_name}.transaction yet" in " ".join(capsys.readouterr().out.split())
    reader.create("transaction", 2)
    line = f"topic {own_name}.transaction has 2 partitions, so it does not tell the order of transactions"
    assert reader.call("check") == (1, [])
    assert line in " ".join(capsys.readouterr().out.split())
    assert reader.refused("run").startswith(f"{line}; create the topic again with one partition, or leave out ")


def test_a_paused_partition_is_later_read_from_where_it_was_paused(
    broker: Broker, own_name: str, tmp_path: Path
) -> None:
    reader = Reader(broker, tmp_path, own_name)
    topics = [reader.create("a"), reader.create("b")]
    names = [f"{topic}/0" for topic in topics]
    settings = TopicsSettings(client=reader.client, include=topics, group=own_name)
    with closing(TopicsInput(settings, None, None)) as topics_input:

        def read(count: int) -> list[tuple[str, bytes | None]]:
            items: list[Placed] = []
            while len(items) < count:
                items += [item for item in topics_input.read(1.0, 0.0).placed if item.message is not None]
            return [(item.part, None if item.message is None else item.message.value) for item in items]

        def produce(*values: str) -> None:
            for topic in ("a", "b"):
                reader.produce(
                    *(SourceRecord(topic=f"app.{topic}", key=None, value=value.encode()) for value in values)
                )

        produce("1", "2")
        assert sorted(read(4)) == [(name, value) for name in names for value in (b"1", b"2")]
        topics_input.pause([names[0]])
        produce("3", "4")
        assert read(2) == [(names[1], b"3"), (names[1], b"4")]
        assert topics_input.read(1.0, 0.0).placed == []
        topics_input.pause([])
        assert read(2) == [(names[0], b"3"), (names[0], b"4")]
