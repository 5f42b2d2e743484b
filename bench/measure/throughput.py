"""Measures how fast our service and Debezium drain a backlog into a Kafka topic. The backlog is all changes that wait
in the database's log. Each of the publishers that are compared is called a *side*.
"""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Producer

from bench.measure.processes import cpu_seconds, peak_mib
from bench.measure.publishers import Workspace, last_line
from bench.measure.topic import Topic
from changelog.connectors.servers.kafka import Broker, temporary_broker

PARTITIONS = 4
POLL_S = 0.1
SETTLED_S = 3.0
"""The drain is over when the topic has at least as many new offsets as there are changes, and has not grown for this
many seconds. The markers that end transactions take offsets, too. So enough offsets do not prove that all messages are
there, and the caller must count the messages afterwards (`Topic.count`).
"""
START_S_MAX = 120.0
DRAIN_S_MAX = 900.0
WARM_MESSAGES = 1_000_000
CACHE = Path(__file__).parents[2] / ".cache"

PEER = "debezium"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The figures of one drain.

    CPU time is measured only during the drain, not while the process starts. The three figures `*_cores` say how many
    cores the side, the broker and the database kept busy, on average during the drain. The figures `late_*` are those
    for the second half of the backlog.
    """

    rows_per_second: float
    late_rows_per_second: float
    cpu_seconds_per_million: float
    late_cpu_seconds_per_million: float
    peak_mib: float
    own_cores: float
    broker_cores: float
    database_cores: float


HEADS = ("rows/s", "late", "CPU s/M", "late", "peak MiB", "cores", "broker", "database")
"""What `print_table` writes above the figures of `Throughput`, in their order."""

Row = TypeVar("Row", bound=Throughput)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One measurement: at the time `at`, `visible` new offsets of the topic were committed.

    `cpu_seconds` has the CPU seconds that the side, the broker and the database had used by then, in this order.
    """

    at: float
    visible: int
    cpu_seconds: Sequence[float]


def fetched(name: str) -> Path:
    """Returns the folder of a server that `make` has fetched. Raises SystemExit if it was not fetched."""
    if not (CACHE / name / ".done").exists():
        raise SystemExit(f"{name} was not fetched: make .cache/{name}/.done")
    return CACHE / name


@contextmanager
def warm_broker() -> Iterator[Broker]:
    """Runs a broker that has already written a topic, so that its JVM has compiled the code for this."""
    with temporary_broker(heap="1g", java=()) as broker:
        _warm(broker)
        yield broker


def _warm(broker: Broker) -> None:
    topic = Topic(broker.bootstrap_servers, "warm", PARTITIONS)
    topic.create()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
    for number in range(WARM_MESSAGES):
        while len(producer) > WARM_MESSAGES // 20:
            producer.poll(0.01)
        producer.produce(topic.name, b"%d" % number * 100)
    producer.flush()
    topic.delete()


def drain(
    process: subprocess.Popen[bytes],
    workspace: Workspace,
    topic: Topic,
    rows: int,
    *,
    database_pid: int,
    is_read: Callable[[], bool],
) -> Throughput:
    """Measures a side, from the moment when its new process begins to read the database's log, until all changes are
    visible in the topic.

    `is_read` says whether any process reads the log. Raises SystemExit if the side's process ends, or takes too long.
    """
    pids = [process.pid, workspace.broker.pid, database_pid]
    before = topic.visible()
    deadline = time.monotonic() + START_S_MAX
    while not is_read():
        _fail_if_stuck(process, workspace, deadline)
        time.sleep(POLL_S)
    samples = [_Sample(at=time.monotonic(), visible=0, cpu_seconds=[*map(cpu_seconds, pids)])]
    deadline = samples[0].at + DRAIN_S_MAX
    while samples[-1].visible < rows or time.monotonic() < samples[-1].at + SETTLED_S:
        _fail_if_stuck(process, workspace, deadline)
        time.sleep(POLL_S)
        visible = topic.visible() - before
        if visible > samples[-1].visible:
            samples.append(_Sample(at=time.monotonic(), visible=visible, cpu_seconds=[*map(cpu_seconds, pids)]))
    return _throughput(samples, rows, peak_mib(process.pid))


def _fail_if_stuck(process: subprocess.Popen[bytes], workspace: Workspace, deadline: float) -> None:
    if process.poll() is not None:
        raise SystemExit(f"{workspace.name} ended: {last_line(workspace.folder)}")
    if time.monotonic() > deadline:
        raise SystemExit(f"{workspace.name} did not finish in time: {last_line(workspace.folder)}")


def _throughput(samples: Sequence[_Sample], rows: int, peak: float) -> Throughput:
    first, last = samples[0], samples[-1]
    middle = next(sample for sample in samples if sample.visible >= last.visible / 2)
    late_rows = rows * (last.visible - middle.visible) / last.visible
    seconds = last.at - first.at
    own, broker, database = (after - before for before, after in zip(first.cpu_seconds, last.cpu_seconds, strict=True))
    late = late_rows > 0  # if there are no late rows, the second half became visible all at once
    return Throughput(
        rows_per_second=rows / seconds,
        cpu_seconds_per_million=own / rows * 1e6,
        late_rows_per_second=late_rows / (last.at - middle.at) if late else rows / seconds,
        late_cpu_seconds_per_million=(
            (last.cpu_seconds[0] - middle.cpu_seconds[0]) / late_rows * 1e6 if late else own / rows * 1e6
        ),
        peak_mib=peak,
        own_cores=own / seconds,
        broker_cores=broker / seconds,
        database_cores=database / seconds,
    )


def median(rounds: Sequence[Row]) -> Row:
    """Returns the medians of the figures of several rounds."""
    kind = type(rounds[0])
    by_name = {field.name: [getattr(figures, field.name) for figures in rounds] for field in fields(kind)}
    return kind(**{name: statistics.median(values) for name, values in by_name.items()})


def print_table(medians: Mapping[str, Throughput], heads: Sequence[str] = HEADS) -> None:
    """Prints a line for each side, under a line with `heads`."""
    print(f"{'':10}" + "".join(f"{head:>10}" for head in heads))
    for side, figures in medians.items():
        shown = (f"{value:>10,.0f}" if value >= 100 else f"{value:>10.2f}" for value in asdict(figures).values())
        print(f"{side:10}" + "".join(shown), flush=True)


def ratios(medians: Mapping[str, Throughput], names: Mapping[str, str]) -> Mapping[str, float]:
    """Divides the figures of our sides by Debezium's, if Debezium was measured. `names` maps each of our sides to the
    name that the result uses for it: `ours` gives `ours_over_debezium`.

    Debezium has two rates, one for the whole backlog and one for its second half; the better one counts. The same
    applies to the two figures for its CPU time.
    """
    if PEER not in medians:
        return {}
    peer = medians[PEER]
    rate = max(peer.rows_per_second, peer.late_rows_per_second)
    cpu = min(peer.cpu_seconds_per_million, peer.late_cpu_seconds_per_million)
    result: dict[str, float] = {}
    for side, name in names.items():
        if side in medians:
            figures = medians[side]
            result |= {
                f"{name}_over_{PEER}": figures.rows_per_second / rate,
                f"cpu_{name}_over_{PEER}": figures.cpu_seconds_per_million / cpu,
                f"memory_{name}_over_{PEER}": figures.peak_mib / peer.peak_mib,
            }
    return {name: round(ratio, 3) for name, ratio in result.items()}


def as_json(medians: Mapping[str, Throughput]) -> Mapping[str, Mapping[str, float]]:
    """Returns the medians of each side, rounded. With `--json`, they are printed in the last line."""
    return {
        side: {name: round(value, 2) for name, value in asdict(figures).items()} for side, figures in medians.items()
    }
