"""Sends one large transaction, and the snapshot of one large table, through the real service into the file log.

Prints the rows per second and the service's peak memory. The memory must stay bounded, however many rows there are.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.measure.processes import peak_mib
from bench.measure.service import wait
from changelog.connectors.servers.postgres import Server, temporary_server
from changelog.connectors.sinks.files.log import counts
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.envelope.checkpoint import Checkpoint

TRANSACTION_ROWS = 5_000_000
SNAPSHOT_ROWS = 20_000_000
QUICK_DIVISOR = 20
WAIT_S_MAX = 3600.0

TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, guest_id bigint NOT NULL, status text NOT NULL, amount numeric(12,2) NOT NULL,
    note text, created_at timestamptz NOT NULL);
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
FILL = """
INSERT INTO orders SELECT g, g %% 5000, 'NEW', (g %% 90000) / 100.0, 'note of order ' || g,
    timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series(1, %s::bigint) AS g
"""
CONFIG = """
name = "large"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
path = "log"
[tables]
include = ["public.*"]
[service]
listen = "127.0.0.1:0"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one job; `peak_mib` is the highest resident memory of the service."""

    rows: int
    rows_per_second: int
    peak_mib: int


def main() -> None:
    """Runs both jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transaction", type=int, default=TRANSACTION_ROWS, help="rows of the transaction")
    parser.add_argument("--snapshot", type=int, default=SNAPSHOT_ROWS, help="rows of the table")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    divisor = QUICK_DIVISOR if options.quick else 1
    figures = {
        "transaction": _job(options.transaction // divisor, before=False),
        "snapshot": _job(options.snapshot // divisor, before=True),
    }
    for name, job in figures.items():
        print(f"{name:12}{job.rows:>12,} rows{job.rows_per_second:>10,} rows/s{job.peak_mib:>8} MiB")
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        shown = {name: asdict(job) for name, job in figures.items()}
        print(json.dumps({"benchmark": "large", "ratios": {}, "figures": shown, "machine": machine}))


def _job(rows: int, *, before: bool) -> Figures:
    """Fills the table, and measures until the service has stored all rows.

    If `before`, the table is filled before the service starts, and the snapshot is measured. Otherwise, the table is
    filled in one transaction while the service runs.
    """
    with (
        temporary_server(settings={"fsync": "off", "max_wal_size": "16GB"}) as server,
        tempfile.TemporaryDirectory() as folder,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute(TABLE)
        if before:
            connection.execute(FILL, [rows])
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        (Path(folder) / "changelog.toml").write_text(CONFIG.format(dsn=server.dsn()))
        log = Path(folder) / "log"
        service = subprocess.Popen([sys.executable, "-m", "changelog", "run"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            if not before:
                wait(service, log, _is_read, WAIT_S_MAX)
                connection.execute(FILL, [rows])
            started_at = time.monotonic()
            wait(service, log, _is_read if before else _has_reached_end(server), WAIT_S_MAX)
            seconds = time.monotonic() - started_at
            peak = round(peak_mib(service.pid))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()
        stored = sum(counts(log)["orders"].values())
        if stored != rows:
            raise SystemExit(f"{rows} rows were written, but {stored} are in the log")
    return Figures(rows=rows, rows_per_second=round(rows / seconds), peak_mib=peak)


def _is_read(checkpoint: Checkpoint) -> bool:
    return all(stored["complete"] for stored in checkpoint.windows.values())


def _has_reached_end(server: Server) -> Callable[[Checkpoint], bool]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    end = parse_lsn(row[0])
    return lambda checkpoint: through_lsn(checkpoint) >= end


if __name__ == "__main__":
    main()
