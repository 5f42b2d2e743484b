"""Measures how fast a backlog is drained: how soon all its changes have been read from a replication slot.

There are three sides: `pg_recvlogical` writes to /dev/null; `ours` is our source with a sink that stores nothing;
`files` is our source with the file log. They run in turn, for several rounds, each as a new process on a copy of one
slot. Half of the changes are inserts, half updates, on a table of 12 columns with REPLICA IDENTITY FULL.
"""

import argparse
import cProfile
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import psycopg
import pyarrow as pa

from bench.measure import backlog
from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.service.loop import Cadence, Observer, publish
from changelog.connectors.sinks import Sink
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import Recover
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn, through_text
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.model import Stamp

ROWS = 400_000
ROUNDS = 3
SIDES = ("pg_recvlogical", "ours", "files")

PUBLICATION = "CREATE PUBLICATION bench FOR TABLE orders WITH (publish_via_partition_root = true)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one drain: seconds by the clock, CPU seconds of the whole process, and its peak memory."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def main() -> None:
    """Runs the benchmark. With --drain, which the benchmark gives to its own processes, runs one side."""
    options = _parse_args()
    if options.drain is not None:
        _drain(options)
        return
    rounds = 1 if options.quick else ROUNDS
    with temporary_server(settings={"fsync": "off", "max_wal_size": "8GB", "wal_sender_timeout": "0"}) as server:
        target = _backlog(server, options.rows)
        results: dict[str, list[Figures]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side in SIDES:
                results[side].append(_measure(server, side, target))
    _report(results, options)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="changes in the backlog")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--profile", metavar="FILE", help="with --drain: file for cProfile's figures")
    parser.add_argument("--drain", choices=SIDES[1:], help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    parser.add_argument("--slot", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    return parser.parse_args()


def _backlog(server: Server, rows: int) -> str:
    """Writes the backlog; returns the LSN at its end."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(backlog.TABLE)
        connection.execute(PUBLICATION)
        connection.execute("SELECT pg_create_logical_replication_slot('base', 'pgoutput')")
        backlog.fill(connection, rows)
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def _measure(server: Server, side: str, target: str) -> Figures:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot('base', 'drained')")
    folder = tempfile.mkdtemp()
    try:
        if side == "pg_recvlogical":
            command = [
                str(server.bin_dir / "pg_recvlogical"), "--dbname", server.dsn(), "--slot", "drained", "--start",
                "--endpos", target, "--file", "/dev/null", "--no-loop",
                "-o", "proto_version=4", "-o", "publication_names=bench", "-o", "messages=true",
            ]  # fmt: skip
        else:
            command = [
                sys.executable, __file__, "--drain", side, "--dsn", server.dsn(), "--slot", "drained",
                "--target", target, "--path", folder,
            ]  # fmt: skip
        return _timed(command)
    finally:
        shutil.rmtree(folder)
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot('drained')")


def _timed(command: Sequence[str]) -> Figures:
    """Runs a command and returns its figures.

    Our own sides print the seconds of the drain, without the start of Python; then these count.
    """
    started_at = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started_at
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} failed with exit code {process.returncode}")
    return Figures(
        seconds=json.loads(printed)["seconds"] if printed else seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
    )


class _Nowhere:
    """A sink that stores nothing."""

    def recover(self) -> Checkpoint | None:
        return None

    def prepare(self, entities: Sequence[Entity]) -> None:
        pass

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        pass

    def commit(self, checkpoint: Checkpoint) -> None:
        pass

    def lost(self, _entities: Collection[str]) -> Collection[str]:
        """See `Sink`. Because nothing is stored, nothing can be lost."""
        return ()

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


class _StopAt(Observer):
    """Counts the rows, and stops the loop once the target LSN is stored."""

    def __init__(self, target: int, stop: Event) -> None:
        self._target, self._stop = target, stop
        self.rows = 0

    def committed(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint, _: float) -> None:
        """See `Observer`."""
        self.rows += sum(batch.num_rows for batch in rows)
        if through_lsn(checkpoint) >= self._target:
            self._stop.set()


def _drain(options: argparse.Namespace) -> None:
    if options.profile is None:
        _drain_now(options)
        return
    profile = cProfile.Profile()
    profile.runcall(_drain_now, options)
    profile.dump_stats(options.profile)


def _drain_now(options: argparse.Namespace) -> None:
    stop = Event()
    observer = _StopAt(parse_lsn(options.target), stop)
    sink: Sink = _Nowhere() if options.drain == "ours" else FileSink(Path(options.path))
    started_at = time.perf_counter()
    publish(_opener(options), sink, stop=stop, observer=observer, cadence=Cadence(idle_seconds=0.01))
    sink.close()
    print(json.dumps({"seconds": time.perf_counter() - started_at, "rows": observer.rows}))


def _opener(options: argparse.Namespace) -> Callable[[Recover], PostgresSource]:
    """Returns a function that opens the source, as if its table had been read completely before."""
    entity = Entity(
        name="orders",
        table=("public", "orders"),
        key=("id",),
        partition_by=("id",),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="unknown", service_name="unknown", identifier=""),
    )
    settings = Settings(
        name="bench", dsn=options.dsn, slot=options.slot, publication="bench", failover=False, hmac_key=b""
    )

    def open_source(recover: Recover) -> PostgresSource:
        return PostgresSource(settings, [entity], lambda: recover() or first_checkpoint())

    def first_checkpoint() -> Checkpoint:
        replication = ReplicationConnection.connect(options.dsn)
        system = replication.identify_system()
        [(confirmed,)] = replication.query(
            f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{options.slot}'"
        )
        replication.close()
        return Checkpoint(
            position=None,
            through=through_text(parse_lsn(confirmed)),
            epoch=1,
            source={"system_identifier": system.system_identifier, "timeline": system.timeline},
            windows={"orders": {"complete": True}},
        )

    return open_source


def _report(results: dict[str, list[Figures]], options: argparse.Namespace) -> None:
    medians = {
        side: Figures(
            seconds=statistics.median(drain.seconds for drain in runs),
            cpu_seconds=statistics.median(drain.cpu_seconds for drain in runs),
            peak_mib=statistics.median(drain.peak_mib for drain in runs),
        )
        for side, runs in results.items()
    }
    print(f"{options.rows} changes, medians of {len(results['ours'])} rounds")
    print(f"{'':16}{'rows/s':>10}{'CPU s/million':>16}{'peak MiB':>10}")
    for side, median in medians.items():
        print(
            f"{side:16}{options.rows / median.seconds:>10,.0f}"
            f"{median.cpu_seconds / options.rows * 1e6:>16.2f}{median.peak_mib:>10.0f}"
        )
    base = medians["pg_recvlogical"].seconds
    ratios = {
        "ours_over_pg_recvlogical": round(base / medians["ours"].seconds, 3),
        "files_over_pg_recvlogical": round(base / medians["files"].seconds, 3),
    }
    for name, ratio in ratios.items():
        print(f"{name} {ratio:.2f}")
    if options.json:
        figures = {
            side: {
                "rows_per_second": round(options.rows / median.seconds),
                "cpu_seconds_per_million": round(median.cpu_seconds / options.rows * 1e6, 2),
                "peak_mib": round(median.peak_mib),
            }
            for side, median in medians.items()
        }
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "postgres", "ratios": ratios, "figures": figures, "machine": machine}))


if __name__ == "__main__":
    main()
