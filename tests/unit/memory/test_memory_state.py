"""Tests the state (the store of current rows) in the publish loop. The source's log has only the keys of old rows.

The process crashes at random fail points. After a crash, the store sometimes lacks its last writes, or everything. Each
original must still be the row as the changelog last published it.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.state.before_images import BeforeImages
from tests.unit.memory.test_memory_source import CRASHES, Shop, check, stored_rows
from tests.unit.state.memory_store import MemoryStore


def original_errors(rows: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Describes each original that is not the state that the changelog had for its key. If it had none, the original of
    a delete must be only the key.

    Also returns the number of updates and deletes for whose key the changelog had a state.
    """
    last: dict[tuple[str, str], Any] = {}
    errors, good = [], 0
    for row in rows:
        place = row["entity"], row["key"]
        original = None if row["original"] is None else json.loads(row["original"])
        if row["op"] in ("update", "delete"):
            known = last.get(place)
            if known is None and row["op"] == "delete":
                known = {"id": int(row["key"])}  # the log has the key
            if original != known:
                errors.append(f"{row['position']} {row['op']} {place}: {original}, not {known}")
            good += last.get(place) is not None
        last[place] = None if row["current"] is None else json.loads(row["current"])
    return errors, good


@pytest.mark.parametrize("messages", [True, False])
@pytest.mark.parametrize("seed", range(300, 302))
def test_despite_crashes_each_original_is_the_last_published_state(seed: int, messages: bool, tmp_path: Path) -> None:
    store, random = MemoryStore(), Random(seed)

    def open_state() -> BeforeImages:
        store.lose(random.choice([0, 0, 1, 3]))
        if random.random() < 0.2:
            store.clear()
        return BeforeImages(store, lambda: FileLog(tmp_path / "log"))

    shop = Shop(seed, tmp_path / "log", steps=300, crashes=2 * CRASHES, messages=messages, open_state=open_state)
    shop.run()
    check(shop)
    rows = stored_rows(shop.path)
    errors, good = original_errors(rows)
    assert errors == []
    assert good > 20
    assert shop.passed["loop:folded"] > 0
    last = {f"{row['entity']}\0{row['key']}".encode(): row["current"] for row in rows}
    assert {key: json.loads(value[39:]) for key, value in store.rows.items()} == {
        key: json.loads(current) for key, current in last.items() if current is not None
    }
