"""Measures how long the engine of served views takes, if the changelog is on Kafka: to start for the first time, to
start again, and to read a row.

The sink of the service publishes a million changes of 100,001 orders to a topic with three partitions. A message has
1.1 kB. Each start is a process of its own, and lasts until every row can be read:

- *first*: the engine's folder is empty, and no offsets are committed. Kafka Streams processes all messages.
- *warm*: the previous process was stopped, and a thousand changes were added.
- *crash*: the previous process was killed, and a thousand changes were added.
- *restored*: the folder was deleted. Kafka Streams restores its stores up to the committed offsets.

With `--keep-service NAME` or `--drop-service NAME`, the view counts only the changes by some services. All changes are
by `order-api`, so with `--drop-service other` all of them count. Such a run measures what it costs to choose services.
This includes the cost of one more topic, from which Kafka Streams restores the store of such a view.

The CPU time of a start is that of the whole process, from the moment when Java has started. The CPU time of a read is
that of the thread that reads.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.archived.changes import World
from changelog.connectors import config, logs
from changelog.connectors.config import KafkaConfig
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import temporary_broker
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.connectors.views.streams.opening import open_engine
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA, from_records
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError
from changelog.envelope.key import partition_batch
from changelog.envelope.model import Op, Provenance, Source, Stamp
from changelog.envelope.position import Position, commit_text
from changelog.envelope.service_choice import ServiceChoice
from changelog.envelope.versions import TableColumns, Versions
from changelog.schemas.types import Primitive, Struct

CHANGES, QUICK_CHANGES, CHANGES_A_KEY, ADDED = 1_000_000, 100_000, 10, 1_000
PARTITIONS, COMMIT_ROWS = 3, 10_000
KEYS, PAGES, PAGE_ROWS = 5_000, 50, 100
STREAMS = Path(__file__).resolve().parents[1] / ".cache" / "streams"

CONFIG = """
name = "booking"
source = {{ kind = "postgres", dsn = "postgresql://nowhere" }}
sink = {{ kind = "kafka", bootstrap_servers = "{servers}" }}
tables = {{ include = ["*"] }}
serve = {{ streams = {{ path = "views", jars = "{jars}", store = "{store}" }} }}
"""
ORDER = Entity(
    name="order",
    table=("public", "order"),
    key=("id",),
    partition_by=("id",),
    partitions=PARTITIONS,
    masks={},
    default_stamp=Stamp(api_version="", service_name="", identifier=""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start: how many seconds and how much CPU time it took until all rows could be read, and how many messages
    were restored.

    `memory_mib` is the most resident memory that the process had, and `disk_mib` is the size of the engine's folder.
    """

    start: str
    seconds: float
    cpu_s: float
    restored: int
    memory_mib: float
    disk_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How many microseconds a read takes."""

    read: str
    p50_us: float
    p99_us: float
    cpu_us: float


def main() -> None:
    """Fills the topic, and prints the figures of each start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, help=f"number of changes: {CHANGES:,}, with --quick {QUICK_CHANGES:,}")
    parser.add_argument("--quick", action="store_true", help="write fewer changes")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    for name in ("--keep-service", "--drop-service"):
        parser.add_argument(
            name, action="append", default=[], metavar="NAME", help="choose whose changes the view counts"
        )
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--until", help=argparse.SUPPRESS)
    options = parser.parse_args()
    services = ServiceChoice(keep=tuple(options.keep_service), drop=tuple(options.drop_service))
    if options.serve:
        serve(options.serve, Position.parse(options.until), services)
        return
    changes = options.changes or (QUICK_CHANGES if options.quick else CHANGES)
    figures = list(measure(World(changes + 2 * ADDED, changes // CHANGES_A_KEY + 1), changes, services))
    for line in figures:
        print("  ".join(f"{name} {value}" for name, value in line.items()))
    if options.json:
        print(json.dumps(figures))


def measure(world: World, changes: int, services: ServiceChoice) -> Iterator[dict[str, object]]:
    """Yields the figures of each start, and of the reads after the last one."""
    with temporary_broker() as broker, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = CONFIG.format(servers=broker.bootstrap_servers, jars=STREAMS, store="rocksdb")
        Path("changelog.toml").write_text(text, "utf-8")
        settings = KafkaSettings(
            client=Client(bootstrap_servers=broker.bootstrap_servers), name="booking", prefix="booking"
        )
        announce(settings)
        last = publish(settings, world, 0, changes)
        yield from started("first", last, services, signal.SIGTERM)
        last = publish(settings, world, changes, changes + ADDED)
        yield from started("warm", last, services, signal.SIGKILL)
        last = publish(settings, world, changes + ADDED, changes + 2 * ADDED)
        yield from started("crash", last, services, signal.SIGTERM)
        shutil.rmtree("views")
        yield from started("restored", last, services, signal.SIGTERM)


def announce(settings: KafkaSettings) -> None:
    """Publishes the first version of the columns of orders, as a service does before the first change."""
    source = Source(
        connector="postgres",
        name="booking",
        database="app",
        table="public.order",
        op=Op.CREATE,
        position=Position(1, 0, 0),
        transaction="1",
        committed_at=datetime.now(UTC),
    )
    columns = TableColumns(columns=Struct(fields=(("id", Primitive.STRING),)))
    versions = Versions([], accepted={}, filled=lambda *_: ())
    announced = versions.announce(ORDER, columns, Provenance(stamp=ORDER.default_stamp, source=source)).record
    with closing(KafkaSink(settings, JSON)) as sink:
        sink.prepare([ORDER])
        sink.recover()
        sink.add([from_records([announced])])
        shapes = {"order": ORDER.shape()}
        sink.commit(Checkpoint(position=source.position, through=commit_text(0), epoch=1, settings=shapes))


def publish(settings: KafkaSettings, world: World, begin: int, end: int) -> Position:
    """Publishes the changes with the numbers from `begin` up to, but not including, `end`. Returns the position of the
    last of these changes.
    """
    with closing(KafkaSink(settings, JSON)) as sink:
        sink.prepare([ORDER])
        sink.recover()
        for start in range(begin, end, COMMIT_ROWS):
            rows = world.rows(np.arange(start, min(start + COMMIT_ROWS, end), dtype=np.int64))
            partitions = pa.array(partition_batch(rows.column("key"), PARTITIONS))
            rows = rows.set_column(SCHEMA.get_field_index("partition"), SCHEMA.field("partition"), partitions)
            last = Position.parse(rows.column("position")[-1].as_py())
            sink.add([rows])
            shapes = {"order": ORDER.shape()}
            sink.commit(Checkpoint(position=last, through=commit_text(last.commit), epoch=1, settings=shapes))
    return last


def started(name: str, until: Position, services: ServiceChoice, end: signal.Signals) -> Iterator[dict[str, object]]:
    """Runs `serve` in a process, yields the figures that it prints, and then ends the process by the signal `end`."""
    command = [sys.executable, "-m", "bench.views_kafka", "--serve", name, "--until", str(until)]
    for option, names in (("--keep-service", services.keep), ("--drop-service", services.drop)):
        command += [text for service in names for text in (option, service)]
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "end\n":
                break
            yield json.loads(line)
        process.send_signal(end)


def serve(name: str, until: Position, services: ServiceChoice) -> None:
    """Opens the engine, waits until its rows are complete up to the position `until`, and prints figures. Then waits
    for SIGTERM, and closes the engine.
    """
    logs.configure(sys.stderr, verbose=False)
    settings = config.load(Path("changelog.toml"), os.environ)
    assert isinstance(settings.sink, KafkaConfig)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with closing(open_engine(settings, settings.sink, [("order", services)])) as engine:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        view = engine.view("order", services)

        def is_complete() -> bool:
            try:
                position = view.now().reached.position
                if position is None or position < until:
                    return False
                view.now().get(f"{1:010}")
                return True
            except ChangelogError:
                return False

        while not is_complete():
            time.sleep(0.02)
        start = Start(
            start=name,
            seconds=round(time.perf_counter() - began_s, 2),
            cpu_s=round(time.process_time() - began_cpu_s, 2),
            restored=engine.figures().restored,
            memory_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            disk_mib=round(sum(file.stat().st_size for file in Path("views").rglob("*") if file.is_file()) / 2**20),
        )
        print(json.dumps(asdict(start)), flush=True)
        if name == "restored":
            keys = [f"{number:010}" for number in np.random.default_rng(1).integers(0, CHANGES_A_KEY * 1000, KEYS)]
            print(json.dumps(asdict(timed("row", keys, lambda key: view.now().get(key)))), flush=True)
            page = timed(f"page of {PAGE_ROWS}", keys[:PAGES], lambda key: _page(view.now().rows(key)))
            print(json.dumps(asdict(page)), flush=True)
        print("end", flush=True)
        stopping.wait()


def _page(rows: Iterator[object]) -> object:
    return [row for _, row in zip(range(PAGE_ROWS), rows, strict=False)]


def timed(name: str, keys: list[str], read: Callable[[str], object]) -> Read:
    """Reads each key twice, and returns how long the second read of a key takes."""
    for key in keys:
        read(key)
    began_cpu_s, times_us = time.thread_time(), []
    for key in keys:
        began_s = time.perf_counter()
        read(key)
        times_us.append((time.perf_counter() - began_s) * 1e6)
    return Read(
        read=name,
        p50_us=round(statistics.median(times_us), 1),
        p99_us=round(sorted(times_us)[int(0.99 * len(times_us))], 1),
        cpu_us=round((time.thread_time() - began_cpu_s) / len(keys) * 1e6, 1),
    )


if __name__ == "__main__":
    main()
