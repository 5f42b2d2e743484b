"""Measures how long a new process takes to find all changes of one key among 100 million changes. Also measures how
long it takes to find all changes that one request made.

The changes are of 10 million orders over 100 days. The benchmark writes the files of the changelog itself, in the
layout that weekly runs of `archive.py --compact levels` leave. There are two *levels*, of 78 and 14 days: the changes
of these days are merged into files whose ranges of keys do not overlap. Each of the next seven days has a file of its
own. The last day, a hundredth of the changes, is still in the log.

Each round searches for another key or another request. The first search of a round is *cold*: before it, the files are
removed from the page cache. The second search is *warm*: it repeats the first.

For comparison, the *limit* is the time that a running process needs to read only those bytes that any search must read.
A search must read the footer of each file that can have a matching row. Statistics and Bloom filters then exclude some
row groups. In each of the other row groups, the search must read the column in which it searches. If a row of the group
really matches, the search must read all columns of the group.
"""

import argparse
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.archived.changes import World, request_of
from bench.archived.files import write
from changelog.connectors.sinks.files.bloom import bloom_filters
from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.connectors.sinks.files.manifest import read_manifest
from changelog.connectors.sinks.files.selection import Selection, texts

CHANGES, QUICK_CHANGES = 100_000_000, 1_000_000
CHANGES_A_KEY = 10
BLOCK_BYTES = 512

CONFIG = """
name = "booking"
source = { kind = "postgres", dsn = "postgresql://nowhere" }
sink = { path = "changelog" }
tables = { include = ["*"] }
"""

Span = tuple[Path, int, int]
"""A file, an offset in it, and a number of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The figures of one search: how long its process took, the CPU time of the process, and how much it read from the
    disk.
    """

    seconds: float
    cpu_seconds: float
    read_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The medians of all rounds. `limit_mib` says how much any search must read, and `limit_seconds` how long a running
    process takes to read just this.
    """

    cold: Search
    warm: Search
    limit_mib: float
    limit_seconds: float


def main() -> None:
    """Writes the changelog, unless the folder already has one. Then measures searches by key and by identifier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, help=f"number of changes: {CHANGES:,}, with --quick {QUICK_CHANGES:,}")
    parser.add_argument("--quick", action="store_true", help="write fewer changes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to keep the changelog for further runs")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    changes = options.changes or (QUICK_CHANGES if options.quick else CHANGES)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="changelog-bench-"))
    try:
        _run(World(changes, changes // CHANGES_A_KEY), folder, options)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def _run(world: World, folder: Path, options: argparse.Namespace) -> None:
    log = folder / "changelog"
    if not log.exists():
        log.mkdir(parents=True)
        began = time.monotonic()
        write(log, world)
        print(f"wrote {world.changes:,} changes in {time.monotonic() - began:.0f} s", flush=True)
    (folder / "changelog.toml").write_text(CONFIG, "utf-8")
    gib = sum(file.stat().st_size for file in _files(log)) / (1 << 30)
    print(
        f"{gib:.2f} GiB in {len(_files(log))} files, {gib * (1 << 30) / world.changes:.0f} bytes a change", flush=True
    )
    start = _search(["history", "--help"], folder)
    figures = {
        "key": _by_key(world, folder, options.rounds),
        "identifier": _by_identifier(world, folder, options.rounds),
    }
    print(f"start of `changelog history --help`: {start.seconds:.2f} s, {start.cpu_seconds:.2f} s of CPU")
    for name, shown in figures.items():
        for side in ("cold", "warm"):
            search = getattr(shown, side)
            print(
                f"{name:12}{side:6}{search.seconds:>7.2f} s, {search.cpu_seconds:.2f} s of CPU, "
                f"{search.read_mib:.1f} MiB from the disk"
            )
        print(f"{name:12}limit {shown.limit_seconds:>7.3f} s for {shown.limit_mib:.1f} MiB")
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        values = {name: asdict(shown) for name, shown in figures.items()}
        print(json.dumps({"benchmark": "history", "changes": world.changes, "figures": values, "machine": machine}))


def _by_key(world: World, folder: Path, rounds: int) -> Figures:
    rng = random.Random(world.changes)
    keys = [f"{rng.randrange(world.key_count):010d}" for _ in range(rounds)]
    return _measured(
        folder,
        [(["history", "order", key, "--json"], Selection(entities=["order"], key=key)) for key in keys],
        lines=CHANGES_A_KEY,
    )


def _by_identifier(world: World, folder: Path, rounds: int) -> Figures:
    rng = random.Random(world.changes)
    numbers = np.array([rng.randrange(world.changes) for _ in range(rounds)])
    requests = [bytes(request).decode() for request in request_of(numbers)]
    return _measured(
        folder,
        [(["who", "--identifier", request, "--json"], Selection(identifier=request)) for request in requests],
        lines=1,
    )


def _measured(folder: Path, searches: Sequence[tuple[list[str], Selection]], *, lines: int) -> Figures:
    cold, warm, limits = [], [], []
    for command, selection in searches:
        spans = list(_needed(folder / "changelog", selection))
        _evict(folder / "changelog")
        limits.append((sum(size for _, _, size in spans) / (1 << 20), _seconds_to_read(spans)))
        _evict(folder / "changelog")
        cold.append(_search(command, folder, lines))
        warm.append(_search(command, folder, lines))
    return Figures(
        cold=_median(cold),
        warm=_median(warm),
        limit_mib=statistics.median(mib for mib, _ in limits),
        limit_seconds=statistics.median(seconds for _, seconds in limits),
    )


def _median(searches: Sequence[Search]) -> Search:
    return Search(
        seconds=statistics.median(search.seconds for search in searches),
        cpu_seconds=statistics.median(search.cpu_seconds for search in searches),
        read_mib=statistics.median(search.read_mib for search in searches),
    )


def _search(command: list[str], folder: Path, lines: int | None = None) -> Search:
    """Runs a search in a new process, and checks that it prints this number of lines."""
    words = [str(Path(sys.executable).parent / "changelog"), *command]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if lines is not None and len(output.splitlines()) != lines:
        raise SystemExit(f"{command} printed {len(output.splitlines())} lines instead of {lines}")
    return Search(
        seconds=seconds,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        read_mib=(after.ru_inblock - before.ru_inblock) * BLOCK_BYTES / (1 << 20),
    )


def _files(log: Path) -> list[Path]:
    return sorted(log.rglob("*.parquet"))


def _evict(log: Path) -> None:
    for file in _files(log):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _needed(log: Path, selection: Selection) -> Iterator[Span]:
    """Yields the parts of files that any search for the selected rows must read."""
    manifest = read_manifest(log)
    assert manifest is not None
    files = [log / file.path for file in manifest.files if selection.may_be_in_file(file)]
    name = "key" if selection.key is not None else "identifier"
    value = texts([str(selection.key or selection.identifier)])[0]
    for file in [*files, *(log_file(log, sequence) for sequence in sequences(log))]:
        with pq.ParquetFile(file) as parquet, bloom_filters(file) as filters:
            size = file.stat().st_size
            yield file, size - parquet.metadata.serialized_size - 8, parquet.metadata.serialized_size + 8
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                columns = [group.column(index) for index in range(group.num_columns)]
                if selection.may_be_in_group(group, filters.may_hold):
                    column = parquet.read_row_group(number, columns=[name]).column(name)
                    has_row = pc.index(column, value).as_py() >= 0
                    yield from (
                        (file, _start(chunk), chunk.total_compressed_size)
                        for chunk in columns
                        if has_row or chunk.path_in_schema == name
                    )


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    start: int = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    return start


def _seconds_to_read(spans: Sequence[Span]) -> float:
    began = time.perf_counter()
    for file, start, size in spans:
        descriptor = os.open(file, os.O_RDONLY)
        os.pread(descriptor, size, start)
        os.close(descriptor)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
