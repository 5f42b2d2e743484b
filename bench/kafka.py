"""Measures throughput, CPU time and latency of publishing to Kafka, by our service and by Debezium.

Three publishers (*sides*) are compared: our service with JSON, our service with Avro, and Debezium. Our service
publishes each change exactly once, and Debezium at least once. All sides use the same PostgreSQL server and the same
broker, but each has its own database and its own topic. There are several rounds, in which the sides run one after
another. In each round, a side starts a new process. First, the process drains a backlog: it publishes all changes since
its replication slot was created. Then the same process, which is now warm, publishes 2,000 changes a second. For each
of these changes, we measure the time from its COMMIT until a consumer has the message.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from bench.measure import backlog
from bench.measure.debezium import HEAP, PostgresDebezium
from bench.measure.paced import latency
from bench.measure.publishers import Ours, Publisher, Workspace, end
from bench.measure.throughput import (
    HEADS,
    PARTITIONS,
    PEER,
    Throughput,
    as_json,
    drain,
    fetched,
    median,
    print_table,
    ratios,
    warm_broker,
)
from bench.measure.topic import Topic
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from tests.servers.registry import temporary_registry

ROWS, QUICK_ROWS = 1_500_000, 300_000
ROUNDS = 3
PACED_S = 30.0
SIDES = ("json", "avro", PEER)

POSTGRES = {"fsync": "off", "max_wal_size": "16GB", "wal_sender_timeout": "0", "autovacuum": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Throughput):
    """The figures of one side in one round. Those of `Throughput` are for the backlog; the others are for the changes
    at a steady pace, which follow the backlog.
    """

    paced_per_second: float
    p50_ms: float
    p99_ms: float


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
    medians = {side: median(figures) for side, figures in results.items()}
    print(f"{rows:,} changes, medians of {rounds} rounds")
    print_table(medians, [*HEADS, "paced/s", "p50 ms", "p99 ms"])
    for name, ratio in _ratios(medians).items():
        print(f"{name} {ratio:.3f}")
    if options.json:
        print(json.dumps(_result(medians)))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help=f"changes in the backlog: {ROWS}, with --quick {QUICK_ROWS}")
    parser.add_argument("--rounds", type=int, help=f"how often each side runs (default: {ROUNDS}; 1 with --quick)")
    parser.add_argument("--seconds", type=float, default=PACED_S, help="seconds for which latency is measured")
    parser.add_argument("--quick", action="store_true", help="run only one round, with fewer changes")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    parser.add_argument("--side", action="append", choices=SIDES, help="run only this side; may be repeated")
    parser.add_argument("--heap", default=HEAP, help="heap of Debezium's JVM, in the format of -Xmx (%(default)s)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write cProfile's figures of our service to FILE")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers that all sides share."""

    postgres: PostgresServer
    broker: Broker
    registry: str


@contextmanager
def _servers(sides: Sequence[str]) -> Iterator[Servers]:
    """Runs PostgreSQL, a broker that is warmed up, and, if a side uses Avro, a schema registry."""
    if PEER in sides:
        fetched("debezium")  # if Debezium is missing, this fails before the other sides run
    with ExitStack() as stack:
        postgres = stack.enter_context(temporary_server(settings=POSTGRES))
        broker = stack.enter_context(warm_broker())
        registry = stack.enter_context(temporary_registry(fetched("registry"))).url if "avro" in sides else ""
        yield Servers(postgres=postgres, broker=broker, registry=registry)


def _measured(side: str, number: int, servers: Servers, rows: int, options: argparse.Namespace) -> Figures:
    name = f"{side}_{number}"
    with (
        _database(servers.postgres, name) as dsn,
        tempfile.TemporaryDirectory(prefix="changelog-bench-") as folder,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        workspace = Workspace(
            name=name,
            dsn=dsn,
            table="public.orders",
            broker=servers.broker,
            partitions=PARTITIONS,
            folder=Path(folder),
        )
        publisher = _publisher(side, workspace, servers, options)
        connection.execute(backlog.TABLE)
        publisher.prepare()
        backlog.fill(connection, rows)
        connection.execute("CHECKPOINT")
        topic = Topic(servers.broker.bootstrap_servers, publisher.topic, PARTITIONS)
        process = publisher.start()
        try:
            drained = drain(
                process,
                workspace,
                topic,
                rows,
                database_pid=servers.postgres.pid,
                is_read=lambda: _is_slot_read(connection, name),
            )
            paced = latency(dsn, topic, options.seconds)
        finally:
            end(process)
        if (stored := topic.count()) != rows + paced.changes:
            raise SystemExit(f"{rows + paced.changes} changes were written, but {stored} are in {topic.name}")
        topic.delete()
    return Figures(**asdict(drained), paced_per_second=paced.per_second, p50_ms=paced.p50_ms, p99_ms=paced.p99_ms)


def _publisher(side: str, workspace: Workspace, servers: Servers, options: argparse.Namespace) -> Publisher:
    match side:
        case "debezium":
            return PostgresDebezium(workspace, fetched("debezium") / "lib", heap=options.heap)
        case "avro":
            return Ours(workspace, registry=servers.registry, profile=options.profile)
        case _:
            return Ours(workspace, profile=options.profile)


@contextmanager
def _database(server: PostgresServer, name: str) -> Iterator[str]:
    """Creates a database, and yields its DSN. At the end, drops all replication slots and this database."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.dsn(name)
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _is_slot_read(connection: psycopg.Connection, name: str) -> bool:
    slot = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [name])
    return slot.fetchone() == (True,)


def _ratios(medians: Mapping[str, Figures]) -> Mapping[str, float]:
    names = {"json": "ours", "avro": "avro"}
    latencies = {
        f"latency_{name}_over_{PEER}": round(medians[side].p99_ms / medians[PEER].p99_ms, 3)
        for side, name in names.items()
        if {side, PEER} <= medians.keys()
    }
    return {**ratios(medians, names), **latencies}


def _result(medians: Mapping[str, Figures]) -> Mapping[str, object]:
    return {
        "benchmark": "kafka",
        "ratios": _ratios(medians),
        "figures": as_json(medians),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
    }


if __name__ == "__main__":
    main()
