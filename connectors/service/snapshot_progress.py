"""Reports in metrics and log lines how far tables have been read. On a terminal, `show.SnapshotBar` draws bars."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.service.metrics import Metrics

LOG_AGAIN_S = 30.0
"""The seconds between two log lines about the progress."""

_log = structlog.get_logger("service")


class SnapshotProgress:
    """Reports how far each table has been read: in metrics and, unless `quiet`, in log lines."""

    def __init__(self, metrics: Metrics, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._quiet, self._clock = metrics, quiet, clock
        self._log_at = clock() + LOG_AGAIN_S
        self._reported: Mapping[str, Mapping[str, Any]] = {}

    def update(self, windows: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets the metrics, and from time to time logs the progress of each table that is not read completely.

        `windows` is the member of a checkpoint that has the progress of each entity's table.
        """
        for entity, progress in windows.items():
            if self._reported.get(entity) != progress:
                pages_done, pages = pages_read(progress)
                self._metrics.snapshot_pages.labels(entity).set(pages)
                self._metrics.snapshot_pages_read.labels(entity).set(pages_done)
        self._reported = windows
        if self._quiet or self._clock() < self._log_at:
            return
        if percent := {entity: _percent(progress) for entity, progress in windows.items() if not progress["complete"]}:
            self._log_at = self._clock() + LOG_AGAIN_S
            _log.info("tables are being read", percent=percent)


def _percent(progress: Mapping[str, Any]) -> int:
    pages_done, pages = pages_read(progress)
    return 100 * pages_done // pages
