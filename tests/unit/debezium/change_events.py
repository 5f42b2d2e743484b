"""Makes messages like those that Debezium's connectors write, in JSON with schemas."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from changelog.connectors.sources.debezium.decode.events import SourceRecord

COLUMNS: Mapping[str, str] = {"id": "int32", "status": "string"}
STARTED_MS = 1_795_000_000_000

Row = Mapping[str, Any]


def event(
    op: str,
    table: tuple[str, str],
    before: Row | None,
    after: Row | None,
    *,
    transaction: int | None = 7,
    at: int = 0,
    columns: Mapping[str, str] = COLUMNS,
    key: Sequence[str] = ("id",),
    connector: str = "postgresql",
    snapshot: str = "false",
    headers: Sequence[tuple[str, bytes | None]] = (),
    topic: str | None = None,
    order: int | None = None,
) -> SourceRecord:
    """Returns the event for a change of a row. `at` is the time of the event, in milliseconds after STARTED_MS.

    `order` is the number of the event in its transaction, if Debezium counts the events of transactions.
    """
    row = _struct([{**_column(name, type_), "optional": name not in key} for name, type_ in columns.items()])
    holder = after or before or {}
    source = _source(table, transaction, at, connector, snapshot)
    value = {
        "schema": _struct(
            [{**row, "field": "before", "optional": True}, {**row, "field": "after", "optional": True}]
            + [_column(name, "string") for name in ("op",)]
        ),
        "payload": {
            "before": before,
            "after": after,
            "source": source,
            "op": op,
            "ts_ms": STARTED_MS + at,
            **_counted(transaction, order),
        },
    }
    return SourceRecord(
        topic=topic or f"app.{'.'.join(table)}",
        key=json.dumps(
            {
                "schema": _struct([_column(name, columns[name]) for name in key]),
                "payload": {name: holder[name] for name in key},
            }
        ).encode(),
        value=json.dumps(value).encode(),
        headers=headers,
        timestamp_ms=STARTED_MS + at,
    )


def boundary(transaction: int, counts: Mapping[str, int] | None = None) -> SourceRecord:
    """Returns the event that Debezium writes at the beginning of a transaction. If `counts` is given, returns the event
    that Debezium writes at the end; it says how many events each table has in the transaction.
    """
    ends = counts is not None
    payload = {
        "status": "END" if ends else "BEGIN",
        "id": f"{transaction}:{'9' if ends else '1'}",
        "event_count": sum((counts or {}).values()) if ends else None,
        "data_collections": [{"data_collection": name, "event_count": count} for name, count in (counts or {}).items()],
        "ts_ms": STARTED_MS,
    }
    value = {"schema": _struct([_column("status", "string")]), "payload": payload}
    return SourceRecord(topic="app.transaction", key=None, value=json.dumps(value).encode())


def _counted(transaction: int | None, order: int | None) -> dict[str, object]:
    if order is None:
        return {}
    return {"transaction": {"id": f"{transaction}:1{order}", "total_order": order, "data_collection_order": 1}}


def tombstone(table: tuple[str, str], key: Row) -> SourceRecord:
    """Returns a tombstone: the message without a value that Debezium writes after the event for a delete."""
    text = {"schema": _struct([_column(name, COLUMNS[name]) for name in key]), "payload": key}
    return SourceRecord(topic=f"app.{'.'.join(table)}", key=json.dumps(text).encode(), value=None)


def key_header(name: str, key: Row) -> tuple[str, bytes]:
    """Returns a header that links the two events for a changed key: a delete and a create.

    The header `newkey` of the delete has the key of the create. The header `oldkey` of the create has the key of the
    delete.
    """
    text = {"schema": _struct([_column(column, COLUMNS[column]) for column in key]), "payload": key}
    return f"__debezium.{name}", json.dumps(text).encode()


def stamp(
    content: bytes, *, transaction: int, at: int, prefix: str = "provenance", order: int | None = None
) -> SourceRecord:
    """Returns the event for a logical message with which an application has stamped its transaction."""
    payload = {
        "op": "m",
        "ts_ms": STARTED_MS + at,
        "source": _source(("", ""), transaction, at, "postgresql", "false"),
        "message": {"prefix": prefix, "content": base64.b64encode(content).decode()},
        **_counted(transaction, order),
    }
    value = {"schema": _struct([_column("op", "string")]), "payload": payload}
    return SourceRecord(topic="app.message", key=None, value=json.dumps(value).encode(), timestamp_ms=STARTED_MS + at)


def truncate(table: tuple[str, str], *, transaction: int = 7, at: int = 0) -> SourceRecord:
    """Returns the event for a TRUNCATE."""
    source = _source(table, transaction, at, "postgresql", "false")
    payload = {"before": None, "after": None, "source": source, "op": "t", "ts_ms": STARTED_MS + at}
    value = {"schema": _struct([_column("op", "string")]), "payload": payload}
    return SourceRecord(topic=f"app.{'.'.join(table)}", key=None, value=json.dumps(value).encode())


def _source(
    table: tuple[str, str], transaction: int | None, at: int, connector: str, snapshot: str
) -> dict[str, object]:
    return {
        "version": "3.5.0.Final",
        "connector": connector,
        "name": "app",
        "ts_ms": STARTED_MS + at,
        "snapshot": snapshot,
        "db": "shop",
        "schema": table[0],
        "table": table[1],
        "txId": transaction,
        "lsn": 1000 + at,
    }


def _struct(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": False}


def _column(name: str, type_: str) -> dict[str, Any]:
    return {"type": type_, "optional": True, "field": name}
