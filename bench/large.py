"""Measures how the service publishes one large transaction, and how it reads one large table, into the file log.

Prints the rows per second, the CPU time of the service, and its peak memory. The memory must stay bounded, however many
rows there are.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure.large_tables import KINDS, large_table
from bench.measure.processes import cpu_seconds, peak_mib
from bench.measure.service import wait
from changelog.connectors.sinks.files.log import counts
from changelog.envelope.checkpoint import Checkpoint

TRANSACTION_ROWS = 5_000_000
SNAPSHOT_ROWS = 20_000_000
QUICK_DIVISOR = 20
WAIT_S_MAX = 3600.0

CONFIG = """
name = "large"
[source]
{source}
[sink]
path = "log"
[tables]
include = ["*.orders"]
[service]
listen = "127.0.0.1:0"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one job: one large transaction, or the snapshot of one large table.

    `cpu_seconds_per_million` is the CPU time of the service per million rows. For a snapshot, it includes the start of
    the service. `peak_mib` is the most resident memory that the service had.
    """

    rows: int
    rows_per_second: int
    cpu_seconds_per_million: float
    peak_mib: int


def main() -> None:
    """Runs the jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=KINDS, default=KINDS[0], help="the kind of database")
    parser.add_argument("--transaction", type=int, default=TRANSACTION_ROWS, help="its rows; 0 leaves it out")
    parser.add_argument("--snapshot", type=int, default=SNAPSHOT_ROWS, help="its rows; 0 leaves it out")
    parser.add_argument("--quick", action="store_true", help="use a twentieth of the rows")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    divisor = QUICK_DIVISOR if options.quick else 1
    rows = {"transaction": options.transaction // divisor, "snapshot": options.snapshot // divisor}
    figures = {}
    for name in [name for name, count in rows.items() if count]:
        job = figures[name] = _job(options.source, rows[name], before=name == "snapshot")
        print(
            f"{name:12}{job.rows:>12,} rows{job.rows_per_second:>10,} rows/s"
            f"{job.cpu_seconds_per_million:>8.2f} CPU s/million{job.peak_mib:>8} MiB",
            flush=True,
        )
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        shown = {name: asdict(job) for name, job in figures.items()}
        print(json.dumps({"benchmark": "large", "ratios": {}, "figures": shown, "machine": machine}))


def _job(kind: str, rows: int, *, before: bool) -> Figures:
    """Fills the table, and measures until the service has stored all rows.

    If `before` is true, the table is filled before the service starts, so the snapshot of the table is measured.
    Otherwise, the table is filled in one transaction while the service runs, so this transaction is measured.
    """
    with large_table(kind) as table, tempfile.TemporaryDirectory() as folder:
        if before:
            table.fill(rows)
            table.settle()
        (Path(folder) / "changelog.toml").write_text(CONFIG.format(source=table.config))
        log = Path(folder) / "log"
        service = subprocess.Popen([sys.executable, "-m", "changelog", "run"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            start_cpu_s = 0.0
            if not before:
                wait(service, log, _is_read, WAIT_S_MAX)
                start_cpu_s = cpu_seconds(service.pid)
                table.fill(rows)
            started_at = time.monotonic()
            wait(service, log, _is_read if before else table.has_reached_end(), WAIT_S_MAX)
            seconds, cpu_s = time.monotonic() - started_at, cpu_seconds(service.pid) - start_cpu_s
            peak = round(peak_mib(service.pid))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()
        stored = sum(counts(log)["orders"].values())
        if stored != rows:
            raise SystemExit(f"{rows} rows were written, but {stored} are in the log")
    return Figures(
        rows=rows,
        rows_per_second=round(rows / seconds),
        cpu_seconds_per_million=round(cpu_s / rows * 1e6, 2),
        peak_mib=peak,
    )


def _is_read(checkpoint: Checkpoint) -> bool:
    return all(stored["complete"] for stored in checkpoint.windows.values())


if __name__ == "__main__":
    main()
