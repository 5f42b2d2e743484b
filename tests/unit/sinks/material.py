"""Rows and checkpoints for the sinks' tests: commit n holds positions 1/n/0, 1/n/2, …"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.position import Position, commit_text

START = datetime(2026, 11, 21, 3, 10, 2, 886044, tzinfo=UTC)


def row(position: Position, *, entity: str = "order", key: str | None = None, **columns: Any) -> dict[str, Any]:
    """One update, of a key of its own unless given."""
    return {
        "entity": entity,
        "partition": position.ordinal % 3,
        "key": key or f"{position.commit}-{position.ordinal}",
        "op": "update",
        "position": str(position),
        "transaction": str(700 + position.commit),
        "committed_at": START + timedelta(seconds=position.commit),
        "api_version": "v2",
        "service_name": "order-api",
        "identifier": f"req-{position.commit}",
        "provenance": f'{{"identifier":"req-{position.commit}"}}',
        "current": f'{{"n":{position.ordinal}}}',
        "original": None,
        "moved": None,
        "context": None,
        **columns,
    }


def batch(rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def commit(number: int, rows: int = 3) -> list[pa.RecordBatch]:
    """The rows of commit `number`, in two batches."""
    made = [row(Position(1, number, 2 * n)) for n in range(rows)]
    return [batch(made[:1]), batch(made[1:])]


def checkpoint(number: int, rows: int = 3, **fields: Any) -> Checkpoint:
    """The checkpoint that goes with commit `number`."""
    return Checkpoint(
        position=Position(1, number, 2 * (rows - 1)),
        through=commit_text(fields.pop("through", 10 * number)),
        epoch=1,
        source={"system_identifier": "7654321", "timeline": 1},
        **fields,
    )


def store(sink: FileSink, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint) -> None:
    """One commit."""
    sink.add(rows)
    sink.commit(checkpoint)


def read(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    return as_rows(list(read_log(path, **wanted)))


def as_rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [one for rows in batches for one in rows.to_pylist()]


def expected(*numbers: int) -> list[dict[str, Any]]:
    return [one for number in numbers for one in as_rows(commit(number))]
