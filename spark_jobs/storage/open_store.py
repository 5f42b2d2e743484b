"""Opens the store at a path or URI."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.storage.hadoop_store import hadoop
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.store import FolderStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def is_local(where: str | Path) -> bool:
    """Returns whether a path or URI is on this machine. Then its scheme is `file:`, or it has no scheme."""
    scheme = None if isinstance(where, Path) else _SCHEME.match(where)
    return scheme is None or scheme[1] == "file"


def store_of(where: str | Path, spark: "SparkSession | None" = None) -> FolderStore:
    """Returns the store at a path or URI. If the store is not on this machine, `spark` is needed to reach it."""
    if isinstance(where, Path):
        return local(where)
    if is_local(where):
        return local(Path(re.sub("^file:(//)?", "", where)))
    if spark is None:
        raise ChangelogError(Kind.USAGE, f"{where} can be reached only with a Spark session")
    return hadoop(spark, where)
