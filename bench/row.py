"""Measures how much memory the service needs to publish one large row into the file log.

Compares the peak memory of the service with its peak when all rows are small. Prints the difference in MiB, and in
multiples of the large row. There is a case for each thing that can happen to the row: it is read from its table, read
once more by its key (because a signal requests this), inserted, or updated. The message of an update has the row twice:
before and after the update. In the last case there is no large row; instead, another application emits a logical
message of the same size.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.measure.processes import peak_mib
from bench.measure.service import wait
from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.signal import Signal

ROW_MIB = 200
WAIT_S_MAX = 900.0

TABLE = "CREATE TABLE documents (id int PRIMARY KEY, body text); ALTER TABLE documents REPLICA IDENTITY FULL"
TEXT = "(SELECT string_agg(md5(n::text), {joined}) FROM generate_series(1, {mib} * 32768) AS n)"
PLAIN, LINES = TEXT.replace("{joined}", "''"), TEXT.replace("{joined}", "chr(10)")
INSERT = "INSERT INTO documents SELECT 1, "
SMALL = "INSERT INTO documents SELECT n, 'small' FROM generate_series(2, 999) AS n"
SIGNAL = "signal"
"""Takes the place of SQL in a case: a signal is sent instead. The signal is a message in the database's log that makes
the service read the row once more, by its key.
"""
CASES: dict[str, tuple[str, str]] = {
    "read": (INSERT + PLAIN, ""),
    "read, with newlines": (INSERT + LINES, ""),
    "read by key": (INSERT + PLAIN, SIGNAL),
    "inserted": ("", INSERT + PLAIN),
    "inserted, with newlines": ("", INSERT + LINES),
    "updated": (INSERT + PLAIN, "UPDATE documents SET id = 1"),
    "inserted with small rows": ("", f"{SMALL}; {INSERT}{PLAIN}"),
    "message": ("", f"SELECT pg_logical_emit_message(true, 'someone', {PLAIN})"),
}
"""For each case, there is SQL that runs before the service starts, and SQL that runs when the service has read the
table.
"""
CONFIG = """
name = "row"
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
    """By how much the service's peak memory exceeds its peak with small rows: in MiB, and in multiples of the large
    row.
    """

    peak_mib: int
    rows: float


def main() -> None:
    """Runs all cases, or the case that the user asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=ROW_MIB, help="size of the large row's text, in MiB")
    parser.add_argument("--case", choices=CASES, help="run only this case")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    small_mib = _peak_mib("", SMALL, options.mib)
    figures = {}
    for name, (before, then) in CASES.items():
        if options.case in (None, name):
            excess_mib = _peak_mib(before, then, options.mib) - small_mib
            figures[name] = Figures(peak_mib=excess_mib, rows=round(excess_mib / options.mib, 1))
            print(f"{name:26}{excess_mib:>8} MiB{figures[name].rows:>6} rows", flush=True)
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        shown = {name: asdict(case) for name, case in figures.items()}
        print(json.dumps({"benchmark": "row", "ratios": {}, "figures": shown, "machine": machine}))


def _peak_mib(before: str, then: str, mib: int) -> int:
    """Runs one case, and returns the peak memory of the service, in MiB.

    The SQL `before` runs before the service starts, and `then` once the service has read the table. If `then` is not
    empty, only the memory from this moment on counts.
    """
    with (
        temporary_server(settings={"fsync": "off", "max_wal_size": "16GB"}) as server,
        tempfile.TemporaryDirectory() as folder,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        connection.execute(TABLE.encode())
        connection.execute(before.replace("{mib}", str(mib)).encode())
        (Path(folder) / "changelog.toml").write_text(CONFIG.format(dsn=server.dsn()))
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "changelog", "run"]
        service = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            wait(service, log, _is_read, WAIT_S_MAX)
            _wait_for_end(server, service, log)
            if then:
                Path(f"/proc/{service.pid}/clear_refs").write_text("5")  # resets the peak to the present use
            if then == SIGNAL:
                send(connection, Signal(do="republish", id="read-row", entity="documents", keys=("1",)), None)
                wait(service, log, lambda stored: "read-row" in Repairs.parse(stored.repairs).ended, WAIT_S_MAX)
            else:
                connection.execute(then.replace("{mib}", str(mib)).encode())
            _wait_for_end(server, service, log)
            return round(peak_mib(service.pid))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()


def _is_read(checkpoint: Checkpoint) -> bool:
    return all(stored["complete"] for stored in checkpoint.windows.values())


def _wait_for_end(server: PostgresServer, service: "subprocess.Popen[bytes]", log: Path) -> None:
    """Waits until the file log has everything that is now in the server's write-ahead log."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_logical_emit_message(true, 'changelog-fence', ''), pg_current_wal_lsn()::text"
        ).fetchone()
    assert row is not None
    end = parse_lsn(row[1])
    wait(service, log, lambda checkpoint: through_lsn(checkpoint) >= end, WAIT_S_MAX)


if __name__ == "__main__":
    main()
