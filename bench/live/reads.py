"""Measures how long `changelog views serve` takes to answer requests for rows while the rows change.

One process publishes 5,000 changes a second. The benchmark's own process sends 1,000 requests a second over many
connections. Both processes share the machine with the broker and the service. So the CPU time of each process is
printed, too. The CPU time of the service is also printed for each group of its threads. The group *python* has the
event loop and Python's other threads; the threads in the other groups are Java's. The CPU time of *python* is also
divided by the number of requests.

With `--changes 0`, nothing is published, so the CPU time is that of the requests and of the idle service. With
`--reads 0`, no requests are sent, so the CPU time is that of the changes and of the idle service.

After 10,000 changes of a partition, Kafka Streams makes RocksDB write them to disk. Meanwhile, a request for this
partition waits, and all other requests wait with it, because a single thread reads the rows for all requests. With
`--store in-memory`, nothing is written to disk.
"""

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from bench.archived.changes import World
from bench.live import open_loop
from bench.measure.options import print_figures
from bench.measure.processes import cpu_seconds
from bench.views_kafka import CONFIG, ORDER, PARTITIONS, STREAMS, announce, publish
from changelog.connectors.kafka.client import Client
from changelog.connectors.servers.kafka import temporary_broker
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.key import partition_batch
from changelog.envelope.position import Position, commit_text

ROWS, READS_PER_S, CHANGES_PER_S, SECONDS, CONNECTIONS = 100_000, 1_000, 5_000, 60, 32
AIM_MS = 10
COMMITS_PER_S = 5
WARM_S = 15
READY_S_MAX = 300
RESERVE = 10
"""On a busy machine, a run takes longer and publishes more changes. So the changes of ten normal runs are prepared."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Starts all processes, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="number of rows (%(default)s)")
    parser.add_argument("--reads", type=int, default=READS_PER_S, help="requests a second (%(default)s)")
    parser.add_argument("--changes", type=int, default=CHANGES_PER_S, help="changes a second (%(default)s)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long to measure (%(default)s)")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="number of connections (%(default)s)")
    parser.add_argument("--store", default="rocksdb", help="where the service keeps rows (%(default)s)")
    parser.add_argument("--split", action="store_true", help="run the service on core 0, and all others on core 1")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    if options.split and len(os.sched_getaffinity(0)) < 2:
        parser.error("--split needs two cores")
    print_figures(measure(options), as_json=options.json)


def measure(options: argparse.Namespace) -> Mapping[str, object]:
    """Returns the figures of one run."""
    seconds = WARM_S + options.seconds
    if options.split:
        os.sched_setaffinity(0, {1})  # the processes that this one starts inherit this
    world = World(options.rows + options.changes * seconds * RESERVE, options.rows)
    with temporary_broker() as broker, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = CONFIG.format(servers=broker.bootstrap_servers, jars=STREAMS, store=options.store)
        Path("changelog.toml").write_text(text, "utf-8")
        settings = KafkaSettings(
            client=Client(bootstrap_servers=broker.bootstrap_servers), name="booking", prefix="booking"
        )
        announce(settings)
        publish(settings, world, 0, options.rows)
        with (
            served(core=0 if options.split else None) as (pid, address),
            publishing(settings, world, options.changes) as publisher_pid,
        ):
            pids = {"the service": pid, "the broker": broker.pid}
            if publisher_pid is not None:
                pids["the publisher"] = publisher_pid
            load(address, options, WARM_S)
            threads, processes, began_s = cpu_by_thread(pid), cpu_by_process(pids), time.monotonic()
            answers = load(address, options, options.seconds)
            elapsed_s = time.monotonic() - began_s
            threads, processes = cpu_by_thread(pid) - threads, cpu_by_process(pids) - processes
    return {
        **({} if answers is None else figures_of(answers, threads)),
        **{f"CPU of {name}, %": round(100 * ticks / TICKS_PER_S / elapsed_s, 1) for name, ticks in processes.items()},
        **{
            f"CPU of the service's {name}, %": round(100 * ticks / TICKS_PER_S / elapsed_s, 1)
            for name, ticks in threads.most_common(8)
        },
    }


def figures_of(answers: open_loop.Answers, cpu: Mapping[str, int]) -> Mapping[str, object]:
    """Returns the figures of the requests. `cpu` has the CPU time, in ticks, of each group of the service's threads."""
    count = len(answers.latencies_s)
    return {
        **{f"p{percentile:g} ms": round(answers.milliseconds(percentile), 2) for percentile in (50, 90, 99, 99.9, 100)},
        f"within {AIM_MS} ms, %": round(100 * float((answers.latencies_s * 1000 <= AIM_MS).mean()), 2),
        "statuses": dict(answers.statuses),
        "CPU of python, us a request": round(cpu["python"] / TICKS_PER_S / count * 1e6),
    }


def load(address: str, options: argparse.Namespace, seconds: int) -> open_loop.Answers | None:
    """Sends requests for random rows for this many seconds. If no requests are wanted, only waits."""
    if not options.reads:
        time.sleep(seconds)
        return None
    keys = np.random.default_rng(1).integers(0, options.rows, options.reads * seconds)
    url = urlsplit(address)
    assert url.hostname is not None
    assert url.port is not None
    return open_loop.send(
        url.hostname,
        url.port,
        lambda number: f"/order/{keys[number]:010}",
        per_second=options.reads,
        seconds=seconds,
        connections=options.connections,
    )


@contextmanager
def served(core: int | None = None) -> Iterator[tuple[int, str]]:
    """Starts a service on one `core`, or on all cores. Once its rows can be read, yields its process id and address."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "changelog", "views", "serve", "--port", "0"]
    if core is not None:
        command = ["taskset", "--cpu-list", str(core), *command]  # taskset becomes the service, so the id stays
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        match = re.search(r"views are served at (http://\S+)/", process.stdout.readline())
        assert match is not None
        try:
            deadline_s = time.monotonic() + READY_S_MAX
            while not is_ready(match[1]):
                if time.monotonic() > deadline_s:
                    raise SystemExit("the rows cannot be read")
                time.sleep(0.2)
            yield process.pid, match[1]
        finally:
            process.terminate()


def is_ready(address: str) -> bool:
    """Returns whether the service at this address answers requests for rows."""
    try:
        with urllib.request.urlopen(f"{address}/ready") as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


@contextmanager
def publishing(settings: KafkaSettings, world: World, per_second: int) -> Iterator[int | None]:
    """Publishes changes at an even pace, in another process, until the `with` block ends. Yields the id of this
    process, or None if no changes are wanted.
    """
    if not per_second:
        yield None
        return
    process = multiprocessing.get_context("spawn").Process(
        target=publish_at_pace, args=(settings, world, per_second), daemon=True
    )
    process.start()
    try:
        yield process.pid
        if not process.is_alive():
            raise SystemExit("the process that publishes changes has ended")
    finally:
        process.kill()
        process.join()


def publish_at_pace(settings: KafkaSettings, world: World, per_second: int) -> None:
    """Publishes the changes of `world`, except the first change of each row, at an even pace."""
    step = per_second // COMMITS_PER_S
    with closing(KafkaSink(settings, JSON)) as sink:
        sink.prepare([ORDER])
        sink.recover()
        began_s = time.monotonic()
        for number, start in enumerate(range(world.key_count, world.changes - step, step)):
            rows = world.rows(np.arange(start, start + step, dtype=np.int64))
            partitions = pa.array(partition_batch(rows.column("key"), PARTITIONS))
            rows = rows.set_column(SCHEMA.get_field_index("partition"), SCHEMA.field("partition"), partitions)
            last = Position.parse(rows.column("position")[-1].as_py())
            time.sleep(max(0.0, began_s + number / COMMITS_PER_S - time.monotonic()))
            sink.add([rows])
            sink.commit(
                Checkpoint(position=last, through=commit_text(last.commit), epoch=1, settings={"order": ORDER.shape()})
            )


def cpu_by_thread(pid: int) -> Counter[str]:
    """Returns the CPU time, in ticks, that the threads of a process have used, by group. Threads that have ended do not
    count.
    """
    ticks = Counter[str]()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        name, _, fields = path.read_text().partition("(")[2].rpartition(") ")
        ticks[re.sub(r"[-#]?\d+$", "", name)] += sum(map(int, fields.split()[11:13]))
    return ticks


def cpu_by_process(pids: Mapping[str, int]) -> Counter[str]:
    """Returns the CPU time, in ticks, that these processes have used. Also returns the CPU time of this process (*the
    client*), and that of all processes on the machine.
    """
    ticks = Counter({name: round(cpu_seconds(pid) * TICKS_PER_S) for name, pid in pids.items()})
    ticks["the client"] = round(time.process_time() * TICKS_PER_S)
    user, nice, system, _idle, _waiting, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    ticks["all on this machine"] = user + nice + system + sum(interrupts)
    return ticks


if __name__ == "__main__":
    main()
