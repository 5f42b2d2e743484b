"""Tests events without old rows. The service takes the old rows from its *state*, a store of all rows as they were
last published.

So the original of each change must be equal to the row that was last published.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.state.before_images import BeforeImages
from tests.unit.debezium.change_events import event
from tests.unit.debezium.memory import App, Topics, entity
from tests.unit.debezium.writer import TABLES, Writer
from tests.unit.state.memory_store import MemoryStore

CRASHES = 0.03


def without_old_rows(message: SourceRecord) -> SourceRecord:
    """Returns the message as the connector for PostgreSQL writes it if the table does not have REPLICA IDENTITY FULL.

    An update then has no old row. The old row of a delete has only the key, and nulls in place of all other values.
    """
    if message.value is None:
        return message
    value = json.loads(message.value)
    payload = value["payload"]
    if payload["before"] is not None:
        payload["before"] = {"id": payload["before"]["id"], "status": None} if payload["op"] == "d" else None
    return msgspec.structs.replace(message, value=json.dumps(value).encode())


def check(app: App) -> int:
    """Checks that each original is the last state of its key, and returns the number of originals."""
    last: dict[tuple[str, str], Any] = {}
    count = 0
    for message in app.messages():
        if message["entity"] == "schemas":
            continue
        value, place = message["value"], (message["entity"], message["key"])
        source = value["provenance"]["source"]
        assert not source.keys() & {"unavailable", "unavailableOriginal"}, source["position"]
        if source["op"] in ("update", "delete"):
            assert value["original"] == last[place], source["position"]
            count += 1
        last[place] = value["current"]
    return count


@pytest.mark.parametrize("number", range(2))
def test_old_rows_of_postgresql_are_completed_in_spite_of_crashes(seed: int, number: int, tmp_path: Path) -> None:
    random, store = Random(seed + number), MemoryStore()

    def open_state() -> BeforeImages:
        store.lose(random.choice([0, 0, 1, 3]))
        if random.random() < 0.2:
            store.clear()
        return BeforeImages(store, lambda: FileLog(tmp_path / "log"))

    writer = Writer(random)
    entities = [entity(name) for name in TABLES]
    app = App(Topics(writer.parts, random), tmp_path / "log", entities, open_state=open_state)
    for _ in range(2):
        writer.write(30)
        app.topics.parts = {
            part: [without_old_rows(message) for message in messages] for part, messages in writer.parts.items()
        }
        app.run(crashes=CRASHES)
    ops = Counter(op for changes in writer.expected.values() for _, op, *_ in changes)
    assert check(app) == ops["update"] + ops["delete"] > 20


def published(
    tmp_path: Path, messages: Sequence[SourceRecord], name: str, **settings: Any
) -> list[tuple[str, Any, Any]]:
    """Publishes these events with a service that keeps a state. Returns the op, the current row and the original row of
    each published message.
    """
    topics = Topics({f"{name}/0": messages}, Random(1), at_once=True)
    store = MemoryStore()

    def open_state() -> BeforeImages:
        return BeforeImages(store, lambda: FileLog(tmp_path / "log"))

    entities = [entity(name, table=("shop", name))]
    app = App(topics, tmp_path / "log", entities, open_state=open_state, **settings)
    app.run()
    values = [message["value"] for message in app.messages(name)]
    assert all("unavailable" not in value["provenance"]["source"] for value in values)
    return [(value["provenance"]["source"]["op"], value["current"], value.get("original")) for value in values]


A, B = {"id": 1, "status": "a"}, {"id": 1, "status": "b"}


def test_a_value_that_debezium_does_not_send_comes_from_the_state(tmp_path: Path) -> None:
    """Debezium writes the placeholder in place of a long value that did not change."""
    long = {"id": 1, "status": "long" * 1000, "note": "x"}
    columns = {"id": "int32", "status": "string", "note": "string"}
    unsent = {**long, "status": "__debezium_unavailable_value", "note": "y"}
    messages = [
        event("c", ("shop", "item"), None, long, columns=columns, transaction=1),
        event("u", ("shop", "item"), None, unsent, columns=columns, transaction=2),
        event("u", ("shop", "item"), unsent, {**unsent, "note": "z"}, columns=columns, transaction=3),
    ]
    y, z = {**long, "note": "y"}, {**long, "note": "z"}
    assert published(tmp_path, messages, "item") == [("create", long, None), ("update", y, long), ("update", z, y)]


def flat(row: dict[str, Any]) -> SourceRecord:
    return SourceRecord(topic="app.shop.item", key=b'{"id":1}', value=json.dumps(row).encode())


def test_the_originals_of_flat_rows_come_from_the_state(tmp_path: Path) -> None:
    deleted = {"id": 1, "status": None, "__op": "d", "__deleted": "true"}
    messages = [flat({**A, "__op": "c"}), flat({**B, "__op": "u"}), flat(deleted)]
    types = {("shop", "item"): {"id": "int", "status": "string"}}
    translation = TranslationSettings(types=types, unwrapped=True, connector="postgresql")
    assert published(tmp_path, messages, "item", translation=translation) == [
        ("create", A, None),
        ("update", B, A),
        ("delete", None, B),
    ]


def mongodb(op: str, document: dict[str, Any] | None) -> SourceRecord:
    source = {"connector": "mongodb", "name": "app", "db": "shop", "collection": "orders", "ts_ms": 1}
    after = None if document is None else json.dumps(document)
    payload = {"op": op, "before": None, "after": after, "source": source, "ts_ms": 1}
    return SourceRecord(topic="app.shop.orders", key=b'{"id":"5"}', value=json.dumps(payload).encode())


def test_the_documents_of_mongodb_are_completed(tmp_path: Path) -> None:
    """The event of the second update lacks the document, so the document stays as it was after the first update."""
    first, second = {"_id": 5, "n": 1}, {"_id": 5, "n": 2}
    messages = [mongodb("c", first), mongodb("u", second), mongodb("u", None), mongodb("d", None)]
    a, b = {"id": 5, "document": first}, {"id": 5, "document": second}
    assert published(tmp_path, messages, "orders", connector="mongodb") == [
        ("create", a, None),
        ("update", b, a),
        ("update", b, b),
        ("delete", None, b),
    ]


def cassandra(op: str, **cells: Any) -> SourceRecord:
    names = ("id", "status", "note")
    after = {name: {"value": cells[name], "set": True} if name in cells else None for name in names}
    source = {"connector": "cassandra", "cluster": "one", "keyspace": "shop", "table": "guest", "ts_ms": 1_000}
    payload = {"op": op, "after": after, "source": source, "ts_ms": 1}
    return SourceRecord(topic="app.shop.guest", key=b'{"id":1}', value=json.dumps(payload).encode())


def test_the_cells_of_cassandra_are_completed(tmp_path: Path) -> None:
    """An event has only those cells that were set by the write."""
    types = {("shop", "guest"): {"id": "int", "status": "string", "note": "string"}}
    messages = [
        cassandra("i", id=1, status="a", note="x"),
        cassandra("u", id=1, status="b"),
        cassandra("u", id=1, note=None),
        cassandra("d", id=1),
    ]
    first = {"id": 1, "status": "a", "note": "x"}
    second, third = {**first, "status": "b"}, {"id": 1, "status": "b", "note": None}
    translation = TranslationSettings(types=types)
    assert published(tmp_path, messages, "guest", connector="cassandra", translation=translation) == [
        ("create", first, None),
        ("update", second, first),
        ("update", third, second),
        ("delete", None, third),
    ]
