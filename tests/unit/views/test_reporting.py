"""Tests how a restoration reports its progress: a bar on a terminal, log lines elsewhere, and metrics.

No Java runs here.
"""

import io
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from changelog.connectors.views import reporting
from changelog.connectors.views.http.metrics import ViewMetrics
from changelog.connectors.views.reporting import Pace, Reporting
from changelog.connectors.views.served import Figures
from changelog.connectors.views.streams.restoration import Restoration
from tests.patience import until

ORDER, GUEST = ("booking.order", 0), ("booking.guest", 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def figures(restored: int, restoring: int, *, lag: int = 0, is_ready: bool = False) -> Figures:
    return Figures(
        restored=restored,
        restoring=restoring,
        lags={"order": lag},
        standby_lags={"order": 4},
        store_bytes=5,
        is_ready=is_ready,
    )


def restoration_figures() -> Iterator[Figures]:
    """Yields the figures of a restoration, one after the other."""
    yield from (figures(restored, 1000 - restored) for restored in range(0, 1000, 100))
    while True:
        yield figures(1000, 0, is_ready=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "POLL_S", 0.01)
    monkeypatch.setattr(reporting, "LOG_S", 0.03)


def test_a_terminal_gets_a_bar_and_no_log_lines() -> None:
    terminal, steps = Terminal(), restoration_figures()
    with capture_logs() as events:
        report = Reporting(lambda: next(steps), terminal)
        until(lambda: not report._thread.is_alive(), "the report does not end")
        report.close()
    assert events == []
    assert "restoring rows" in terminal.getvalue()


def test_a_file_gets_log_lines_and_no_bar() -> None:
    file, steps = io.StringIO(), restoration_figures()
    with capture_logs() as events:
        report = Reporting(lambda: next(steps), file)
        until(lambda: not report._thread.is_alive(), "the report does not end")
        report.close()
    assert file.getvalue() == ""
    assert [event["event"] for event in events][:1] == ["rows are being restored"]
    assert 0 < events[0]["offsets_left"] <= 1000


def test_the_remaining_time_is_computed_from_the_pace() -> None:
    now_s = 100.0
    pace = Pace(lambda: now_s)
    assert pace.seconds_left(0) == 0.0
    assert pace.seconds_left(1000) is None
    now_s = 110.0
    assert pace.seconds_left(800) == 40.0
    assert pace.seconds_left(0) == 0.0
    now_s = 120.0
    assert pace.seconds_left(2000) is None  # more is left than before, so the pace is unknown


def test_metrics_count_restored_rows_and_the_lag() -> None:
    metrics = ViewMetrics()
    metrics.take(figures(10, 7, lag=3))
    metrics.take(figures(25, 0, lag=2))
    lines = metrics.text().decode().splitlines()
    assert {
        "changelog_view_restored_messages_total 25.0",
        "changelog_view_restoring_offsets 0.0",
        'changelog_view_lag_offsets{entity="order"} 2.0',
        'changelog_view_standby_lag_offsets{entity="order"} 4.0',
        "changelog_view_store_bytes 5.0",
    } <= set(lines)


def test_what_is_left_is_counted_for_each_partition() -> None:
    restoration = Restoration()
    restoration.begin(ORDER, 10, 100)
    restoration.begin(GUEST, 5, 5)
    assert restoration.left() == 90
    restoration.advance(ORDER, 59, 20)  # compaction has removed the other messages
    assert (restoration.left(), restoration.messages()) == (40, 20)
    restoration.end(GUEST)
    restoration.end(ORDER)
    assert (restoration.left(), restoration.messages()) == (0, 20)
