"""Divides the pages of tables among Spark's tasks, which read them under a fence (a snapshot of the database).

A *leaf* is a table that has rows of its own: a table without partitions, or a partition of a table.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from changelog.connectors.sources.fences import ROWS, FencedTable, Pages, Scan
from changelog.spark_jobs.drift.fenced.source_scan import scan
from changelog.spark_jobs.drift.key_ranges import Bounds

TASK_PAGES: Final = 8192
TASK_PAGES_MIN: Final = 128
"""By default, `TASK_PAGES` is the most pages that one task reads (64 MiB). If this would leave cores idle, tasks read
fewer pages, but usually at least `TASK_PAGES_MIN`.
"""


def ranges(tables: Mapping[str, FencedTable], tasks: int) -> list[list[Pages]]:
    """Returns all pages of the tables, divided among about `tasks` tasks: a list of ranges of pages for each task.

    The last range of each leaf has no end, because the leaf may have grown since its pages were counted.
    """
    total = sum(pages for table in tables.values() for pages in table.leaf_pages)
    share = max(1, -(-total // tasks))
    bins: list[list[Pages]] = [[]]
    room = share
    for name, table in tables.items():
        for number, pages in enumerate(table.leaf_pages):
            first = 0
            while pages - first > room:
                bins[-1].append(Pages(entity=name, leaf=number, first=first, end=first + room))
                bins.append([])
                first, room = first + room, share
            bins[-1].append(Pages(entity=name, leaf=number, first=first, end=None))
            room -= pages - first
    return bins


def _leaves(tables: Mapping[str, FencedTable]) -> list[list[Pages]]:
    return [
        [Pages(entity=name, leaf=number, first=0, end=None)]
        for name, table in tables.items()
        for number in range(len(table.leaf_pages))
    ]


def tasks_for(spark: SparkSession, tables: Mapping[str, FencedTable]) -> int:
    """Returns how many tasks read these tables by default: two for each core, fewer if the tables are small, and more
    if they are large.
    """
    total = sum(pages for table in tables.values() for pages in table.leaf_pages)
    few = min(2 * spark.sparkContext.defaultParallelism, 1 + total // TASK_PAGES_MIN)
    return max(few, -(-total // TASK_PAGES))


def source_rows(
    spark: SparkSession, source: Scan, tables: Mapping[str, FencedTable], tasks: int, keys: Bounds | None = None
) -> DataFrame:
    """Returns the rows (`changelog.connectors.sources.fences.ROWS`) of these tables at the fence.

    With `keys`, returns only the rows in this range of keys; then each leaf is read by a task of its own.
    """
    bins = ranges(tables, tasks) if keys is None else _leaves(tables)
    read = partial(scan, source=source, parts=bins, keys=None if keys is None else keys.of_source())
    return spark.range(0, len(bins), 1, len(bins)).mapInArrow(read, from_arrow_schema(ROWS))
