"""Stores records as a file log, with or without an archive, for tests that read them back."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.sinks.files.manifest import ArchiveFile, Manifest, Replaced
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.model import Record, position_of

SETTINGS: Mapping[str, Any] = {"order": {"key": ["id"]}, "guest": {"key": ["region", "id"]}}

COMMITS = 3


def store(path: Path, records: Sequence[Record], *, archived: int = 0) -> FileLog:
    """Writes the records to a file log, in at most `COMMITS` commits of the sink. Each of these commits has one or more
    complete transactions of the database, as when a service reads a backlog.

    If `archived` is not 0, also writes an archive of the first `archived` commits. Readers then read the archive
    instead of these commits. In the archive, each entity has one file, with its rows sorted by key.
    """
    numbers = sorted({position_of(item).commit for item in records})
    part = {number: index * COMMITS // len(numbers) for index, number in enumerate(numbers)}
    commits = [list(rows) for _, rows in groupby(records, key=lambda item: part[position_of(item).commit])]
    sink = FileSink(path)
    sink.recover()
    for rows in commits:
        position = position_of(rows[-1])
        sink.add([batch.from_records(rows)])
        sink.commit(Checkpoint(position=position, through=f"{position.commit:016X}", epoch=1, settings=SETTINGS))
    sink.close()
    if archived:
        _archive(path, commits[:archived])
    return FileLog(path)


def _archive(path: Path, commits: Sequence[Sequence[Record]]) -> None:
    files = []
    ordered = sorted((item for rows in commits for item in rows), key=lambda item: (item.entity, item.place.key))
    for entity, grouped in groupby(ordered, key=lambda item: item.entity):
        rows = list(grouped)
        positions = sorted(str(position_of(item)) for item in rows)
        name = f"archive/entity={entity}/day=2026-11-21/0.parquet"
        (path / name).parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([batch.from_records(rows)]), path / name, store_schema=False)
        files.append(ArchiveFile(path=name, entity=entity, rows=len(rows), first=positions[0], last=positions[-1]))
    manifest = Manifest(format=1, log=Replaced(first=1, last=len(commits)), files=tuple(files))
    (path / "manifest").mkdir()
    (path / "manifest" / "1.json").write_bytes(manifest.to_json())
