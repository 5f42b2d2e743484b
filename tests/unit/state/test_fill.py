"""Tests how values that the log lacks are filled in.

The filled rows must equal the complete rows. `fill_batch` must return the same rows as `fill_rows`.
"""

from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa
import pytest

from changelog.connectors.state.fill_batches import fill_batch
from changelog.connectors.state.fill_rows import fill_rows
from changelog.connectors.state.pending import Pending
from changelog.envelope.columnar import batch
from changelog.envelope.model import Record
from changelog.schemas.types import ColumnType, Primitive
from tests.unit.state.memory_store import MemoryStore
from tests.unit.state.shop import Shop, described, settings


def batches(random: Random, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
    """Cuts records into batches of random lengths. The two records of a move stay together."""
    begin = 0
    while begin < len(records):
        end = begin + random.choice([1, 3, 20, 100])
        while end < len(records) and records[end].moved_from is not None:
            end += 1
        yield batch.from_records(records[begin:end])
        begin = end


def filled(random: Random, records: Sequence[Record], *, fast: bool) -> tuple[list[Record], MemoryStore]:
    """Fills in the values that records lack, batch by batch. Commits at random moments."""
    store = MemoryStore()
    pending = Pending(store)
    result: list[Record] = []
    for rows in batches(random, records):
        pending.begin(settings())
        result += batch.records(fill_batch(pending, rows) if fast else fill_rows(pending, rows))
        pending.add()
        if random.random() < 0.3:
            pending.written()  # acknowledges the previous write, if that was not done below
            store.write(pending.commit({}))
            if random.random() < 0.7:
                pending.written()
    store.write(pending.commit({}))
    return result, store


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_lacks_values_gives_the_same_changelog_as_whole_rows(seed: int, fast: bool) -> None:
    random = Random(seed)
    shop = Shop(random)
    for _ in range(400):
        shop.step()
    result, _ = filled(random, shop.lacking, fast=fast)
    assert [described(record) for record in result] == [described(record) for record in shop.whole]
    assert result == shop.whole
    lacked = [old for old, new in zip(shop.lacking, shop.whole, strict=True) if old != new]
    assert len(lacked) > 130


@pytest.mark.parametrize("seed", range(100, 106))
def test_the_fast_path_fills_and_stores_the_same_as_the_plain_path(seed: int) -> None:
    """Some records are left out, so some originals are unknown. Now and then, the columns change."""
    random = Random(seed)
    shop = Shop(random)
    for _ in range(300):
        shop.step()
        if random.random() < 0.01:
            shop.columns = changed_columns(random, shop)
    records = [
        record
        for number, record in enumerate(shop.lacking)
        if record.entity == "schemas" or record.moved_to or record.moved_from or random.random() < 0.9 or number < 2
    ]
    plain, plain_store = filled(Random(seed), records, fast=False)
    fast, fast_store = filled(Random(seed), records, fast=True)
    assert fast == plain
    assert fast_store.rows == plain_store.rows
    assert fast_store.facts() == plain_store.facts()


def changed_columns(random: Random, shop: Shop) -> dict[str, ColumnType]:
    """Adds or drops one of three columns. Returns the new columns."""
    columns = dict(shop.columns)
    name = random.choice(["name", "body", "extra"])
    if name in columns:
        del columns[name]
    else:
        columns[name] = random.choice([Primitive.STRING, Primitive.JSON])
    return columns
