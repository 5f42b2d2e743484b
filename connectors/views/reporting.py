"""Shows how far rows are restored, until all rows can be read: as a bar on a terminal, elsewhere in log lines."""

import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

import structlog

from changelog.connectors.show import RestorationBar
from changelog.connectors.views.served import Figures

POLL_S: Final = 1.0
"""How often the figures are read and the bar is drawn, in seconds."""

LOG_S: Final = 10.0
"""How often a line is logged, in seconds."""

_log = structlog.get_logger("views")


class Pace:
    """Estimates how long the rest of some work will take, from how much was left at earlier calls.

    `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most: tuple[float, int] | None = None

    def seconds_left(self, left: int) -> float | None:
        """Takes how much is left now. Returns how many seconds the rest will take; None if that is unknown."""
        now_s = self._clock()
        if self._most is None or left >= self._most[1]:
            self._most = now_s, left
        began_s, most = self._most
        if left == 0:
            return 0.0
        return None if left == most else (now_s - began_s) * left / (most - left)


class Reporting:
    """Reports `figures` in a thread, until all rows can be read or `close` is called.

    If `stream` is a terminal, a bar appears there; otherwise lines are logged.
    """

    def __init__(self, figures: Callable[[], Figures], stream: TextIO) -> None:
        self._figures, self._pace, self._bar = figures, Pace(), RestorationBar(stream)
        self._is_terminal, self._log_at_s = stream.isatty(), time.monotonic() + LOG_S
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._report, name="views-reporting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and removes the bar."""
        self._stopping.set()
        self._thread.join()

    def _report(self) -> None:
        while not self._stopping.wait(POLL_S):
            figures = self._figures()
            if figures.is_ready:
                break
            seconds_left = self._pace.seconds_left(figures.left)
            self._bar.update(figures.left)
            if figures.left and not self._is_terminal and time.monotonic() >= self._log_at_s:
                self._log_at_s = time.monotonic() + LOG_S
                rounded = None if seconds_left is None else round(seconds_left)
                _log.info("rows are being restored", offsets_left=figures.left, seconds_left=rounded)
        self._bar.close()
