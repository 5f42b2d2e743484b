"""Tests how the pages of tables are divided into tasks of Spark.

Together, the tasks must read each page of each leaf once. A leaf is a partition, or a table without partitions. There
must not be more tasks than requested.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.fences import FencedTable
from changelog.spark_jobs.drift.fenced.scan_tasks import ranges

PAGES = st.lists(st.lists(st.integers(0, 5_000), min_size=1, max_size=4), min_size=1, max_size=4)


@given(tables=PAGES, tasks=st.integers(1, 40))
def test_every_page_is_read_once(tables: list[list[int]], tasks: int) -> None:
    fenced_tables = {
        f"t{number}": cast(FencedTable, SimpleNamespace(leaf_pages=tuple(leaves)))
        for number, leaves in enumerate(tables)
    }
    task_ranges = ranges(fenced_tables, tasks)
    assert len(task_ranges) <= tasks
    parts: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for part in [part for task_range in task_ranges for part in task_range]:
        parts[part.entity, part.leaf].append(part)
    assert parts.keys() == {(f"t{n}", leaf) for n, leaves in enumerate(tables) for leaf in range(len(leaves))}
    for (entity, leaf), of_leaf in parts.items():
        pages = tables[int(entity[1:])][leaf]
        assert [part.first for part in of_leaf] == [0, *(part.end for part in of_leaf[:-1])]
        assert of_leaf[-1].end is None
        assert of_leaf[-1].first <= pages
