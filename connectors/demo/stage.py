"""Stores the demo's changelog in files. In a demo with Kafka, `changelog.connectors.demo.kafka` stores it in topics."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from rich.console import Console

from changelog.connectors import show
from changelog.connectors.sinks.files.layout import log_folder

SINK = """\
[sink]
kind = "files"
path = "data/changelog"
commit_seconds = 0.5"""


class DemoStage(Protocol):
    """The parts of the demo that depend on where the changelog is stored."""

    def opened(self, lap: Callable[[str], None]) -> AbstractContextManager[str]:
        """Starts the servers that the changelog needs. Yields the section `[sink]` of the configuration as TOML.

        When a server is ready, `lap` is called to print that (see `Stopwatch.lap`).
        """

    def view(self, console: Console, say: Callable[[str], None], states: Mapping[str, Mapping[str, str]]) -> None:
        """Shows a part of the stored changelog. `states` has, by entity and key, the states that the `Reader` found."""

    def ending(self, console: Console, folder: Path) -> bool:
        """Prints where the changelog is, now that everything is stopped. Returns whether it can still be read."""


class FileStage:
    """Keeps the changelog as files in the demo's folder."""

    def opened(self, lap: Callable[[str], None]) -> AbstractContextManager[str]:  # noqa: ARG002 - nothing is started
        return nullcontext(SINK)

    def view(self, console: Console, say: Callable[[str], None], states: Mapping[str, Mapping[str, str]]) -> None:
        """Shows nothing, because the demo has already shown everything that the files contain."""

    def ending(self, console: Console, folder: Path) -> bool:
        log = list(log_folder(folder / "data" / "changelog").iterdir())
        nbytes = show.size(sum(file.stat().st_size for file in log))
        console.print(
            f"   data/changelog/log/     {len(log)} Parquet files, {nbytes}, which any Parquet reader can query"
        )
        return True
