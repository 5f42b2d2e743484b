"""Measures *drains*: how long a source takes to read a whole backlog of changes. Each *side*, which is one of the
programs that a benchmark compares, runs in a process of its own.
"""

import argparse
import cProfile
import gc
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Event

import pyarrow as pa

from changelog.connectors.commands.run import COLLECT_EVERY
from changelog.connectors.service.loop import Cadence, Observer, publish
from changelog.connectors.sinks import Sink
from changelog.connectors.sources import ChangeSource, Recover
from changelog.connectors.state.before_images import BeforeImages
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.model import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one drain: how long it took, and the CPU seconds and the peak memory of the whole process."""

    seconds: float
    cpu_seconds: float
    peak_mib: float

    @classmethod
    def median(cls, runs: Sequence["Figures"]) -> "Figures":
        """Returns the medians of the figures of several drains."""
        return cls(
            seconds=statistics.median(run.seconds for run in runs),
            cpu_seconds=statistics.median(run.cpu_seconds for run in runs),
            peak_mib=statistics.median(run.peak_mib for run in runs),
        )


def timed(command: Sequence[str]) -> Figures:
    """Runs a command and returns its figures.

    Our own sides print how many seconds the drain took, without the start of Python. If the command prints such a
    number, it is used. Otherwise, the time of the whole command is used.
    """
    started_at = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started_at
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} failed with exit code {process.returncode}")
    return Figures(
        seconds=json.loads(printed.splitlines()[-1])["seconds"] if printed else seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
    )


class Nowhere:
    """A sink that stores nothing."""

    def recover(self) -> Checkpoint | None:
        """See `Sink`."""
        return None

    def prepare(self, entities: Sequence[Entity]) -> None:
        """See `Sink`."""

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """See `Sink`."""

    def commit(self, checkpoint: Checkpoint) -> None:
        """See `Sink`."""

    def lost(self, _entities: Collection[str]) -> Collection[str]:
        """See `Sink`. Because nothing is stored, nothing can be lost."""
        return ()

    def abandon(self) -> None:
        """See `Sink`."""

    def close(self) -> None:
        """See `Sink`."""


class _StopAt(Observer):
    """Counts the rows that the loop has stored, and stops the loop when `reached` returns true for the checkpoint and
    this count.
    """

    def __init__(self, reached: Callable[[Checkpoint, int], bool], stop: Event) -> None:
        self._reached, self._stop = reached, stop
        self.rows = 0

    def committed(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint, _: float) -> None:
        """See `Observer`."""
        self.rows += sum(batch.num_rows for batch in rows)
        if self._reached(checkpoint, self.rows):
            self._stop.set()


def drain(
    open_source: Callable[[Recover], ChangeSource],
    sink: Sink,
    reached: Callable[[Checkpoint, int], bool],
    state: BeforeImages | None = None,
) -> None:
    """Reads a source until `reached` returns true for the stored checkpoint and the number of rows stored so far.

    Prints a line of JSON that says how many seconds this took, and how many rows there were.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)  # as `changelog run` does
    stop = Event()
    observer = _StopAt(reached, stop)
    started_at = time.perf_counter()
    publish(open_source, sink, stop=stop, state=state, observer=observer, cadence=Cadence(idle_seconds=0.01))
    sink.close()
    seconds = time.perf_counter() - started_at
    if state is not None:
        state.close()
    print(json.dumps({"seconds": seconds, "rows": observer.rows}))


def profiled(file: str | None, call: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Calls `call` with the options. If `file` is given, cProfile measures the call, and writes into this file."""
    if file is None:
        call(options)
        return
    profile = cProfile.Profile()
    profile.runcall(call, options)
    profile.dump_stats(file)


def entity(schema: str) -> Entity:
    """Returns the entity for the table `orders` in a database schema."""
    return Entity(
        name="orders",
        table=(schema, "orders"),
        key=("id",),
        partition_by=("id",),
        partitions=1,
        masks={},
        default_stamp=Stamp(api_version="unknown", service_name="unknown", identifier=""),
    )


def print_figures(figures: Mapping[str, Figures], rows: Mapping[str, int]) -> None:
    """Prints a table with the medians of each side. `rows` says how many rows each side read."""
    print(f"{'':16}{'rows/s':>10}{'CPU s/million':>16}{'peak MiB':>10}")
    for side, median in figures.items():
        print(
            f"{side:16}{rows[side] / median.seconds:>10,.0f}"
            f"{median.cpu_seconds / rows[side] * 1e6:>16.2f}{median.peak_mib:>10.0f}",
            flush=True,
        )


def as_json(figures: Mapping[str, Figures], rows: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Returns the medians of each side, rounded. With `--json`, they are printed in the last line."""
    return {
        side: {
            "rows_per_second": round(rows[side] / median.seconds),
            "cpu_seconds_per_million": round(median.cpu_seconds / rows[side] * 1e6, 2),
            "peak_mib": round(median.peak_mib),
        }
        for side, median in figures.items()
    }
