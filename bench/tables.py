"""Measures how long the real service takes to read many small tables, into the file log and into Kafka.

The service starts three times with each sink. After the first start (`first`), it reads every table. After the second
start (`again`), there is nothing to read, so this is the least time that a start takes with so many tables. Before the
third start (`over_gap`), the replication slot is dropped and some rows are deleted. The changelog misses these deletes.
That is why the service then reads every table once more, and searches the whole changelog for rows that the tables no
longer have.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.measure.processes import cpu_seconds, peak_mib
from bench.measure.publishers import end, last_line
from changelog.connectors.config import load
from changelog.connectors.servers.kafka import temporary_broker
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.servers.unprivileged import free_port
from changelog.connectors.sinks import Log
from changelog.connectors.wiring.sinks import open_log

TABLES, QUICK_TABLES = 1_000, 100
ROWS = 5
DELETED_EVERY = 10
"""While there is no replication slot, one row is deleted from each table whose number is a multiple of this."""
SINKS = ("files", "kafka")
WAIT_S_MAX = 3_600.0

CONFIG = """
name = "many"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
{sink}
[tables]
include = ["public.*"]
[service]
listen = "127.0.0.1:{port}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The figures of one start, until the service has read all tables.

    `ready_s` says how many seconds passed until the service reported that it was ready.
    """

    ready_s: float
    seconds: float
    cpu_seconds: float
    peak_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The three starts with one sink. `ratio` is the time of `over_gap`, divided by the time of `again`."""

    first: Start
    again: Start
    over_gap: Start
    ratio: float


def main() -> None:
    """Measures both sinks, or the sink that the user asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, help=f"number of tables: {TABLES}, with --quick {QUICK_TABLES}")
    parser.add_argument("--quick", action="store_true", help="use fewer tables")
    parser.add_argument("--sink", choices=SINKS, help="run only this sink")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--profile", metavar="FOLDER", type=Path, help="write each start's cProfile figures to FOLDER")
    options = parser.parse_args()
    tables = options.tables or (QUICK_TABLES if options.quick else TABLES)
    figures = {}
    for sink in [options.sink] if options.sink else SINKS:
        figures[sink] = _measured(sink, tables, options.profile)
        for name in ("first", "again", "over_gap"):
            _print(sink, name, getattr(figures[sink], name))
        print(f"over_gap_{sink} {figures[sink].ratio:.2f}", flush=True)
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        ratios = {f"over_gap_{sink}": starts.ratio for sink, starts in figures.items()}
        shown = {sink: asdict(starts) for sink, starts in figures.items()}
        print(json.dumps({"benchmark": "tables", "ratios": ratios, "figures": shown, "machine": machine}))


def _print(sink: str, name: str, start: Start) -> None:
    print(
        f"{sink:8}{name:10}{start.seconds:>8.1f} s, {start.ready_s:.1f} s of them until it is ready, "
        f"{start.cpu_seconds:.1f} s of CPU, {start.peak_mib} MiB",
        flush=True,
    )


def _measured(sink: str, tables: int, profile: Path | None) -> Figures:
    with (
        temporary_server(settings={"fsync": "off", "max_locks_per_transaction": "1024"}) as server,
        nullcontext() if sink == "files" else temporary_broker() as broker,
        tempfile.TemporaryDirectory(prefix="changelog-bench-") as folder,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        _create(connection, tables)
        servers = "" if broker is None else broker.bootstrap_servers
        section = f'kind = "kafka"\nbootstrap_servers = "{servers}"' if servers else 'path = "log"'
        site = Site(Path(folder), server.dsn(), section, profile)
        first = site.start("first")
        again = site.start("again")
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        deleted = [f"t_{number:05}" for number in range(0, tables, DELETED_EVERY)]
        for table in deleted:
            connection.execute(f"DELETE FROM {table} WHERE id = 1".encode())
        over_gap = site.start("over-gap", "--over-gap", "--yes")
        _check(site.log(), tables, deleted)
    ratio = round(over_gap.seconds / again.seconds, 2)
    return Figures(first=first, again=again, over_gap=over_gap, ratio=ratio)


def _create(connection: psycopg.Connection, tables: int) -> None:
    for number in range(tables):
        name = f"t_{number:05}"
        connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, note text, at timestamptz)".encode())
        connection.execute(
            f"INSERT INTO {name} SELECT g, 'row ' || g, now() FROM generate_series(1, {ROWS}) g".encode()
        )


def _check(log: Log, tables: int, deleted: list[str]) -> None:
    """Checks that the changelog has two reads of each row that still exists (by the starts `first` and `over_gap`), and
    one read and one delete of each row that was deleted.

    Raises SystemExit if the numbers differ.
    """
    reads, deletes = 0, []
    for rows in log.read():
        for entity, op in zip(rows.column("entity").to_pylist(), rows.column("op").to_pylist(), strict=True):
            reads += op == "read"
            if op == "delete":
                deletes.append(entity)
    expected = 2 * ROWS * tables - len(deleted)
    if reads != expected or sorted(deletes) != deleted:
        raise SystemExit(
            f"the changelog has {reads} reads and {len(deletes)} deletes, not {expected} and {len(deleted)} as expected"
        )


class Site:
    """A folder with a configuration, in which the service is started several times."""

    def __init__(self, folder: Path, dsn: str, section: str, profile: Path | None) -> None:
        self._folder, self._port, self._profile = folder, free_port(), profile
        self._config = folder / "changelog.toml"
        self._config.write_text(CONFIG.format(dsn=dsn, sink=section, port=self._port))

    def log(self) -> Log:
        """Returns a reader of the changelog."""
        return open_log(load(self._config, os.environ))

    def start(self, name: str, *arguments: str) -> Start:
        """Runs the service until it has nothing more to read."""
        started_at = time.monotonic()
        with self._running(name, arguments) as process:
            self._until(process, lambda: self._answer("ready") is not None)
            ready_s = time.monotonic() - started_at
            self._until(process, self._is_read)
            seconds = time.monotonic() - started_at
            return Start(
                ready_s=round(ready_s, 1),
                seconds=round(seconds, 1),
                cpu_seconds=round(cpu_seconds(process.pid), 1),
                peak_mib=round(peak_mib(process.pid)),
            )

    @contextmanager
    def _running(self, name: str, arguments: tuple[str, ...]) -> Iterator["subprocess.Popen[bytes]"]:
        profiled = [] if self._profile is None else ["-m", "cProfile", "-o", str(self._profile.absolute() / name)]
        command = [sys.executable, *profiled, "-m", "changelog", "run", *arguments]
        with (self._folder / "output").open("ab") as output:
            process = subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=output)
        try:
            yield process
        finally:
            end(process)

    def _until(self, process: "subprocess.Popen[bytes]", reached: "Callable[[], bool]") -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not reached():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the service ended, or took too long: {last_line(self._folder)}")
            time.sleep(0.1)

    def _is_read(self) -> bool:
        answer = self._answer("ready")
        if answer is None or json.loads(answer)["phase"] != "streaming":
            return False
        return "\nchangelog_repairs_open 0.0\n" in (self._answer("metrics") or "")

    def _answer(self, path: str) -> str | None:
        """Returns what the service answers at this path; None if it does not answer, or is not ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=30) as answer:
                return bytes(answer.read()).decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None


if __name__ == "__main__":
    main()
