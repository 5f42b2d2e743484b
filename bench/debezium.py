"""Measures the CPU time that Debezium in a Java process takes, and the CPU time that its Python program adds.

Debezium reads one snapshot. The side *frames* reads frames (batches of records), as a source of the service does. The
side *events* makes an event object of each record, and stores the offset of each batch in a folder. Both discard the
rows.
"""

import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.measure.options import Size
from changelog.connectors.debezium.frames import LogLine, RecordBatch
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.debezium.process import EngineProcess
from changelog.connectors.servers.postgres import temporary_server
from changelog.debezium import ChangeEvent, DebeziumEngine, FileStore

SIZE = Size(rows=200_000, quick_rows=20_000, rounds=3)
JARS = Path(__file__).parents[1] / ".cache" / "engine-postgres"

TABLE = """
CREATE TABLE orders (id int PRIMARY KEY, guest text, amount numeric(10, 2), at timestamptz, note text, total bigint,
    paid bool, extra jsonb)
"""
ROWS = """
INSERT INTO orders SELECT i, 'guest ' || i, i / 7.0, now(), repeat('x', 40), i * 100::bigint, i %% 2 = 0, '{"a": 1}'
FROM generate_series(1, %s) AS i
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Wall-clock seconds and CPU seconds for all rows. They include the start of Java, which takes about 2 s of CPU
    time.
    """

    seconds: float
    java_cpu_s: float
    python_cpu_s: float


def main() -> None:
    """Runs both sides in turn."""
    options = SIZE.parser(__doc__, "rows of the table").parse_args()
    rows, rounds = SIZE.chosen(options)
    runs: dict[str, list[Figures]] = {"frames": [], "events": []}
    sides = {"frames": _read_frames, "events": _pass_events}
    with temporary_server(settings={"fsync": "off", "wal_level": "logical"}) as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute(TABLE)
            connection.execute(ROWS, [rows])
        for number in range(rounds):
            for side, read in sides.items():
                runs[side].append(_measured(read, _connector(server.dsn(), f"{side}_{number}"), rows))
    medians = {side: _median(figures) for side, figures in runs.items()}
    for side, figures in medians.items():
        per_row = {name: f"{cpu_s / rows * 1e6:.1f}" for name, cpu_s in asdict(figures).items()}
        print(f"{side:8} Java {per_row['java_cpu_s']} us of CPU a row, Python {per_row['python_cpu_s']} us", flush=True)
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        ratios = {side: round(figures.python_cpu_s / figures.java_cpu_s, 3) for side, figures in medians.items()}
        shown = {side: asdict(figures) for side, figures in medians.items()}
        print(json.dumps({"benchmark": "debezium", "ratios": ratios, "figures": shown, "machine": machine}))


def _connector(dsn: str, slot: str) -> dict[str, str]:
    parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    names = {"hostname": "host", "port": "port", "dbname": "dbname", "user": "user"}
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "bench",
        "plugin.name": "pgoutput",
        "table.include.list": "public.orders",
        "slot.name": slot,
        "slot.drop.on.stop": "true",
        "database.password": "",
        **{f"database.{name}": str(parameters[parameter]) for name, parameter in names.items()},
    }


def _measured(read: Callable[[Mapping[str, str], int], None], properties: Mapping[str, str], rows: int) -> Figures:
    begin, python, java = time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    read(properties, rows)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Figures(
        seconds=time.perf_counter() - begin,
        java_cpu_s=ended.ru_utime + ended.ru_stime - java.ru_utime - java.ru_stime,
        python_cpu_s=time.process_time() - python,
    )


def _read_frames(properties: Mapping[str, str], rows: int) -> None:
    process = EngineProcess(Launch(properties=properties, jars=JARS), {}, [], _ignore)
    try:
        count = 0
        while count < rows:
            received = process.read(60)
            if isinstance(received, RecordBatch):
                count += len(received)
                process.acknowledge(received.last)
    finally:
        process.close()


def _pass_events(properties: Mapping[str, str], rows: int) -> None:
    count = 0

    def handle(events: Sequence[ChangeEvent]) -> None:
        nonlocal count
        count += len(events)
        if count >= rows:
            engine.close()

    with tempfile.TemporaryDirectory() as folder:
        engine = DebeziumEngine(properties, store=FileStore(folder), jars=JARS)
        engine.run(handle)


def _ignore(_line: LogLine) -> None:
    """Drops Debezium's log."""


def _median(runs: Sequence[Figures]) -> Figures:
    names = asdict(runs[0])
    return Figures(**{name: statistics.median(asdict(run)[name] for run in runs) for name in names})


if __name__ == "__main__":
    main()
