"""Makes rows, checkpoints and archives for tests of the sinks. Commit n has rows at the positions 1/n/0, 1/n/2, …"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest, Replaced
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.position import Position, commit_text

START = datetime(2026, 11, 21, 3, 10, 2, 886044, tzinfo=UTC)


def row(position: Position, *, entity: str = "order", key: str | None = None, **columns: Any) -> dict[str, Any]:
    """Returns an update, as a row of the changelog. If `key` is None, the update has a key of its own."""
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
    """Returns the rows of commit `number`, in two batches."""
    changes = [row(Position(1, number, 2 * n)) for n in range(rows)]
    return [batch(changes[:1]), batch(changes[1:])]


def checkpoint(number: int, rows: int = 3, **fields: Any) -> Checkpoint:
    """Returns the checkpoint of commit `number`."""
    return Checkpoint(
        position=Position(1, number, 2 * (rows - 1)),
        through=commit_text(fields.pop("through", 10 * number)),
        epoch=1,
        source={"system_identifier": "7654321", "timeline": 1},
        **fields,
    )


def store(sink: FileSink, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint) -> None:
    """Stores one commit."""
    sink.add(rows)
    sink.commit(checkpoint)


def read(path: Path, **selection: Any) -> list[dict[str, Any]]:
    return as_rows(list(read_log(path, **selection)))


def as_rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [change for rows in batches for change in rows.to_pylist()]


def expected(*numbers: int) -> list[dict[str, Any]]:
    return [change for number in numbers for change in as_rows(commit(number))]


def write_archive(
    path: Path,
    number: int,
    files: Mapping[str, Sequence[dict[str, Any]]],
    last: int,
    *,
    group_rows: int = 1_000,
    with_keys: bool = False,
    bloom: bool = False,
) -> None:
    """Writes archive files and a manifest. The manifest says that they replace the log files up to number `last`.

    - `files` has the rows of each file, by its path in the archive.
    - If `with_keys` is true, the manifest has the files' keys.
    - If `bloom` is true, the files have Bloom filters.
    """
    filters = {name: {"ndv": 50, "fpp": 0.01} for name in ("key", "identifier")}
    entries = []
    for name, rows in files.items():
        file = path / "archive" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_batches([batch(rows)]),
            file,
            store_schema=False,
            row_group_size=group_rows,
            use_dictionary=False,
            bloom_filter_options=filters if bloom else None,
        )
        positions, keys = ([change[column] for change in rows] for column in ("position", "key"))
        entries.append(
            ArchiveFile(
                path=f"archive/{name}",
                entity=rows[0]["entity"],
                rows=len(rows),
                first=min(positions),
                last=max(positions),
                keys=(min(keys), max(keys)) if with_keys else None,
            )
        )
    folder = path / "manifest"
    folder.mkdir(exist_ok=True)
    manifest = Manifest(format=1, log=Replaced(first=1, last=last), files=tuple(entries))
    temporary = folder / f".changelog-{number}"
    temporary.write_bytes(manifest.to_json())
    temporary.rename(folder / f"{number}.json")  # like the archiving job, never shows a partly written manifest
