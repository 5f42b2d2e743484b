"""How far the reading of tables is, for logs and metrics; on a terminal `show.SnapshotBar` shows it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from connectors.capture.tables.table_progress import pages_read
from connectors.service.metrics import Metrics

SAY_AGAIN_S = 30.0
"""How often the log says how far it is."""

_log = structlog.get_logger("service")


class SnapshotProgress:
    """Takes a checkpoint's `windows` after each commit. `quiet` says that the log need not tell."""

    def __init__(self, metrics: Metrics, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._quiet, self._clock = metrics, quiet, clock
        self._say_at = clock() + SAY_AGAIN_S
        self._told: Mapping[str, Mapping[str, Any]] = {}

    def update(self, windows: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the metrics, and says how far each table is that is not yet read, now and then."""
        for entity, stored in windows.items():
            if self._told.get(entity) != stored:
                done, total = pages_read(stored)
                self._metrics.snapshot_pages.labels(entity).set(total)
                self._metrics.snapshot_pages_read.labels(entity).set(done)
        self._told = windows
        if self._quiet or self._clock() < self._say_at:
            return
        if percent := {entity: _percent(stored) for entity, stored in windows.items() if not stored["complete"]}:
            self._say_at = self._clock() + SAY_AGAIN_S
            _log.info("tables are being read", percent=percent)


def _percent(stored: Mapping[str, Any]) -> int:
    done, total = pages_read(stored)
    return 100 * done // total
