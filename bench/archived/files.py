"""Writes the files that a changelog would have after 100 days: an archive, its list of files (the manifest), and the
log of the last day.

The changes are not read from a database; `bench.archived.changes` generates them.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.archived.changes import DAYS, Numbers, World
from changelog.connectors.sinks.files.manifest import MANIFEST_FORMAT, ArchiveFile, Manifest, Replaced
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.position import Position, commit_text

LEVELS = ((0, 78), (78, 92))
"""For each level of the archive, its first day and the day after its last day.

A *level* has the changes of many days, merged and sorted by key, in files whose ranges of keys do not overlap. Each day
after the levels has a file of its own, except the last day, which is in the log. After 99 days with weekly runs of
`archive.py --compact levels`, an archive has about this layout.
"""

FILE_ROWS = 1_000_000
GROUP_ROWS = 8_192
BATCH_ROWS = 16_384
COMMIT_ROWS = 10_000

_BLOOM_FILTERS = {name: {"ndv": GROUP_ROWS, "fpp": 0.01} for name in ("key", "identifier")}


def write(path: Path, world: World) -> Manifest:
    """Writes the archive, its manifest and the log, and returns the manifest."""
    entries = [
        _file(path, world, world.of_keys(first, end, begin * world.day_changes, until * world.day_changes), folder)
        for begin, until in LEVELS
        for folder in [f"from={_day(begin)}/day={_day(until - 1)}/run{begin}"]
        for first, end in _key_ranges(world, (until - begin) * world.day_changes)
    ]
    for day in range(LEVELS[-1][1], DAYS - 1):
        numbers = world.by_key(day * world.day_changes, (day + 1) * world.day_changes)
        entries.append(_file(path, world, numbers, f"day={_day(day)}/run{day}"))
    manifest = Manifest(format=MANIFEST_FORMAT, log=Replaced(first=1, last=0), files=tuple(entries))
    (path / "manifest").mkdir()
    (path / "manifest" / "1.json").write_bytes(manifest.to_json())
    write_log(path, world, (DAYS - 1) * world.day_changes)
    os.sync()  # bench/history.py removes the files from memory; pages that are not on disk yet would stay in memory
    return manifest


def _day(number: int) -> str:
    return str(np.datetime64("2026-08-13") + number)


def _key_ranges(world: World, rows: int) -> Iterator[tuple[int, int]]:
    files = -(-rows // FILE_ROWS)
    for number in range(files):
        yield world.key_count * number // files, world.key_count * (number + 1) // files


def _file(path: Path, world: World, numbers: Numbers, name: str) -> ArchiveFile:
    """Writes one file as the archiving job does, and returns its entry for the manifest.

    Unlike that job, this function compresses with zstd's level 1. Level 9 makes a file only about 5 % smaller, and
    takes much longer.
    """
    folder = path / "archive" / "entity=order" / Path(name).parent
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{Path(name).name}-{len(list(folder.iterdir())):05d}.parquet"
    with pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=["entity", "partition", "op", "api_version", "service_name"],
        write_statistics=["entity", "key", "position", "committed_at"],
        bloom_filter_options=_BLOOM_FILTERS,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for start in range(0, len(numbers), BATCH_ROWS):
            rows = world.rows(numbers[start : start + BATCH_ROWS])
            writer.write_table(pa.Table.from_batches([rows]), row_group_size=GROUP_ROWS)
    ends = world.rows(np.array([numbers.min(), numbers.max(), numbers[0], numbers[-1]])).to_pylist()
    return ArchiveFile(
        path=str(file.relative_to(path)),
        entity="order",
        rows=len(numbers),
        first=ends[0]["position"],
        last=ends[1]["position"],
        keys=(ends[2]["key"], ends[3]["key"]),
    )


def write_log(path: Path, world: World, begin: int) -> None:
    """Writes the changes from number `begin` on to the log, through the sink of the service."""
    sink = FileSink(path)
    sink.recover()
    for start in range(begin, world.changes, COMMIT_ROWS):
        rows = world.rows(np.arange(start, min(start + COMMIT_ROWS, world.changes), dtype=np.int64))
        last = Position.parse(rows.column("position")[-1].as_py())
        sink.add([rows])
        sink.commit(
            Checkpoint(position=last, through=commit_text(last.commit), epoch=1, settings={"order": {"key": ["id"]}})
        )
    sink.close()
