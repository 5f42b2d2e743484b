"""Tests how the service keeps track of what it has read of a table: it stores the ranges of keys that are not yet
published.

Each key that is not published must be in one of these ranges, whatever happens to the chunks that are read.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.sources.mysql.snapshot.key_progress import ChunkRange, KeyProgress

KEYS = 40


def progress(chunk_rows: int = 4) -> KeyProgress:
    return KeyProgress(entity="t", signature="a", chunks=KEYS // chunk_rows, chunk_rows=chunk_rows)


def keys(range_: ChunkRange) -> set[int]:
    first = -1 if range_.first is None else int(range_.first.key[0])
    end = KEYS if range_.end is None else int(range_.end.key[0])
    return {key for key in range(KEYS) if first < key <= end}


def narrowed(task: KeyProgress, key_range: ChunkRange) -> ChunkRange:
    """Narrows a range to as many rows as a chunk may have, as a reader of chunks does. Returns the narrowed range."""
    inside = sorted(keys(key_range))
    if len(inside) < task.chunk_rows:
        return key_range
    part = key_range.upto((str(inside[task.chunk_rows - 1]),))
    task.narrow(key_range, part)
    return part


def test_a_table_is_read_in_chunks() -> None:
    task, chunks = progress(), []
    while (key_range := task.next_range()) is not None:
        part = narrowed(task, key_range)
        chunks.append(sorted(keys(part)))
        task.publish(part)
    assert chunks == [*([key, key + 1, key + 2, key + 3] for key in range(0, KEYS, 4)), []]
    assert task.complete
    assert task.to_json() == {"complete": True}


@given(st.data())
def test_each_key_is_published_and_no_range_is_lost(data: st.DataObject) -> None:
    task = progress()
    out: list[ChunkRange] = []
    published: set[int] = set()
    for _ in range(200):
        step = data.draw(st.sampled_from(["take", "take", "publish", "publish", "give back", "divide", "store"]))
        if step == "take" and (key_range := task.next_range()) is not None:
            assert all(keys(key_range).isdisjoint(keys(other)) for other in out)
            out.append(narrowed(task, key_range))
        elif step == "store":
            stored = json.loads(json.dumps(task.to_json()))
            out.clear()
            task = KeyProgress.resume("t", "a", chunks=10, chunk_rows=4, document=stored) if not task.complete else task
        elif out and step != "take":
            part = out.pop(data.draw(st.integers(0, len(out) - 1)))
            if step == "publish":
                published |= keys(part)
                task.publish(part)
            else:
                (task.give_back if step == "give back" else task.divide)(part)
        assert set().union(*map(keys, task.ranges_left)) == set(range(KEYS)) - published
    stored = task.to_json()
    done, total = pages_read(stored)
    assert 0 <= done <= total


def test_a_range_that_was_read_but_not_published_is_read_again() -> None:
    task = progress()
    key_range = task.next_range()
    assert key_range is not None
    task.publish(key_range)
    assert task.complete
    task.withdraw(key_range)
    assert task.next_range() == key_range


def test_a_table_is_read_from_its_start_again_if_its_signature_changes() -> None:
    task = progress()
    key_range = task.next_range()
    assert key_range is not None
    task.publish(narrowed(task, key_range))
    rest = task.next_range()
    assert rest is not None
    assert not task.admit(rest, "b")
    assert (task.generation, task.signature) == (1, "b")
    assert keys(task.ranges_left[0]) == set(range(KEYS))


def test_stored_progress_is_not_resumed_if_the_signature_has_changed() -> None:
    task = progress()
    key_range = task.next_range()
    assert key_range is not None
    task.publish(narrowed(task, key_range))
    stored = {**task.to_json(), "again": ["*"]}
    resumed = KeyProgress.resume("t", "b", chunks=10, chunk_rows=4, document=stored)
    assert (keys(resumed.ranges_left[0]), resumed.again) == (set(range(KEYS)), ("*",))
