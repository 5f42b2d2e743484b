"""How far the reading of tables is, on a terminal."""

from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from connectors.sources.postgres.progress import is_complete, pages


class SnapshotBar:
    """A bar a table that is being read; nothing where `stream` is not a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._progress: Progress | None = None
        if stream.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
            self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True)
        self._tasks: dict[str, TaskID] = {}

    def update(self, windows: Mapping[str, Mapping[str, Any]]) -> None:
        """Shows what a checkpoint says."""
        if self._progress is None:
            return
        for entity, stored in windows.items():
            if entity not in self._tasks and is_complete(stored):
                continue
            whole, left = pages(stored)
            if entity not in self._tasks:
                self._progress.start()
                self._tasks[entity] = self._progress.add_task(f"snapshot of {entity}", total=max(whole, 1))
            if is_complete(stored):
                self._progress.update(self._tasks[entity], completed=max(whole, 1), total=max(whole, 1))
            else:
                self._progress.update(self._tasks[entity], completed=whole - left, total=max(whole, 1))
        if self._tasks and all(is_complete(stored) for stored in windows.values()):
            self.close()

    def close(self) -> None:
        """Takes the bars away."""
        if self._progress is not None:
            self._progress.stop()
        self._tasks.clear()
