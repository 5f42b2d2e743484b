"""Tests the server-sent events by which the console reports new changes. The tests read these events without a
browser.
"""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from changelog.connectors.console.app import LIVE_AT_ONCE
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from tests.patience import PATIENCE_S
from tests.unit.console.running import running
from tests.unit.console.story import LAST, add, settings, story, write
from tests.unit.records import record


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write(tmp_path / "log", story())
    return tmp_path / "log"


@pytest.fixture
def address(log: Path) -> Iterator[str]:
    with running(settings(log.parent)) as address:
        yield address


@contextmanager
def listening(address: str, query: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
    with closing(connection):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", f"/tail/events?{query}", headers=names)
        with connection.getresponse() as answer:
            yield answer


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """Yields the fields of each event."""
    event: dict[str, str] = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = f"{event[name]}\n{value}" if name in event else value
        elif "data" in event:
            yield event
            event = {}


def changed(event: dict[str, str]) -> tuple[str, Any]:
    change = json.loads(event["data"])
    return event["id"], change["key"]


def test_a_program_reads_changes_as_json_and_continues_where_it_was(log: Path, address: str) -> None:
    after = str(Position(1, 8, 2))
    with (
        listening(address, f"entity=order&after={quote(after)}", accept="application/json") as answer,
        closing(FileSink(log)) as sink,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        received = events(answer)
        stored = [changed(next(received)) for _ in range(3)]
        assert [key for _, key in stored] == ["44", "45", "46"]
        sink.recover()
        add(sink, [record(Op.CREATE, '{"id":50}', commit=LAST + 1, key="50")])
        position, key = changed(next(received))
        assert (position, key) == (str(Position(1, LAST + 1, 2)), "50")
    again = {"last_event_id": stored[-1][0], "accept": "application/json"}
    with listening(address, f"entity=order&after={quote(after)}", **again) as answer:
        assert changed(next(events(answer))) == (position, "50")


def test_a_browser_gets_html_that_is_escaped(address: str) -> None:
    with listening(address, f"entity=seat&after={quote(str(Position(1, 9, 2)))}") as answer:
        event = next(events(answer))
    assert event["event"] == "change"
    assert "&lt;script&gt;" in event["data"]
    assert "<script>" not in event["data"]


def test_only_a_few_live_views_are_open_at_once(address: str) -> None:
    with ExitStack() as views:
        for _ in range(LIVE_AT_ONCE):
            assert views.enter_context(listening(address, "")).status == 200
        assert views.enter_context(listening(address, "")).status == 503


def test_the_stream_reports_a_log_that_cannot_be_read(log: Path, address: str) -> None:
    for file in (log / "log").iterdir():
        file.write_bytes(b"damaged")
    with listening(address, f"after={quote(str(Position(1, 1, 2)))}") as answer:
        event = next(events(answer))
    assert event["event"] == "problem"
    assert "restore the file from a copy" in event["data"]
