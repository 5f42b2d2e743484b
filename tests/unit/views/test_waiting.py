"""Tests which thread reads the rows that a request asks for: the thread of the event loop, or another thread.

A row is *at hand* if this process has it, as new as the reader needs it. Then the reader has to wait for nothing.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Message

from changelog.connectors.views.catalogue import Catalogue
from changelog.connectors.views.http.app import views_app
from changelog.connectors.views.http.questions import Freshness
from changelog.connectors.views.http.waiting import QUICK_S, THREADS_S, Question, ReadingPace, Waiting
from changelog.connectors.views.served import Completeness
from changelog.connectors.views.shown import ShownMoment, ShownView
from changelog.connectors.web.access import Access
from changelog.envelope.errors import ChangelogError, Kind

KEY, OTHER_KEY = "1", "2"
NOW, STALE_TOO = Freshness(), Freshness(allows_stale=True)
SLOW_S = 50 * QUICK_S
"""Among quick readings, one that takes this long does not make the event loop leave reading to threads."""


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Rows:
    """A view, and the rows of the view. Only the row of `KEY` is at hand.

    A reading takes `reading_s` seconds on the clock. In the event loop, it raises `error` if there is one. `reader` is
    the name of the thread that read last.
    """

    reached = Completeness(position=None, at_s=None)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reading_s = 0.0
        self.error: ChangelogError | None = None
        self.reader = ""

    def columns(self) -> None:
        return None

    def at_hand(self, key: str, /) -> Any:
        return self if key == KEY else None

    def now(self, _key: str | None = None, /, *, allows_stale: bool = False) -> Any:
        return self

    def get(self, _key: str, /) -> None:
        self.reader = threading.current_thread().name
        self._clock.now_s += self.reading_s
        if self.error is not None and threading.current_thread() is threading.main_thread():
            raise self.error


def reader_of(key: str | None, rows: Rows, pace: ReadingPace | None, freshness: Freshness = NOW) -> str:
    """Returns which thread reads the row of a key: "event loop" or "thread"."""

    def answer(moment: ShownMoment) -> Response:
        moment.get(KEY)
        return Response()

    question = Question(ShownView(name="order", entity="order", served=cast(Any, rows)), key, freshness, answer)
    with ThreadPoolExecutor(1, "thread") as readers:
        waiting = Waiting(readers=readers, stopping=lambda: False, pace=pace)
        asyncio.run(waiting.answer(lambda: question))
    return "event loop" if rows.reader == threading.current_thread().name else rows.reader.rpartition("_")[0]


class FileEngine:
    """An engine with the view `order`, which has `rows`."""

    where = "here"

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def entities(self) -> dict[str, Sequence[str]]:
        return {"order": ("id",)}

    def view(self, _entity: str, _services: object = None, /) -> Any:
        return self._rows

    def close(self) -> None:
        pass


class KafkaEngine(FileEngine):
    """The same engine, with the methods that only engines over Kafka have."""

    def figures(self) -> None:
        pass

    def answer(self, _question: bytes, /) -> bytes:
        return b""


@pytest.mark.parametrize(("engine", "reader"), [(FileEngine, "views-reader"), (KafkaEngine, "MainThread")])
def test_the_event_loop_reads_rows_over_kafka_and_never_files(engine: type[FileEngine], reader: str) -> None:
    rows, statuses = Rows(Clock()), list[int]()
    access = Access(None, secret=b"", clock=time.time, cookie="session")
    catalogue = Catalogue(cast(Any, engine(rows)))
    app = views_app("app", catalogue, access, names=(), is_loopback=True, stopping=lambda: False)
    scope = {
        "type": "http", "method": "GET", "path": f"/order/{KEY}", "raw_path": f"/order/{KEY}".encode(),
        "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": None,
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        statuses.extend(message[name] for name in ("status",) if name in message)

    async def request() -> None:
        await app(scope, receive, send)

    asyncio.run(request())
    assert (statuses, rows.reader.partition("_")[0]) == ([404], reader), "there is no row, but it was looked for"


@pytest.mark.parametrize(
    ("key", "paced", "freshness", "reader"),
    [
        (KEY, True, NOW, "event loop"),
        (OTHER_KEY, True, NOW, "thread"),
        (None, True, NOW, "thread"),
        (KEY, True, STALE_TOO, "thread"),
        (KEY, False, NOW, "thread"),
    ],
    ids=["at hand", "not at hand", "many rows", "standbys may be asked", "in files"],
)
def test_the_event_loop_reads_only_a_row_that_is_at_hand(
    key: str | None, paced: bool, freshness: Freshness, reader: str
) -> None:
    clock = Clock()
    assert reader_of(key, Rows(clock), ReadingPace(clock) if paced else None, freshness) == reader


def test_a_thread_reads_a_row_that_the_event_loop_cannot_read() -> None:
    clock = Clock()
    rows, pace = Rows(clock), ReadingPace(clock)
    rows.error = ChangelogError(Kind.PRECONDITION, "the rows are being restored")
    assert reader_of(KEY, rows, pace) == "thread"
    rows.reading_s = 2 * SLOW_S
    assert reader_of(KEY, rows, pace) == "thread"
    rows.error = None
    assert reader_of(KEY, rows, pace) == "thread", "a slow reading counts although it failed"


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
