"""Writes an archive of the classes that Spark loads. Java maps the archive into memory, so Spark starts in less CPU
time.

`make` runs this module once. Java ignores the archive after Spark or Java itself has changed.
"""

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions

from changelog.connectors.servers.kafka import BRIEF
from tests.patience import PROGRAM_S
from tests.servers.spark import local_spark


def use(spark: SparkSession, folder: Path) -> None:
    """Makes Spark load the classes that most queries of the jobs need."""
    rows = spark.range(100).selectExpr("id", "CAST(id % 7 AS STRING) AS part", "STRUCT(id, 'text' AS text) AS pair")
    rows.write.partitionBy("part").parquet(str(folder / "rows"))
    stored = spark.read.parquet(str(folder / "rows"))
    groups = stored.groupBy("part").agg(
        functions.count("*").alias("count"), functions.max("id"), functions.collect_list("pair")
    )
    groups.join(rows, "part").orderBy("id").collect()
    rows.select("id", "part").mapInArrow(lambda batches: batches, "id BIGINT, part STRING").collect()


def main(archive: Path) -> None:
    """Writes the archive to the path `archive`. Exits with an error if Java wrote none."""
    with tempfile.TemporaryDirectory(prefix="changelog-classes-") as name:
        # Java cannot archive some classes, and would print a warning for each of them.
        options = " ".join((*BRIEF, f"-XX:ArchiveClassesAtExit='{archive}'", "-Xlog:disable"))
        with local_spark(Path(name), others={"spark.driver.extraJavaOptions": options}) as spark:
            use(spark, Path(name))
        gateway: Any = SparkContext._gateway
        with contextlib.suppress(Py4JError, OSError):  # Java ends without an answer
            gateway.jvm.java.lang.System.exit(0)
        gateway.proc.wait(PROGRAM_S)  # Java writes the archive as it ends
    if not archive.exists():
        sys.exit(f"Java wrote no archive {archive}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
