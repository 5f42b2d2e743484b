"""Measures how long a committed row takes until it is visible in a view that `maintain_view` keeps in PostgreSQL.

A writer commits transactions at a steady pace. Each transaction updates nine rows, and inserts one row; the ids of the
new rows are consecutive. The service publishes the transactions to a file log. In a process of its own, the Spark job
`maintain_view` applies them to the view: a table in another database of the same server. Twenty times a second, the
benchmark asks the view for its highest id. The latency of a transaction counts from the time just before its COMMIT
until the view has the id of its new row.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg

from bench.measure.options import print_figures
from bench.measure.processes import cpu_seconds
from changelog.connectors.servers.postgres import temporary_server

ROWS, TRANSACTIONS_PER_S, ROWS_A_TRANSACTION, SECONDS = 100_000, 50, 10, 120
WARM_S = 20
POLL_S = 0.05
WAIT_S_MAX = 300
Floats = npt.NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
name = "shop"
source = {{ kind = "postgres", dsn = "{dsn}" }}
sink = {{ path = "log" }}
tables = {{ include = ["public.purchase"] }}
service = {{ listen = "127.0.0.1:0" }}
[views.purchases]
entity = "purchase"
{more}
"""
TOTALS = 'totals = { by = ["customer"], sums = ["amount"] }'
CREATE = """
CREATE TABLE purchase (
    id bigint PRIMARY KEY, number bigint, customer int, amount numeric(12, 2), note text, changed_at timestamptz
);
INSERT INTO purchase SELECT id, 0, id % 1000, id / 4.0, repeat('n', 60), now() FROM generate_series(1, {rows}) id
"""
INSERT = "INSERT INTO purchase VALUES (%s, %s, 1, 1.25, 'new', now())"
UPDATE = "UPDATE purchase SET amount = amount + 1, changed_at = now() WHERE id = ANY(%s)"


def main() -> None:
    """Starts all processes, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="number of rows at the beginning (%(default)s)")
    parser.add_argument("--pace", type=int, default=TRANSACTIONS_PER_S, help="transactions a second (%(default)s)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long to measure (%(default)s)")
    parser.add_argument("--totals", action="store_true", help="keep sums by customer, too")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    print_figures(measure(options), as_json=options.json)


def measure(options: argparse.Namespace) -> Mapping[str, object]:
    """Returns the figures of one run."""
    with temporary_server(settings={"fsync": "off"}) as server, ExitStack() as opened:
        source, target = server.dsn(), server.dsn("views")
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="changelog-bench-")))
        (folder / "changelog.toml").write_text(
            CONFIG.format(dsn=source, more=TOTALS if options.totals else ""), "utf-8"
        )
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute("CREATE DATABASE views")
            connection.execute(CREATE.format(rows=options.rows).encode())
        opened.enter_context(running(folder, target, "-m", "changelog", "run"))
        await_file(folder / "log")
        job = opened.enter_context(running(folder, target, *job_arguments(folder)))
        view = opened.enter_context(psycopg.connect(target, autocommit=True))
        await_rows(view, options.rows)
        view.execute("CREATE INDEX ON purchases (id)")  # so that the highest id is read without a scan
        transactions = options.pace * (WARM_S + options.seconds)
        committed = np.zeros(transactions)
        threading.Thread(target=write, args=(source, options, committed), daemon=True).start()
        time.sleep(WARM_S)
        cpu_s, began_s = cpu_seconds(job.pid), time.monotonic()
        visible = watch(view, options.rows, transactions)
        cpu_s, elapsed_s = cpu_seconds(job.pid) - cpu_s, time.monotonic() - began_s
    latencies_s = (visible - committed)[options.pace * WARM_S :]
    p50, p90, p99, worst = np.percentile(latencies_s, [50, 90, 99, 100])
    batches = len(np.unique(visible[options.pace * WARM_S :]))
    return {
        "p50 s": round(p50, 2),
        "p90 s": round(p90, 2),
        "p99 s": round(p99, 2),
        "max s": round(worst, 2),
        "batches": batches,
        "seconds a batch": round(elapsed_s / batches, 2),
        "CPU seconds a batch, without Python workers": round(cpu_s / batches, 2),
        "CPU without Python workers, % of a core": round(100 * cpu_s / elapsed_s, 1),
    }


def job_arguments(folder: Path) -> list[str]:
    """Returns the command line of the job."""
    job = str(ROOT / "spark_jobs" / "maintain_view.py")
    to = ["--output", "postgres", "--to", "purchases", "--dsn", "env:VIEWS_DSN"]
    return [job, "--config", str(folder / "changelog.toml"), "--view", "purchases", *to]


@contextmanager
def running(folder: Path, target: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a Python program in a folder until the block ends."""
    environment = {**os.environ, "VIEWS_DSN": target, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, *command], cwd=folder, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


def await_file(path: Path) -> None:
    """Waits until the service has written the first file of the log."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not any(path.rglob("*.parquet")):
        if time.monotonic() > deadline_s:
            raise SystemExit("the service has published nothing")
        time.sleep(0.2)


def await_rows(view: psycopg.Connection, rows: int) -> None:
    """Waits until the view has all rows."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while highest(view, "count(*)") < rows:
        if time.monotonic() > deadline_s:
            raise SystemExit("the view is not complete")
        time.sleep(0.5)


def highest(view: psycopg.Connection, what: str) -> int:
    """Returns the aggregate `what` of the view's rows; 0 if the view does not exist yet."""
    with suppress(psycopg.errors.UndefinedTable):
        row = view.execute(f"SELECT {what} FROM purchases".encode()).fetchone()
        return int(row[0] or 0) if row else 0
    return 0


def write(dsn: str, options: argparse.Namespace, committed: Floats) -> None:
    """Commits transactions at an even pace, and notes when each COMMIT was sent, in seconds since 1970."""
    random = np.random.default_rng(1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        began_s = time.monotonic()
        for number in range(len(committed)):
            time.sleep(max(0.0, began_s + number / options.pace - time.monotonic()))
            with connection.transaction():
                connection.execute(INSERT, (options.rows + 1 + number, number))
                connection.execute(UPDATE, (random.integers(1, options.rows, ROWS_A_TRANSACTION - 1).tolist(),))
                committed[number] = time.time()


def watch(view: psycopg.Connection, rows: int, transactions: int) -> Floats:
    """Waits until all transactions are visible in the view. Returns when each of them became visible, in seconds since
    1970.
    """
    visible = np.zeros(transactions)
    count, deadline_s = 0, time.monotonic() + WAIT_S_MAX + transactions
    while count < transactions:
        if time.monotonic() > deadline_s:
            raise SystemExit("the view lacks transactions")
        seen_count = highest(view, "max(id)") - rows
        visible[count:seen_count], count = time.time(), max(count, seen_count)
        time.sleep(POLL_S)
    return visible


if __name__ == "__main__":
    main()
