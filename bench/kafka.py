"""Measures throughput, CPU time and latency of publishing to Kafka, by our service and by Debezium.

There are three sides: our service with JSON and our service with Avro, which publish each change exactly once, and
Debezium, which publishes each change at least once. Each side has its own database in one PostgreSQL, and its own topic
on one broker. The sides run in turn, for several rounds. In a round, a side starts a new process, which first drains a
backlog: it publishes all the changes that were written since its replication slot was created. Then the same process,
now warm, publishes 2,000 changes a second. A consumer of committed messages measures how long after its commit each
change arrives.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psycopg
from confluent_kafka import Producer

from bench.measure import backlog
from bench.measure.paced import Latency, latency
from bench.measure.processes import cpu_seconds, peak_mib
from bench.measure.publishers import HEAP, Debezium, Ours, Publisher, Workspace, end, last_line
from bench.measure.topic import Topic
from changelog.connectors.servers.kafka import Broker, temporary_broker
from changelog.connectors.servers.postgres import Server, temporary_server
from tests.servers.registry import temporary_registry

ROWS, QUICK_ROWS = 1_500_000, 300_000
ROUNDS = 3
PACED_S = 30.0
SIDES = ("json", "avro", "debezium")
PARTITIONS = 4

POLL_S = 0.1
SETTLED_S = 3.0
"""Seconds. The drain is over once the topic has at least as many offsets as there are changes, and has not grown for
this long. The markers that end transactions take offsets, too. Therefore the messages are counted at the end."""
START_S_MAX = 120.0
DRAIN_S_MAX = 900.0

POSTGRES = {"fsync": "off", "max_wal_size": "16GB", "wal_sender_timeout": "0", "autovacuum": "off"}
WARM_MESSAGES = 1_000_000
CACHE = Path(__file__).parent.parent / ".cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one side in one round.

    CPU time counts during the drain only, not while the process starts. `*_cores` is the average number of busy cores
    during the drain. `late_*` covers the second half of the backlog.
    """

    rows_per_second: float
    cpu_seconds_per_million: float
    late_rows_per_second: float
    late_cpu_seconds_per_million: float
    peak_mib: float
    own_cores: float
    broker_cores: float
    postgres_cores: float
    paced_per_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement during the drain: at the time `at`, `visible` offsets of the topic are committed.

    `cpu_seconds` holds the CPU seconds that the side, the broker and PostgreSQL have used until then, in this order.
    """

    at: float
    visible: int
    cpu_seconds: Sequence[float]


def main() -> None:
    """Runs the benchmark."""
    options = _parse_args()
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    results: dict[str, list[Figures]] = {side: [] for side in options.side or SIDES}
    with _servers(list(results)) as servers:
        for number in range(rounds):
            for side, figures in results.items():
                figures.append(_measured(side, number, servers, rows, options))
                print(f"round {number + 1} of {rounds}, {side}: {figures[-1].rows_per_second:,.0f} rows/s", flush=True)
    medians = {side: _median(figures) for side, figures in results.items()}
    print(f"{rows:,} changes, medians of {rounds} rounds")
    _print(medians)
    if options.json:
        print(json.dumps(_result(medians)))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help=f"changes in the backlog: {ROWS}, with --quick {QUICK_ROWS}")
    parser.add_argument("--rounds", type=int, help=f"times that each side runs: {ROUNDS}, with --quick 1")
    parser.add_argument("--seconds", type=float, default=PACED_S, help="seconds for which latency is measured")
    parser.add_argument("--quick", action="store_true", help="one round of fewer changes")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--side", action="append", choices=SIDES, help="only this side; may be repeated")
    parser.add_argument("--heap", default=HEAP, help="heap of Debezium's JVM, as -Xmx takes it (%(default)s)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="file for cProfile's figures of our service")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers that all sides share."""

    postgres: Server
    broker: Broker
    registry: str


@contextmanager
def _servers(sides: Sequence[str]) -> Iterator[Servers]:
    """Runs PostgreSQL, a broker that is warmed up and, for Avro, a schema registry."""
    if "debezium" in sides:
        _fetched("debezium")  # if it is missing, fail now and not after the other sides have run
    with ExitStack() as stack:
        postgres = stack.enter_context(temporary_server(settings=POSTGRES))
        broker = stack.enter_context(temporary_broker(heap="1g", java=()))
        _warm(broker)
        registry = stack.enter_context(temporary_registry(_fetched("registry"))).url if "avro" in sides else ""
        yield Servers(postgres=postgres, broker=broker, registry=registry)


def _fetched(name: str) -> Path:
    if not (CACHE / name / ".done").exists():
        raise SystemExit(f"{name} was not fetched: make .cache/{name}/.done")
    return CACHE / name


def _warm(broker: Broker) -> None:
    """Writes a topic and deletes it, so that the broker's JVM has compiled its code before the first side runs."""
    topic = Topic(broker.bootstrap_servers, "warm", PARTITIONS)
    topic.create()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
    for number in range(WARM_MESSAGES):
        while len(producer) > WARM_MESSAGES // 20:
            producer.poll(0.01)
        producer.produce(topic.name, b"%d" % number * 100)
    producer.flush()
    topic.delete()


def _measured(side: str, number: int, servers: Servers, rows: int, options: argparse.Namespace) -> Figures:
    name = f"{side}_{number}"
    with (
        _database(servers.postgres, name) as dsn,
        tempfile.TemporaryDirectory(prefix="changelog-bench-") as folder,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        workspace = Workspace(name=name, dsn=dsn, broker=servers.broker, partitions=PARTITIONS, folder=Path(folder))
        publisher = _publisher(side, workspace, servers, options)
        connection.execute(backlog.TABLE)
        publisher.prepare()
        backlog.fill(connection, rows)
        connection.execute("CHECKPOINT")
        topic = Topic(servers.broker.bootstrap_servers, publisher.topic, PARTITIONS)
        process = publisher.start()
        try:
            samples = _drain(process, topic, rows, workspace, servers)
            peak = peak_mib(process.pid)
            paced = latency(dsn, topic, options.seconds)
        finally:
            end(process)
        if (stored := topic.count()) != rows + paced.changes:
            raise SystemExit(f"{rows + paced.changes} changes were written, but {stored} are in {topic.name}")
        topic.delete()
    return _figures(samples, rows, peak, paced)


def _publisher(side: str, workspace: Workspace, servers: Servers, options: argparse.Namespace) -> Publisher:
    match side:
        case "debezium":
            return Debezium(workspace, _fetched("debezium") / "lib", heap=options.heap)
        case "avro":
            return Ours(workspace, registry=servers.registry, profile=options.profile)
        case _:
            return Ours(workspace, profile=options.profile)


@contextmanager
def _database(server: Server, name: str) -> Iterator[str]:
    """Creates a database; at the end, drops all replication slots and this database."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.dsn(name)
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _drain(
    process: subprocess.Popen[bytes], topic: Topic, rows: int, workspace: Workspace, servers: Servers
) -> Sequence[Sample]:
    """Takes samples from the moment when the process begins to read the slot, until all changes are visible."""
    pids = [process.pid, servers.broker.pid, servers.postgres.pid]
    _wait_until_slot_is_read(process, workspace)
    samples = [Sample(at=time.monotonic(), visible=0, cpu_seconds=[*map(cpu_seconds, pids)])]
    deadline = samples[0].at + DRAIN_S_MAX
    while samples[-1].visible < rows or time.monotonic() < samples[-1].at + SETTLED_S:
        _fail_if_stuck(process, workspace, deadline)
        time.sleep(POLL_S)
        visible = topic.visible()
        if visible > samples[-1].visible:
            samples.append(Sample(at=time.monotonic(), visible=visible, cpu_seconds=[*map(cpu_seconds, pids)]))
    return samples


def _wait_until_slot_is_read(process: subprocess.Popen[bytes], workspace: Workspace) -> None:
    deadline = time.monotonic() + START_S_MAX
    with psycopg.connect(workspace.dsn, autocommit=True) as connection:
        while True:
            _fail_if_stuck(process, workspace, deadline)
            slot = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [workspace.name])
            if slot.fetchone() == (True,):
                return
            time.sleep(POLL_S)


def _fail_if_stuck(process: subprocess.Popen[bytes], workspace: Workspace, deadline: float) -> None:
    if process.poll() is not None:
        raise SystemExit(f"{workspace.name} ended: {last_line(workspace.folder)}")
    if time.monotonic() > deadline:
        raise SystemExit(f"{workspace.name} did not finish in time: {last_line(workspace.folder)}")


def _figures(samples: Sequence[Sample], rows: int, peak: float, paced: Latency) -> Figures:
    first, last = samples[0], samples[-1]
    middle = next(sample for sample in samples if sample.visible >= last.visible / 2)
    late_rows = rows * (last.visible - middle.visible) / last.visible
    seconds = last.at - first.at
    own, broker, postgres = (after - before for before, after in zip(first.cpu_seconds, last.cpu_seconds, strict=True))
    return Figures(
        rows_per_second=rows / seconds,
        cpu_seconds_per_million=own / rows * 1e6,
        late_rows_per_second=late_rows / (last.at - middle.at),
        late_cpu_seconds_per_million=(last.cpu_seconds[0] - middle.cpu_seconds[0]) / late_rows * 1e6,
        peak_mib=peak,
        own_cores=own / seconds,
        broker_cores=broker / seconds,
        postgres_cores=postgres / seconds,
        paced_per_second=paced.per_second,
        p50_ms=paced.p50_ms,
        p99_ms=paced.p99_ms,
    )


def _median(figures: Sequence[Figures]) -> Figures:
    by_name = {field.name: [getattr(round_, field.name) for round_ in figures] for field in fields(Figures)}
    return Figures(**{name: statistics.median(values) for name, values in by_name.items()})


def _print(medians: Mapping[str, Figures]) -> None:
    heads = (
        "rows/s",
        "late",
        "CPU s/M",
        "late",
        "peak MiB",
        "cores",
        "broker",
        "postgres",
        "paced/s",
        "p50 ms",
        "p99 ms",
    )
    print(f"{'':10}" + "".join(f"{head:>10}" for head in heads))
    for side, figures in medians.items():
        shown = (f"{value:>10,.0f}" if value >= 100 else f"{value:>10.2f}" for value in asdict(figures).values())
        print(f"{side:10}" + "".join(shown))
    for name, ratio in _ratios(medians).items():
        print(f"{name} {ratio:.3f}")


def _ratios(medians: Mapping[str, Figures]) -> Mapping[str, float]:
    """Divides the figures of our two sides by Debezium's.

    Debezium's rate over the whole backlog is compared with its rate over the second half, and the better one counts.
    The same holds for its CPU time.
    """
    if "debezium" not in medians:
        return {}
    peer = medians["debezium"]
    rate = max(peer.rows_per_second, peer.late_rows_per_second)
    cpu = min(peer.cpu_seconds_per_million, peer.late_cpu_seconds_per_million)
    ratios: dict[str, float] = {}
    for side, name in (("json", "ours"), ("avro", "avro")):
        if side in medians:
            figures = medians[side]
            ratios |= {
                f"{name}_over_debezium": figures.rows_per_second / rate,
                f"cpu_{name}_over_debezium": figures.cpu_seconds_per_million / cpu,
                f"memory_{name}_over_debezium": figures.peak_mib / peer.peak_mib,
                f"latency_{name}_over_debezium": figures.p99_ms / peer.p99_ms,
            }
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def _result(medians: Mapping[str, Figures]) -> Mapping[str, object]:
    return {
        "benchmark": "kafka",
        "ratios": _ratios(medians),
        "figures": {
            side: {name: round(value, 2) for name, value in asdict(figures).items()}
            for side, figures in medians.items()
        },
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
    }


if __name__ == "__main__":
    main()
