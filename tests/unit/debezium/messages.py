"""Makes messages of Debezium in JSON, with or without a schema."""

import json
from typing import Any

from changelog.connectors.sources.debezium.decode.events import Changed, Event, SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator

Schema = dict[str, Any]


def text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def scalar(type_: str, name: str | None = None, *, optional: bool = True, **parameters: str) -> Schema:
    """Returns the schema of a column as the JsonConverter of Kafka Connect writes it."""
    schema: Schema = {"type": type_, "optional": optional}
    if name is not None:
        schema |= {"name": name, "version": 1}
    return {**schema, "parameters": parameters} if parameters else schema


def struct(name: str, fields: dict[str, Schema], *, optional: bool = False) -> Schema:
    return {
        "type": "struct",
        "fields": [{**schema, "field": field} for field, schema in fields.items()],
        "optional": optional,
        "name": name,
    }


def source(connector: str, **members: Any) -> dict[str, Any]:
    return {"version": "3.6.3.Final", "connector": connector, "name": "shop", "snapshot": "false", **members}


POSTGRES = source("postgresql", db="app", schema="public", table="orders", txId=7, ts_ms=1, ts_us=1002)


def event(op: str, before: Any, after: Any, block: dict[str, Any] = POSTGRES, **members: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": block, "op": op, "ts_ms": 9, "transaction": None, **members}


def plain(payload: Any, key: Any = None, **members: Any) -> SourceRecord:
    """Returns a message without a schema."""
    topic = members.pop("topic", "shop.public.orders")
    return SourceRecord(topic=topic, key=None if key is None else text(key), value=text(payload), **members)


def typed(columns: dict[str, Schema], payload: Any, key: tuple[dict[str, Schema], Any] | None = None) -> SourceRecord:
    """Returns a message with a schema. `columns` are those of the table. `key` has the key's columns and values."""
    row = struct("shop.public.orders.Value", columns, optional=True)
    schema = struct("shop.public.orders.Envelope", {"before": row, "after": row})
    key_content = None if key is None else {"schema": struct("Key", key[0]), "payload": key[1]}
    return SourceRecord(
        topic="shop.public.orders",
        key=None if key_content is None else text(key_content),
        value=text({"schema": schema, "payload": payload}),
    )


def translate(message: SourceRecord, **settings: Any) -> Event:
    (translated,) = Translator(TranslationSettings(**settings)).translate([message])
    return translated


def changed(message: SourceRecord, **settings: Any) -> Changed:
    translated = translate(message, **settings)
    assert isinstance(translated, Changed)
    return translated
