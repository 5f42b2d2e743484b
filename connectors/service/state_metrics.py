"""Reports the size of the state, the position of its last row, and how many rows a restore has read.

The state is a local store of the current row of every key. A restore fills it from the changelog.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from changelog.connectors.service.metrics import Metrics
from changelog.connectors.state.before_images import Watcher

LOG_AGAIN_S: Final = 30.0
"""The seconds between two log lines about the same restore."""

_log = structlog.get_logger("service")


class StateMetrics(Watcher):
    """Sets the metrics of the state, and from time to time logs how many rows a restore has read."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._rows = 0
        self._begun_at = self._log_at = 0.0

    def restoring(self, rows: int) -> None:
        """See `Watcher`."""
        now = self._clock()
        if not self._rows:
            self._begun_at, self._log_at = now, now + LOG_AGAIN_S
        self._rows += rows
        self._metrics.state_restored_rows.inc(rows)
        if now >= self._log_at:
            self._log_at = now + LOG_AGAIN_S
            _log.info("the state is being restored", rows=self._rows, per_s=round(self._rows / (now - self._begun_at)))

    def folded(self, position: str, nbytes: int) -> None:
        """See `Watcher`."""
        self._rows = 0
        self._metrics.state_bytes.set(nbytes)
        self._metrics.state_position.info({"position": position})
