"""Tests `Windows`, which reads a table in chunks while changes stream, and publishes the chunks one by one.

Also tests when a chunk, or the whole table, must be read again.
"""

import json
from itertools import count, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from changelog.connectors.capture.rows.row_records import Change
from changelog.connectors.capture.tables import windows as windows_module
from changelog.connectors.capture.tables.windows import Windows
from changelog.connectors.sources.postgres.snapshot.page_progress import (
    PAGE_SLOTS,
    Fingerprint,
    LeafProgress,
    Range,
    TableProgress,
)
from changelog.connectors.sources.postgres.snapshot.visibility import Snapshot
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.postgres.window_simulation import ENTITY, LEAF, TABLE, Mask, Read, change_of, rows_of


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows remember which keys changed. Above a limit of such keys, they forget those that are no longer needed. The
    tests lower this limit, so that windows often forget keys.
    """
    monkeypatch.setattr(windows_module, "_TOUCHED_ROWS_MAX", 2)


def _windows(pages: int = 10, bytes_max: int = 32 << 20) -> tuple[Windows, TableProgress]:
    """Returns windows for one table, and the progress of this table. The table has `pages` pages in one leaf, and a
    chunk has 4 pages. The nonces, which identify the chunks, are 0, 1, 2, …
    """
    leaves = {LEAF: LeafProgress(filenode=1, pages=pages, ranges_left=[(0, None)])}
    progress = TableProgress(entity=ENTITY, signature="columns", leaves=leaves, chunk_pages=4)
    nonces = map(str, count())
    return Windows({ENTITY: progress}, horizon=100, nonces=lambda: next(nonces), bytes_max=bytes_max), progress


def _pages(first: int, end: int | None) -> Range:
    return Range(leaf=LEAF, first=first * PAGE_SLOTS, end=None if end is None else end * PAGE_SLOTS)


def _take(windows: Windows) -> tuple[str, Range]:
    nonce_and_chunk = windows.take({ENTITY: TABLE})
    assert nonce_and_chunk is not None
    assert isinstance(nonce_and_chunk[1].part, Range)
    return nonce_and_chunk[0], nonce_and_chunk[1].part


def _snapshot(*running: int, xmax: int = 200) -> Snapshot:
    return Snapshot(xmin=min(running, default=xmax), xmax=xmax, running=np.array(running, np.int64))


def _read(windows: Windows, nonce: str, *keys: int, snapshot: Snapshot | None = None) -> None:
    assert windows.reading(nonce, snapshot or _snapshot(), Fingerprint("columns", 1))
    windows.read(nonce, Read(rows_of(keys, [0] * len(keys))))


def _signalled(windows: Windows, nonce: str) -> list[str] | None:
    rows = windows.signal(nonce.encode(), change_of())
    return None if rows is None else rows.column("key").to_pylist()


def test_a_table_is_read_to_its_end_and_published_chunk_by_chunk() -> None:
    windows, progress = _windows()
    chunks = [_take(windows) for _ in range(3)]
    assert [chunk for _, chunk in chunks] == [_pages(0, 4), _pages(4, 8), _pages(8, None)]
    assert progress.next_range() is None
    assert windows.open == 3
    _read(windows, "1", 5, 6)
    assert _signalled(windows, "1") == ["5", "6"]
    assert progress.to_json()["leaves"][LEAF]["left"] == [[0, 4], [8, None]]
    for nonce in ("0", "2"):
        assert not windows.complete
        _read(windows, nonce)
        assert _signalled(windows, nonce) == []
    assert windows.complete
    assert windows.progress() == {ENTITY: {"complete": True}}
    assert windows.take({ENTITY: TABLE}) is None


def test_rows_are_left_out_if_the_snapshot_does_not_see_their_changes() -> None:
    windows, _ = _windows()
    windows.touched(rows_of([1, 2, 3], [0, 0, 0]), np.array([150, 160, 210]))
    nonce, _ = _take(windows)
    _read(windows, nonce, 1, 2, 3, 4, snapshot=_snapshot(150))
    windows.touched(rows_of([4], [0]), np.array([140]))
    assert _signalled(windows, nonce) == ["2", "4"]


def test_changes_of_another_entity_leave_out_no_rows() -> None:
    windows, _ = _windows()
    other = rows_of([1], [0]).set_column(0, "entity", pa.array(["guest"]))
    windows.touched(other, np.array([300]))
    nonce, _ = _take(windows)
    _read(windows, nonce, 1)
    assert _signalled(windows, nonce) == ["1"]


def test_a_message_that_is_foreign_or_repeated_publishes_nothing() -> None:
    windows, _ = _windows()
    nonce, _ = _take(windows)
    assert _signalled(windows, "someone else's") is None
    assert windows.signal(b"\xff\xfe", change_of()) is None
    _read(windows, nonce, 1)
    assert _signalled(windows, nonce) == ["1"]
    assert _signalled(windows, nonce) is None


def test_a_chunk_waits_for_transactions_that_were_running_when_the_service_started() -> None:
    windows, progress = _windows()
    nonce, range_ = _take(windows)
    assert not windows.reading(nonce, _snapshot(90, 99, 100, 150), Fingerprint("columns", 1))
    assert windows.waiting == (90, 99)
    windows.give_back_unread(nonce)
    second_nonce, second_range = _take(windows)
    assert (second_range, progress.generation) == (range_, 0)
    assert windows.reading(second_nonce, _snapshot(100, 150), Fingerprint("columns", 1))
    assert not windows.waiting


@pytest.mark.parametrize("pages", [10, 3])  # with 3 pages, the first chunk is also the last one
def test_withdrawn_rows_are_read_again(pages: int) -> None:
    windows, progress = _windows(pages)
    nonce, _ = _take(windows)
    before = progress.to_json()
    _read(windows, nonce, 1)
    assert _signalled(windows, nonce) == ["1"]
    assert progress.to_json() != before
    windows.withdraw()
    assert progress.to_json() == before
    assert not windows.complete


def test_a_chunk_that_was_discarded_is_read_again() -> None:
    windows, _ = _windows()
    nonce, range_ = _take(windows)
    _read(windows, nonce, 1)
    windows.discard(("public", "guests"))
    windows.discard(TABLE)
    assert _signalled(windows, nonce) is None
    assert _take(windows)[1] == range_


@pytest.mark.parametrize(("columns", "filenode"), [("other columns", 1), ("columns", 2)])
def test_a_table_that_is_rewritten_or_altered_is_read_from_its_start(columns: str, filenode: int) -> None:
    windows, progress = _windows()
    first, second, third = (_take(windows)[0] for _ in range(3))
    _read(windows, first, 1)
    assert _signalled(windows, first) == ["1"]
    _read(windows, second, 2)
    assert not windows.reading(third, _snapshot(), Fingerprint(columns, filenode))
    windows.give_back_unread(third)
    assert (progress.generation, progress.signature) == (1, columns)
    assert _signalled(windows, second) is None
    assert progress.leaves[LEAF].ranges_left == [(0, None)]
    assert _take(windows)[1] == _pages(0, 4)


def test_a_chunk_of_an_earlier_generation_is_not_read() -> None:
    windows, _ = _windows()
    old, other = _take(windows)[0], _take(windows)[0]
    assert not windows.reading(other, _snapshot(), Fingerprint("columns", 2))
    assert not windows.reading(old, _snapshot(), Fingerprint("columns", 2))
    windows.give_back_unread(old)
    windows.give_back_unread(other)
    assert windows.open == 0


def test_a_chunk_that_was_read_is_not_given_back() -> None:
    windows, _ = _windows()
    nonce, _ = _take(windows)
    _read(windows, nonce, 1)
    windows.give_back_unread(nonce)
    assert _signalled(windows, nonce) == ["1"]


def test_rows_that_cannot_be_published_are_read_again() -> None:
    class Unpublishable(Read):
        def at(self, change: Change, keep: Mask, delete: Mask) -> pa.RecordBatch:
            raise ChangelogError(Kind.LIMIT, "too large")

    windows, progress = _windows()
    nonce, _ = _take(windows)
    assert windows.reading(nonce, _snapshot(), Fingerprint("columns", 1))
    windows.read(nonce, Unpublishable(rows_of([1], [0])))
    with pytest.raises(ChangelogError):
        windows.signal(nonce.encode(), change_of())
    assert progress.to_json()["leaves"][LEAF]["left"] == [[0, None]]


def test_a_chunk_that_is_too_large_is_divided() -> None:
    """The chunk is divided again and again, until it has room for only one row."""
    windows, progress = _windows()
    for size in (4 * PAGE_SLOTS, PAGE_SLOTS, 512, 128, 32, 8, 2, 1):
        nonce, range_ = _take(windows)
        assert range_ == Range(leaf=LEAF, first=0, end=size)
        if size > 1:
            windows.give_back_unread(nonce, smaller=True)
    assert progress.to_json()["leaves"][LEAF]["left"] == [[0, None]]
    parts = [range_]
    while parts[-1].end is not None:
        parts.append(_take(windows)[1])
    assert all(before.end == after.first for before, after in pairwise(parts))
    assert len(parts) == 1 + 1 + 6 * 3 + 2


def test_the_part_of_a_table_beyond_its_planned_end_is_also_divided() -> None:
    """For example, a transaction may fill the table after the reading was planned."""
    windows, _ = _windows(pages=1)
    for first in (0, 1536, 1920, 2016, 2040, 2046, 2047):
        while (part := _take(windows))[1].end is not None:
            pass
        assert part[1].first == first
        windows.give_back_unread(part[0], smaller=True)
    ends: list[int | None] = []
    while not ends or ends[-1] is not None:
        ends.append(_take(windows)[1].end)
    assert ends == [*range(4 * PAGE_SLOTS, 64 * PAGE_SLOTS, 4 * PAGE_SLOTS), None]


def test_no_chunk_is_read_while_rows_that_were_read_fill_the_memory() -> None:
    windows, _ = _windows(bytes_max=1)
    nonce, _ = _take(windows)
    _read(windows, nonce, 1)
    windows.close()
    assert windows.take({ENTITY: TABLE}) is None


@pytest.mark.parametrize(
    ("text", "unseen"),
    [("104:104:", [104]), ("100:104:100,102", [100, 102, 104]), ("100:100:", [100, 101, 102, 104])],
)
def test_a_snapshot_knows_the_transactions_that_it_does_not_see(text: str, unseen: list[int]) -> None:
    xids = np.array([3, 100, 101, 102, 104])
    assert xids[Snapshot.parse(text).misses(xids)].tolist() == unseen


def test_progress_is_resumed_if_the_table_is_unchanged() -> None:
    windows, progress = _windows()
    nonces = [_take(windows)[0] for _ in range(3)]
    _read(windows, nonces[1])
    _signalled(windows, nonces[1])
    stored = progress.to_json()

    assert stored["leaves"][LEAF]["left"] == [[0, 4], [8, None]]
    assert _resumed("columns", 1, stored) == [(0, 4 * PAGE_SLOTS), (8 * PAGE_SLOTS, None)]
    assert _resumed("columns", 2, stored) == [(0, None)]
    assert _resumed("others", 1, stored) == [(0, None)]


def test_progress_inside_a_page_is_resumed() -> None:
    windows, progress = _windows()
    for _ in range(3):
        windows.give_back_unread(_take(windows)[0], smaller=True)
    first, second = _take(windows)[0], _take(windows)[0]
    _read(windows, second)
    _signalled(windows, second)
    stored = json.loads(json.dumps(progress.to_json()))
    assert stored["leaves"][LEAF]["left"] == [[0, [0, 128]], [[0, 256], None]]
    assert _resumed("columns", 1, stored) == [(0, 128), (256, None)]
    _read(windows, first)
    _signalled(windows, first)
    assert progress.to_json()["leaves"][LEAF]["left"] == [[[0, 256], None]]


def _resumed(signature: str, filenode: int, stored: dict[str, Any]) -> list[tuple[int, int | None]]:
    leaves = {LEAF: LeafProgress(filenode=filenode, pages=10, ranges_left=[(0, None)])}
    return TableProgress.resume(ENTITY, signature, leaves, stored).leaves[LEAF].ranges_left
