"""Tests how `changelog init` guesses the types of columns from their values if the events have no schemas."""

import json
from typing import Any

from changelog.connectors.sources.debezium.decode.events import Changed, SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.guesses import Guesses
from tests.unit.debezium.change_events import event


def plain(after: dict[str, Any], before: dict[str, Any] | None = None, **source: Any) -> SourceRecord:
    source = {"connector": "postgresql", "db": "app", "schema": "public", "table": "item", "ts_ms": 1, **source}
    payload = {"op": "c" if before is None else "u", "before": before, "after": after, "source": source}
    return SourceRecord(topic="app.public.item", key=b'{"id":1}', value=json.dumps(payload).encode())


def guessed(*messages: SourceRecord) -> dict[str, str]:
    guesses = Guesses(TranslationSettings())
    for message in messages:
        [changed] = guesses.translate([message])
        assert isinstance(changed, Changed)
    return dict(guesses.types(("public", "item")))


def test_types_are_guessed_from_values() -> None:
    row = {"id": 1, "paid": True, "name": "x", "price": 1.5, "big": -7, "tags": ["a"], "doc": {"a": 1}, "no": None}
    assert guessed(plain(row)) == {
        "id": "long",
        "paid": "boolean",
        "name": "string",
        "price": "double",
        "big": "long",
        "tags": "json",
        "doc": "json",
        "no": "string",
    }


def test_the_values_of_all_messages_count() -> None:
    first = {"id": 1, "a": None, "b": 1, "c": 1}
    second = {"id": 1, "a": 5, "b": 2.5, "c": "text"}
    assert guessed(plain(first), plain(second), plain(second, first)) == {
        "id": "long",
        "a": "long",
        "b": "double",
        "c": "json",
    }
    assert guessed(plain(second, first)) == {"id": "long", "a": "long", "b": "double", "c": "json"}


def test_cells_of_cassandra_have_the_types_of_their_values() -> None:
    cells = {"id": {"value": 1, "set": True}, "name": {"value": "x", "set": True}, "other": None}
    message = plain(cells, connector="cassandra", schema=None, keyspace="public")
    assert guessed(message) == {"id": "long", "name": "string", "other": "string"}


def test_no_types_are_guessed_for_documents_or_for_events_with_schemas() -> None:
    assert guessed(event("c", ("public", "item"), None, {"id": 1, "status": "s"})) == {}
    document = plain({}, connector="mongodb", schema=None, db="public", table=None, collection="item")
    payload = json.loads(document.value or b"") | {"after": json.dumps({"_id": 1})}
    guesses = Guesses(TranslationSettings())
    message = SourceRecord(topic="t", key=b'{"id":"1"}', value=json.dumps(payload).encode())
    assert isinstance(guesses.translate([message])[0], Changed)
    assert guesses.types(("public", "item")) == {}
