"""Reads the messages that `tests/servers/debezium_events.py` captured from Debezium.

Also reads what the service publishes for the same rows when it reads the database without Debezium.
"""

import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from changelog.connectors.sources.debezium.decode.events import SourceRecord

FOLDER = Path(__file__).parent / "captured"


def messages(name: str) -> list[SourceRecord]:
    """Returns the messages of the file `name`.jsonl, topic by topic."""
    schemas: list[str] = []
    result = []
    for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines():
        read = json.loads(line)
        if "avro" in read:
            continue
        if "schema" in read:
            schemas.append(read["schema"])
            continue
        result.append(
            SourceRecord(
                topic=read["topic"],
                key=_content(read["key"], schemas),
                value=_content(read["value"], schemas),
                headers=[(header, _content(content, schemas)) for header, content in read["headers"]],
                timestamp_ms=read["timestamp"],
            )
        )
    return result


def _content(read: str | list[Any] | dict[str, str] | None, schemas: Sequence[str]) -> bytes | None:
    if read is None:
        return None
    if isinstance(read, str):
        return read.encode()
    if isinstance(read, dict):
        return b64decode(read["base64"])
    number, payload = read
    return f'{{"schema":{schemas[number]},"payload":{payload}}}'.encode()


def published(name: str) -> dict[str, dict[str, str | None]]:
    """Returns what the service publishes for the table `types` when it reads the database without Debezium: for each
    row's id, the JSON of each column.
    """
    rows: dict[str, dict[str, str | None]] = json.loads((FOLDER / f"{name}.published.json").read_text("utf-8"))
    return rows


def avro_schemas(name: str) -> dict[int, Any]:
    """Returns the Avro schemas of the messages in the file `name`.jsonl, by the ids of the schemas."""
    lines = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return {line["id"]: line["avro"] for line in lines if "avro" in line}
