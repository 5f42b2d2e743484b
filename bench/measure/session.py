"""Spark on all cores of this machine, and sides that take turns in it."""

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
    """Its files are in `folder`."""
    return local_spark(folder, master="local[*]", memory=MEMORY, partitions=2 * (os.cpu_count() or 1))


def in_turn(sides: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median of the seconds that each side takes, all of them warmed first and then one after another."""
    for run in sides.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in seconds.items()}
