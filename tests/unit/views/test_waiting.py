"""Tests which thread reads the rows that a request asks for: the thread of the event loop, or another thread.

A row is *at hand* if it can be read without waiting, because it is already in the memory of this process.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from starlette.responses import Response

from changelog.connectors.views.http.questions import Freshness
from changelog.connectors.views.http.waiting import QUICK_S, THREADS_S, Question, ReadingPace, Waiting
from changelog.connectors.views.served import Completeness
from changelog.connectors.views.shown import ShownView

KEY, OTHER_KEY = "1", "2"
SLOW_S = 50 * QUICK_S
"""A single reading may take this long."""


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Rows:
    """Stands for a served view, and for the rows that a reading of the view returns.

    Only the row of `KEY` is at hand. A reading takes `reading_s`. `reader` is the name of the thread that read last.
    """

    reached = Completeness(position=None, at_s=None)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reading_s = 0.0
        self.reader = ""

    def is_at_hand(self, key: str, /) -> bool:
        return key == KEY

    def columns(self) -> None:
        return None

    def now(self, _key: str | None = None, /, *, allows_stale: bool = False) -> Any:
        self.reader = threading.current_thread().name
        self._clock.now_s += self.reading_s
        return self


def reader_of(key: str | None, rows: Rows, pace: ReadingPace | None) -> str:
    """Returns which thread reads the row of a key: "event loop" or "thread"."""
    view = ShownView(name="order", entity="order", served=cast(Any, rows))
    question = Question(view, key, Freshness(), lambda _: Response())
    with ThreadPoolExecutor(1, "thread") as readers:
        waiting = Waiting(readers=readers, stopping=lambda: False, pace=pace)
        asyncio.run(waiting.answer(lambda: question))
    return "event loop" if rows.reader == threading.current_thread().name else rows.reader.rpartition("_")[0]


@pytest.mark.parametrize(
    ("key", "paced", "reader"),
    [
        (KEY, True, "event loop"),
        (OTHER_KEY, True, "thread"),
        (None, True, "thread"),
        (KEY, False, "thread"),
    ],
    ids=["at hand", "not at hand", "many rows", "in files"],
)
def test_the_event_loop_reads_only_a_row_that_is_at_hand(key: str | None, paced: bool, reader: str) -> None:
    clock = Clock()
    assert reader_of(key, Rows(clock), ReadingPace(clock) if paced else None) == reader


def test_threads_read_for_a_while_if_readings_are_slow() -> None:
    clock = Clock()
    rows, pace = Rows(clock), ReadingPace(clock)
    rows.reading_s = SLOW_S
    assert reader_of(KEY, rows, pace) == "event loop"
    rows.reading_s = QUICK_S / 2
    readers = {reader_of(KEY, rows, pace) for _ in range(1000)}
    assert readers == {"event loop"}, "one slow reading among quick ones does not count"
    rows.reading_s = 2 * QUICK_S
    slow_readers = [reader_of(KEY, rows, pace) for _ in range(200)]
    assert slow_readers.index("thread") > 10, "some readings must be slow before threads read"
    assert set(slow_readers[slow_readers.index("thread") :]) == {"thread"}
    clock.now_s += THREADS_S
    rows.reading_s = 0.0
    assert reader_of(KEY, rows, pace) == "event loop"
