"""Measures how much CPU time Debezium takes in a Java process, and how much the Python process that started it adds.

In each measurement, Debezium reads the snapshot of one table, and one of three programs (*sides*) receives the records.
The sides take turns. *frames* reads frames (batches of records), as a source of the service does. *events* makes an
event object from each record, and stores the offset of each batch in a folder. *frames* and *events* discard what they
read. *service* is our complete service: it translates the records, and publishes them to a file log.
"""

import contextlib
import io
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

from bench.measure.drains import drain
from bench.measure.options import Size
from changelog.connectors import config
from changelog.connectors.debezium.frames import LogLine, RecordBatch
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.debezium.process import EngineProcess
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.wiring.sinks import open_sink
from changelog.connectors.wiring.sources import StoredChangelog, database, read_entities
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


CONFIG = """
name = "bench"
sink = {{ path = "log" }}
entities = {{ orders = {{ table = "public.orders", key = ["id"] }} }}
[source]
kind = "debezium"
connector = "postgresql"
jars = {jars}
[source.properties]
{properties}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How long one side took for all rows: in seconds, and in seconds of CPU time. The figures include the start of
    Java, which takes about 2 s of CPU time.
    """

    seconds: float
    java_cpu_s: float
    python_cpu_s: float

    @property
    def cpu_python_over_jvm(self) -> float:
        """The CPU time of the Python process, divided by that of the Java process."""
        return round(self.python_cpu_s / self.java_cpu_s, 3)


def main() -> None:
    """Runs the three sides in turn."""
    options = SIZE.parser(__doc__, "rows of the table").parse_args()
    rows, rounds = SIZE.chosen(options)
    medians = measured(["frames", "events", "service"], rows, rounds)
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        ratios = {f"{side}_cpu_python_over_jvm": figures.cpu_python_over_jvm for side, figures in medians.items()}
        shown = {side: asdict(figures) for side, figures in medians.items()}
        print(json.dumps({"benchmark": "debezium", "ratios": ratios, "figures": shown, "machine": machine}))


def measured(sides: Sequence[str], rows: int, rounds: int) -> dict[str, Figures]:
    """Runs these sides in turn, and prints and returns the median figures of each."""
    readers = {"frames": _read_frames, "events": _pass_events, "service": _publish}
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    with temporary_server(settings={"fsync": "off", "wal_level": "logical"}) as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute(TABLE)
            connection.execute(ROWS, [rows])
        for number in range(rounds):
            for side in sides:
                runs[side].append(_measured(readers[side], _connector(server.dsn(), f"{side}_{number}"), rows))
    medians = {side: _median(figures) for side, figures in runs.items()}
    for side, figures in medians.items():
        per_row = {name: f"{cpu_s / rows * 1e6:.1f}" for name, cpu_s in asdict(figures).items()}
        print(
            f"{side:12}{rows / figures.seconds:>9,.0f} events/s; Java {per_row['java_cpu_s']} µs of CPU a row, "
            f"Python {per_row['python_cpu_s']} µs, ratio {figures.cpu_python_over_jvm}",
            flush=True,
        )
    return medians


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
    """Runs the side *frames*."""
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
    """Runs the side *events*."""
    count = 0

    def handle(events: Sequence[ChangeEvent]) -> None:
        nonlocal count
        count += len(events)
        if count >= rows:
            engine.close()

    with tempfile.TemporaryDirectory() as folder:
        engine = DebeziumEngine(properties, store=FileStore(folder), jars=JARS)
        engine.run(handle)


def _publish(properties: Mapping[str, str], rows: int) -> None:
    """Runs the side *service*."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "changelog.toml"
        set_by_service = ("connector.class", "table.include.list", "topic.prefix")
        lines = [f"{json.dumps(name)} = {json.dumps(text)}" for name, text in properties.items()]
        text = "\n".join(line for line in lines if json.loads(line.partition(" = ")[0]) not in set_by_service)
        file.write_text(CONFIG.format(jars=json.dumps(str(JARS)), properties=text), "utf-8")
        settings = config.load(file, {})
        source = database(settings)
        entities = read_entities(settings, source)
        with contextlib.redirect_stdout(io.StringIO()):
            drain(
                lambda recover: source.open(entities, recover, StoredChangelog(settings)),
                open_sink(settings),
                lambda _, count: count >= rows,
            )


def _ignore(_line: LogLine) -> None:
    """Drops Debezium's log."""


def _median(runs: Sequence[Figures]) -> Figures:
    names = asdict(runs[0])
    return Figures(**{name: statistics.median(asdict(run)[name] for run in runs) for name in names})


if __name__ == "__main__":
    main()
