"""Tests `MysqlScan`. It reads copies of tables from files, so that the tables can be compared with the changelog.

A copy is read in parts, and each row must be in exactly one of them. Each row has a locator, by which it can be read
again.
"""

import pickle
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.fences import ROWS, KeyBounds, Pages
from changelog.connectors.sources.mysql.scan import GROUP_PAGES, CopiedTable, MysqlScan, locators

GROUPS, GROUP_ROWS = 5, 7
KEYS = [f"{number - 10}" for number in range(GROUPS * GROUP_ROWS)]
TEXTS = [msgspec.json.encode([name, "1"]).decode() for name in ("", "a", "B", "\u00e4", "\uffff", "\U0001f600", '"')]


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> MysqlScan:
    """A scan of two copied tables. The key of `numbers` is an integer, and its file has several row groups. The key of
    `texts` is a text and a number.
    """
    folder = tmp_path_factory.mktemp("copies")
    numbers = [KEYS[first : first + GROUP_ROWS] for first in range(0, len(KEYS), GROUP_ROWS)]
    write(folder / "numbers", "numbers", numbers)
    write(folder / "texts", "texts", [TEXTS])
    tables = {
        "numbers": CopiedTable(file=folder / "numbers", key_columns=1),
        "texts": CopiedTable(file=folder / "texts", key_columns=2),
    }
    copied: MysqlScan = pickle.loads(pickle.dumps(MysqlScan(tables=tables)))
    return copied


def write(file: Path, entity: str, groups: Sequence[Sequence[str]]) -> None:
    with pq.ParquetWriter(file, ROWS) as writer:
        for number, keys in enumerate(groups):
            count = len(keys)
            columns = [[entity] * count, keys, ["{}"] * count, [None] * count, [0] * count, locators(number, count)]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=ROWS))


def keys_of(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [key for batch in batches for key in batch.column("key").to_pylist()]


@given(st.sets(st.integers(1, GROUPS * GROUP_PAGES + 5)))
def test_each_row_is_in_exactly_one_part(scan: MysqlScan, cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), None]
    parts = [Pages(entity="numbers", leaf=0, first=first or 0, end=end) for first, end in pairwise(bounds)]
    assert keys_of(batch for part in parts for batch in scan.rows([part], None)) == KEYS
    assert keys_of(scan.rows(parts, None)) == KEYS


@given(st.sets(st.sampled_from(KEYS)))
def test_rows_are_found_by_their_locators(scan: MysqlScan, keys: set[str]) -> None:
    everything = Pages(entity="numbers", leaf=0, first=0, end=None)
    rows = [row for batch in scan.rows([everything], None) for row in batch.to_pylist() if row["key"] in keys]
    again = scan.rows_at({("numbers", 0): [row["locator"] for row in reversed(rows)]})
    assert sorted(keys_of(again)) == sorted(keys)


@given(first=st.none() | st.integers(-15, 40), end=st.none() | st.integers(-15, 40))
def test_rows_in_a_range_of_integers_are_found(scan: MysqlScan, first: int | None, end: int | None) -> None:
    everything = Pages(entity="numbers", leaf=0, first=0, end=None)
    bounds = KeyBounds(column="id", by_bytes=False, first=first, end=end)
    is_in = [key for key in KEYS if (first is None or int(key) >= first) and (end is None or int(key) < end)]
    assert keys_of(scan.rows([everything], bounds)) == is_in


@given(first=st.none() | st.text(max_size=2), end=st.none() | st.text(max_size=2))
def test_rows_in_a_range_of_texts_are_found_by_the_order_of_bytes(
    scan: MysqlScan, first: str | None, end: str | None
) -> None:
    everything = Pages(entity="texts", leaf=0, first=0, end=None)
    bounds = KeyBounds(column="name", by_bytes=True, first=first, end=end)

    def holds(key: str) -> bool:
        name = msgspec.json.decode(key)[0].encode()
        return (first is None or name >= first.encode()) and (end is None or name < end.encode())

    assert keys_of(scan.rows([everything], bounds)) == list(filter(holds, TEXTS))
