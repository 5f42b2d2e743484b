"""Starts Spark on all cores of this machine, and measures how long each of several jobs takes. The jobs take turns."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.servers.spark import local_spark

MEMORY = "2g"


def session(folder: Path) -> AbstractContextManager[SparkSession]:
    """Returns a Spark session that has its files in `folder`."""
    return local_spark(folder, master="local[*]", memory=MEMORY, partitions=2 * (os.cpu_count() or 1))


def in_turn(sides: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Runs each job of `sides` once to warm up, and then all of them in turn, `rounds` times. Returns how many seconds
    each job took (the median).
    """
    for run in sides.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(runs) for name, runs in seconds.items()}
