"""Starts Spark on this machine for tests, campaigns and benchmarks, with the jobs' settings but without log output."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from changelog.spark_jobs.runner.job import begin


@contextmanager
def local_spark(
    folder: Path, *, master: str = "local[2]", memory: str = "1g", partitions: int = 4, others: Mapping[str, str] = {}
) -> Iterator[SparkSession]:
    """Yields a session whose files are in `folder`. `partitions` is the number of shuffle partitions. `others` are more
    settings; they replace settings of the same names.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **others,
    }
    spark = begin("changelog", settings)
    try:
        yield spark
    finally:
        spark.stop()
