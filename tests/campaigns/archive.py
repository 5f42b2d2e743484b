"""Kills the archive job again and again, while the service writes to a broker and a reader reads the archive.

Rounds are grouped in blocks, each with its own database and topics. A round is a run of the job. Most runs are killed
with all their processes, after a random time or at a fail point (a line of code with a name). Some runs also compact
the archive. Runs with `--continuous` do not end until they are killed.

At random moments, a reader reads the files that the newest manifest lists. The rows that it finds in a partition must
be the first ones of this partition, and none of these may be missing or repeated. The manifest names a position up to
which the archive is complete, and the reader must find every row up to there.

At the end of a block, a last run is not disturbed. After this run, the archive must have each committed message once
and in order.
"""

import json
import os
import random
import shutil
import threading
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from changelog.connectors.servers.kafka import find_lib, temporary_broker
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.envelope.columnar.batch import SCHEMA
from tests.campaigns._judge import Row, Verdict, judge_rows
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import TABLES, Oracle
from tests.campaigns._pieces import Campaign, Figures, Piece
from tests.campaigns._service import Service, is_read
from tests.campaigns._spark_job import ENDS_S, SparkJob
from tests.campaigns._topics import Positions, Read, rows
from tests.servers import fresh_database

BLOCK = 10
KEEP = "CHANGELOG_KEEP"
"""An environment variable. It can name a folder. If a block fails, its files are copied there."""

SETTINGS = {"fsync": "off", "max_wal_size": "4GB"}
SCALE = Scale(universe=1_000, big=300, big_every=300, pause_s=0.2)
CATCH_UP_S = 120.0
READS_EVERY_S = 1.5

POINTS = ("archive:written", "archive:moved", "archive:committed", "archive:cleared")
"""The fail points at which runs are killed. Only a run that compacts the archive reaches the last of them."""

WRITTEN_MAX = 30
"""About how many files a run writes, temporary files included."""

STREAMING = ("--continuous", "--every", "2")
WAYS = ((), ("--compact", "all"), STREAMING, ("--compact", "all", "--offsets", "500"))
"""The options with which the job is run, in turn."""

CONFIG = """
name = "{name}"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = 16
[sink]
kind = "kafka"
bootstrap_servers = "{broker}"
commit_seconds = 0.05
[service]
listen = "127.0.0.1:0"
"""


def campaign() -> Campaign:
    """A round is a run of the job. BLOCK rounds share one database."""
    return Campaign(site=_site, rounds=BLOCK)


@contextmanager
def _site() -> Iterator[Callable[[Piece], Figures]]:
    with temporary_server(settings=SETTINGS) as server, temporary_broker(find_lib()) as broker:

        def block(piece: Piece) -> Figures:
            with fresh_database(server) as dsn:
                folder = broker.folder.parent / f"archive-{piece.first}"
                folder.mkdir()
                try:
                    with closing(_Block(dsn, broker.bootstrap_servers, folder, piece.seed)) as running:
                        return running.run(piece.rounds)
                except BaseException:
                    if keep_folder := os.environ.get(KEEP):
                        shutil.copytree(folder, Path(keep_folder) / f"archive-{piece.seed}", dirs_exist_ok=True)
                    raise
                finally:
                    shutil.rmtree(folder)

        yield block


@dataclass(frozen=True, slots=True)
class _PartitionRead:
    """What a reader found in one partition: how many rows, and the position of the last one."""

    rows: int
    last: str


@dataclass(frozen=True, slots=True)
class _ArchiveRead:
    """What a reader found in all partitions. `complete` has the position up to which the archive was complete, by
    entity.
    """

    parts: Mapping[tuple[str, int], _PartitionRead]
    complete: Mapping[str, str]


class _Reader(threading.Thread):
    """Reads the archive at random moments until `stop`."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._path, self._rng = path, rng
        self._stopping = threading.Event()
        self.reads: list[_ArchiveRead] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._rng.random() * READS_EVERY_S):
                self.reads.append(_read_archive(self._path))
        except BaseException as error:
            self.failure = error
            raise

    def stop(self) -> None:
        """Stops the reader. If it failed, raises AssertionError."""
        self._stopping.set()
        if self.ident is not None:
            self.join()
        if self.failure is not None:
            raise AssertionError(f"a reader failed: {self.failure}") from self.failure


def archived(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the rows of all files that the newest complete manifest lists. Of the product's code, this function uses
    only the schema of the files.
    """
    return _listed_rows(path, _newest_manifest(path), columns)


def _newest_manifest(path: Path) -> Mapping[str, Any]:
    for file in sorted((path / "manifest").glob("*.json"), key=lambda file: int(file.stem), reverse=True):
        try:
            manifest: Mapping[str, Any] = json.loads(file.read_bytes())
        except ValueError:
            continue  # the manifest is not yet completely written
        return manifest
    return {"files": [], "complete": {}}


def _listed_rows(path: Path, manifest: Mapping[str, Any], columns: Sequence[str] | None) -> pa.Table:
    tables = [SCHEMA.empty_table().select(columns or SCHEMA.names)]
    for file in manifest["files"]:
        with pq.ParquetFile(path / file["path"]) as parquet:
            assert parquet.schema_arrow.equals(SCHEMA), f"{file['path']} has other columns"
            tables.append(parquet.read(columns=columns))
        assert tables[-1].num_rows == file["rows"], f"{file['path']} and the manifest disagree about the number of rows"
    return pa.concat_tables(tables)


def _read_archive(path: Path) -> _ArchiveRead:
    manifest = _newest_manifest(path)
    table = _listed_rows(path, manifest, ["entity", "partition", "position"])
    ends = table.group_by(["entity", "partition"]).aggregate(
        [("position", "count"), ("position", "count_distinct"), ("position", "max")]
    )
    parts = {}
    for row in ends.to_pylist():
        assert row["position_count"] == row["position_count_distinct"], f"a reader saw rows twice: {row}"
        parts[row["entity"], row["partition"]] = _PartitionRead(row["position_count"], row["position_max"])
    return _ArchiveRead(parts, manifest["complete"])


class _Block:
    def __init__(self, dsn: str, servers: str, folder: Path, seed: int) -> None:
        self._dsn, self._servers = dsn, servers
        self._rng = random.Random(seed)
        self._name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        self._path = folder / "archived"
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(name=self._name, dsn=dsn, broker=servers) + ENTITIES, "utf-8")
        prepare(dsn, SCALE.universe // 2)
        self._service = Service(config)
        self._load = Load(dsn, SCALE, self._rng.randrange(1 << 32))
        self._oracle = Oracle(dsn, folder / "frames", f"oracle_{self._name}")
        self._positions = Positions(servers, self._name, self._name)
        arguments = ("--config", str(config), "--archive", str(self._path))
        self._job = SparkJob("archive", folder, arguments)
        self._reader = _Reader(self._path, random.Random(self._rng.randrange(1 << 32)))
        self._runs: Counter[str] = Counter()
        self._points: list[str] = []
        self._takes_s = 0.0

    def close(self) -> None:
        """Stops all processes and threads."""
        self._job.kill()
        self._service.kill()
        self._load.stop()
        self._oracle.stop()
        self._positions.close()

    def run(self, rounds: int) -> Figures:
        """Runs the job `rounds` times, and compares the archive with the committed changes."""
        self._service.start()
        since = self._service.slot_made(self._dsn, self._name)
        self._load.start()
        self._service.until_stored(
            self._positions.newest, lambda checkpoint: checkpoint.position is not None, CATCH_UP_S
        )
        self._reader.start()
        try:
            for number in range(rounds):
                self._round(number)
            self._catch_up()
            summary = self._finish("--compact", "all")
        finally:
            self._reader.stop()
        return self._judge(since, summary)

    def _round(self, number: int) -> None:
        options = WAYS[number % len(WAYS)]
        self._service.check()
        if self._rng.random() < 0.2:
            self._service.kill()
            self._service.start()
        chance = self._rng.random()
        if options == STREAMING:
            self._kill(options)
        elif chance < 0.1:
            self._finish(*options)
            self._runs["left alone"] += 1
        elif chance < 0.5:
            self._crash(options)
        else:
            self._kill(options)

    def _finish(self, *options: str) -> Mapping[str, object]:
        began = time.monotonic()
        summary = self._job.finish(*options)
        self._takes_s = time.monotonic() - began
        return summary

    def _kill(self, options: Sequence[str]) -> None:
        """Kills a run after a random time, or as soon as it has written some files.

        A run writes files only for a small part of its time, which a random moment would seldom hit.
        """
        self._job.start(*options)
        if self._takes_s and self._rng.random() < 0.4:
            code = self._job.ended(self._rng.uniform(0.2, 1.2) * self._takes_s)
        else:
            code = self._wait_for_files(self._rng.randrange(1, WRITTEN_MAX))
        self._job.kill()
        assert code in (None, 0), f"the job ended with {code}: {self._job.said()[-3000:]}"
        killed = "killed while it streamed" if options == STREAMING else "killed"
        self._runs["ended before" if code == 0 else killed] += 1

    def _wait_for_files(self, files: int) -> int | None:
        """Waits until the job has written this number of files, temporary files included. If the job ends before,
        returns its exit code.
        """
        before, deadline = self._files(), time.monotonic() + ENDS_S
        new_files: set[str] = set()
        while (code := self._job.ended(0.02)) is None and len(new_files) < files:
            new_files |= self._files() - before
            assert time.monotonic() < deadline, f"the job still runs after {ENDS_S:.0f} s: {self._job.said()[-3000:]}"
        return code

    def _files(self) -> set[str]:
        return {name for _, _, names in os.walk(self._path) for name in names}

    def _crash(self, options: Sequence[str]) -> None:
        """Lets a run crash at a fail point. If the run has options, it may also pass the point once, and crash when it
        reaches the point again.
        """
        if not self._points:
            self._points = self._rng.sample(POINTS, len(POINTS))
        point = self._points.pop()
        count = self._rng.choice((1, 2)) if options else 1
        self._job.start(*options, fail_at=f"{point}:{count}")
        code = self._job.ended(ENDS_S)
        self._job.kill()
        assert code is not None, f"the job still runs after {ENDS_S:.0f} s: {self._job.said()[-3000:]}"
        self._runs["ended before" if code == 0 else point] += 1

    def _catch_up(self) -> None:
        self._load.stop()
        end = last_write(self._dsn)
        self._service.until_stored(
            self._positions.newest, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), CATCH_UP_S
        )
        self._service.stop()
        self._oracle.wait(end, CATCH_UP_S)
        self._oracle.stop()

    def _judge(self, since: int, summary: Mapping[str, object]) -> Figures:
        verdict, counts = Verdict(), Read()
        archived_rows = _rows(archived(self._path))
        self._compare(archived_rows, list(rows(self._servers, self._name, verdict, counts)), verdict)
        judge_rows(self._dsn, iter(archived_rows), self._oracle.expected(since), verdict)
        self._check_readers(archived_rows)
        assert not list((self._path / "archive" / ".staging").glob("*/*.parquet"))
        return {
            "runs": dict(sorted(self._runs.items())),
            "reads": len(self._reader.reads),
            "complete_reads": sum(bool(read.complete) for read in self._reader.reads),
            "messages": counts.committed,
            "rows": verdict.rows,
            "changes": verdict.changes,
            "transactions": verdict.transactions,
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "reordered": verdict.reordered,
            "run_s": [round(self._takes_s, 1)],
        }

    def _compare(self, archived_rows: Sequence[Row], topic_rows: Sequence[Row], verdict: Verdict) -> None:
        """Checks that the archive has each message of the topics once and unchanged."""
        archived_counts, expected_counts = Counter(archived_rows), Counter(topic_rows)
        for row in expected_counts - archived_counts:
            verdict.lost += 1
            verdict.note("not in the archive", row)
        for row in archived_counts - expected_counts:
            verdict.repeated += 1
            verdict.note("twice in the archive, or not in the topics", row)

    def _check_readers(self, archived_rows: Sequence[Row]) -> None:
        positions = defaultdict(list)
        for row in archived_rows:
            positions[row.entity, row.partition].append(row.position)
        assert self._reader.reads, "the archive was never read"
        for read in self._reader.reads:
            for part, part_positions in positions.items():
                part_read = read.parts.get(part, _PartitionRead(0, ""))
                rows, last = part_read.rows, part_read.last
                expected = bisect_right(part_positions, last)
                assert rows == expected, f"a reader saw {rows} rows of {part} up to {last}, not {expected}"
                complete = read.complete.get(part[0], "")
                expected = bisect_right(part_positions, complete)
                assert rows >= expected, (
                    f"{part} should be complete up to {complete}, but has {rows} of {expected} rows"
                )


def _rows(table: pa.Table) -> list[Row]:
    """Returns the rows of an archive, sorted by position, without the rows that announce columns."""
    columns = list(Row.__dataclass_fields__)
    all_rows: Iterator[Row] = map(Row, *(table.column(name).to_pylist() for name in columns))
    # `_topics` writes the JSON of `moved` in the same way, so the rows from both can be compared as texts.
    all_rows = (replace(row, moved=row.moved and json.dumps(json.loads(row.moved))) for row in all_rows)
    return sorted((row for row in all_rows if row.entity in TABLES), key=lambda row: (row.position, row.partition))
