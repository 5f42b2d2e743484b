"""Measures how long the drift job takes to compare a table with its changelog. For comparison, two simpler things are
measured, too: reading just the table, and reading just the changelog.

The service publishes a table of 15 columns into a file log; then 5 % of the table's rows are updated. Four jobs take
turns in one Spark session, after each of them has run once to warm up. `copy` reads the table by COPY over one
connection. `copy_in_tasks` does the same over as many connections as the job has tasks. `scan` reads the changelog's
rows in Spark. `drift` is the whole drift job, until its report is written. The first three jobs discard the rows that
they read.
"""

import contextlib
import io
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from bench.measure.options import Size
from bench.measure.processes import cpu_seconds, peak_mib
from bench.measure.session import in_turn, session
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.spark_jobs.detect_drift import JOB
from changelog.spark_jobs.reading.read import read_changelog
from changelog.spark_jobs.reading.where import Files
from changelog.spark_jobs.runner.job import main as run_job
from tests.campaigns._service import Service
from tests.servers import fresh_database

SIZE = Size(rows=1_500_000, quick_rows=200_000, rounds=3)
TASKS = 2
UPDATED_PERCENT = 5
READ_S_MAX = 600.0

TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, status text, amount numeric(12,2), currency char(3), guest_id bigint, room text, nights int,
    adults int, arrival date, created_at timestamptz, channel text, paid boolean, rating float8, note text, email text
);
INSERT INTO orders SELECT n, (ARRAY['NEW','CONFIRMED','PAID','CANCELLED'])[1 + n % 4], (n % 100000) / 100.0, 'EUR',
    n * 7 % 1000003, (n % 9 + 1)::text || lpad((n % 100)::text, 2, '0'), 1 + n % 14, 1 + n % 3,
    date '2026-01-01' + (n % 365)::int, timestamptz '2026-11-21 03:10:02.886044+00' + n * interval '1 ms',
    (ARRAY['web','app','phone'])[1 + n % 3], n % 2 = 0, (n % 500) / 100.0,
    CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN 'late arrival, please keep the key' ELSE 'two beds' END,
    'guest' || n || '@example.org'
FROM generate_series(1, %(rows)s) AS n;
"""

CONFIG = """
name = "bench"
[source]
kind = "postgres"
dsn = "{dsn}"
[sink]
path = "changelog"
[entities.orders]
table = "public.orders"
[service]
listen = "127.0.0.1:0"
"""


def main() -> None:
    """Runs the benchmark."""
    options = SIZE.parser(__doc__, "rows of the table").parse_args()
    rows, rounds = SIZE.chosen(options)
    with (
        tempfile.TemporaryDirectory(prefix="changelog-bench-") as name,
        _site(Path(name), rows) as (dsn, folder),
        session(folder) as spark,
    ):
        seconds, figures = _measured(spark, dsn, folder, rounds)
    slower_read_s = max(seconds["copy"], seconds["scan"])
    figures |= {f"{side}_s": round(value, 2) for side, value in seconds.items()}
    ratios = {"drift_over_slower_read": round(seconds["drift"] / slower_read_s, 3)}
    for figure, value in (figures | ratios).items():
        print(f"{figure:32}{value:>14,.3f}")
    print(f"{rows:,} rows, medians of {rounds} rounds")
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "drift", "ratios": ratios, "figures": figures, "machine": machine}))


@contextlib.contextmanager
def _site(folder: Path, rows: int) -> Iterator[tuple[str, Path]]:
    """Publishes a table, and updates it. Yields the DSN of its database, and the folder of the service.

    The service keeps running until the context ends.
    """
    settings = {"fsync": "off", "max_wal_size": "8GB", "autovacuum": "off"}
    with temporary_server(settings=settings) as server, fresh_database(server) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE.replace("%(rows)s", str(rows)).encode())
            connection.execute("VACUUM ANALYZE orders")
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(dsn=dsn), "utf-8")
        service = Service(config)
        service.start()
        try:
            service.until(folder / "changelog", lambda stored: is_complete(stored.windows.get("orders")), READ_S_MAX)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"UPDATE orders SET status = 'LEFT' WHERE id % 100 < {UPDATED_PERCENT}".encode())
                row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8").fetchone()
                connection.execute("SELECT pg_logical_emit_message(true, 'changelog-fence', '')")
            assert row is not None
            end = row[0]
            service.until(folder / "changelog", lambda stored: through_lsn(stored) >= end, READ_S_MAX)
            yield dsn, folder
        finally:
            service.kill()


def _measured(spark: SparkSession, dsn: str, folder: Path, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    changelog = Files(path=folder / "changelog")
    sides: Mapping[str, Callable[[], None]] = {
        "copy": partial(_copy, dsn, 1),
        "copy_in_tasks": partial(_copy, dsn, TASKS),
        "scan": lambda: read_changelog(spark, changelog).write.format("noop").mode("overwrite").save(),
        "drift": lambda: _drift(folder),
    }
    seconds = in_turn(sides, rounds)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    before = cpu_seconds(jvm)
    _drift(folder)
    figures = {
        "jvm_peak_mib": round(peak_mib(jvm)),
        "worker_peak_mib": round(max(map(peak_mib, _workers(jvm)), default=0)),
        "drift_cpu_s": round(cpu_seconds(jvm) - before, 1),
        "log_mib": round(sum(file.stat().st_size for file in (folder / "changelog" / "log").iterdir()) / 2**20),
    }
    return seconds, figures


def _workers(pid: int) -> Iterator[int]:
    """Yields the ids of the child processes of a process, of their child processes, and so on."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _workers(child)


def _drift(folder: Path) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = run_job(JOB, ["--config", str(folder / "changelog.toml"), "--out", str(folder / "drift")])
    assert code == 0, f"the job ended with {code}: {output.getvalue()}"


def _copy(dsn: str, connections: int) -> None:
    """Reads the whole table and discards the rows; each connection reads an equal range of pages."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_relation_size('orders') / 8192").fetchone()
    assert row is not None
    pages = -(-row[0] // connections)
    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(lambda number: _copy_range(dsn, number * pages, (number + 1) * pages), range(connections)))


def _copy_range(dsn: str, first: int, end: int) -> None:
    query = sql.SQL("COPY (SELECT * FROM orders WHERE ctid >= {} AND ctid < {}) TO STDOUT").format(
        sql.Literal(f"({first},0)"), sql.Literal(f"({end},0)")
    )
    with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor, cursor.copy(query) as copy:
        for _ in copy:
            pass


if __name__ == "__main__":
    main()
